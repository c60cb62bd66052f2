"""Identify a twin from logs (`twinloop identify`): fit, ranges, model structures, drift, result.json and report."""

from __future__ import annotations

import dataclasses
import itertools
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import absolute_path, write_text
from twinloop.core.metrics import log_metrics
from twinloop.core.progress import ProgressCounter, show_counter
from twinloop.core.records import Episode
from twinloop.core.yaml_documents import load_yaml
from twinloop.gap import GapReport, measure_gap
from twinloop.identify import FitConfig, HoldoutSpec, IdentifyResult, identify
from twinloop.identify.compare import StructureComparison, compare_structures, held_out_splits
from twinloop.identify.conformal import LEVEL, CalibratedRanges, calibrate
from twinloop.identify.drift import Drift, detect_drift, group_episodes
from twinloop.identify.fit import fix_given
from twinloop.identify.optimization import FitProgress
from twinloop.identify.residual import ResidualFit, check_holdout, fit_residual
from twinloop.identify.sbi_bridge import sample_posterior
from twinloop.identify.sbi_flow import require_sbi
from twinloop.identify.sbi_result import PosteriorDraws
from twinloop.identify.structures import select_structures
from twinloop.randomize import read_identified
from twinloop.report import ReportPage
from twinloop.simulate import Backend, open_backend
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.stats import min_clip_count
from twinloop.twin import Twin, load_twin
from twinloop.twin.residual_spec import RESIDUAL_TWIN, ResidualSpec
from twinloop.twin.spec import describe_errors
from twinloop.workflows.data.logs import LogEpisodes, open_logs
from twinloop.workflows.gap.options import name_and_hash
from twinloop.workflows.identify.excitation import run_plan
from twinloop.workflows.identify.page import (
    drift_section,
    identify_section,
    note_on_held_out_clips,
    ranges_section,
    residual_section,
    structures_section,
)
from twinloop.workflows.identify.requests import FitOptions, IdentifyRequest, PostFitAnalyses
from twinloop.workflows.run.results import claim_output, write_run
from twinloop.workflows.run.sections import gap_section, gap_tables_section

_LEAST_REFITS = 40  # with 40, one refit is beyond each end of a 95 % interval


def read_fit_config(path: Path) -> FitConfig:
    """Return the fit configuration in a YAML file; missing keys keep their default.

    Raises:
        InputError: If the file is missing or is not YAML, or a value has the wrong type.
        UnknownNameError: If a key does not exist; the message suggests the most similar key.
    """
    value = load_yaml(path)
    if not isinstance(value, Mapping):
        raise InputError(f"{path} is not a mapping of options. Write `replay: {{window: 0.5}}`, for example.")
    _check_keys(FitConfig, value, where=str(path))
    try:
        return TypeAdapter(FitConfig).validate_python(value)
    except ValidationError as error:
        raise InputError(describe_errors(error, where=str(path))) from error


def build_fit_config(fitting: FitOptions) -> FitConfig:
    """Return the fit configuration in a file, or the default one, with the command line's flags applied.

    Raises:
        InputError: If the window is not longer than 0, there are too few bootstrap refits, or the file is invalid (see
            `read_fit_config`).
        UnknownNameError: If a key of the file does not exist.
    """
    config = FitConfig() if fitting.fit is None else read_fit_config(fitting.fit)
    if fitting.window is not None:
        if not fitting.window > 0:
            raise InputError(f"--window {fitting.window:g}: give seconds, such as 0.5.")
        config = replace(config, replay=replace(config.replay, window=fitting.window, start="measured"))
    if fitting.bootstrap:
        if fitting.bootstrap < _LEAST_REFITS:
            raise InputError(
                f"--bootstrap {fitting.bootstrap}: percentiles need at least {_LEAST_REFITS} refits. Give as many, or "
                "leave it out."
            )
        config = replace(config, bootstrap=fitting.bootstrap)
    if fitting.profile:
        config = replace(config, profile=tuple(fitting.profile))
    if fitting.measured_torque:
        config = replace(config, replay=replace(config.replay, torque="measured"))
    return replace(config, free=tuple(fitting.free)) if fitting.free else config


def _check_keys(kind: type, value: Mapping[str, Any], *, where: str, prefix: str = "") -> None:
    """Check that all keys of a mapping are fields of a dataclass, also in nested mappings and dataclasses.

    Args:
        kind: the dataclass.
        value: the mapping.
        where: path of the file, for the message.
        prefix: names of the outer keys, each followed by a dot.

    Raises:
        UnknownNameError: If a key is not a field.
    """
    hints = get_type_hints(kind)
    for key, item in value.items():
        if key not in hints:
            known = [f"{prefix}{name}" for name in hints]
            raise UnknownNameError("key", f"{prefix}{key}", known, where=where)
        inner = _find_dataclass(hints[key])
        if inner is None or not isinstance(item, Mapping):
            continue
        parts = item if _is_mapping(hints[key]) else {"": item}
        for name, part in parts.items():
            if isinstance(part, Mapping):
                _check_keys(inner, part, where=where, prefix=f"{prefix}{key}.{f'{name}.' if name else ''}")


def _find_dataclass(hint: Any) -> type | None:
    """Return the first dataclass in a type annotation, such as in ``dict[str, X]``; None if there is none."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint
    return next((found for part in get_args(hint) if (found := _find_dataclass(part))), None)


def _is_mapping(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is types.UnionType:
        return any(_is_mapping(part) for part in get_args(hint))
    return isinstance(origin, type) and issubclass(origin, Mapping)


@dataclass(frozen=True, kw_only=True)
class IdentifyOutcome:
    """Result of an identification.

    Attributes:
        twin: the twin.
        log: the log.
        config: configuration of the fit.
        result: the fit.
        ranges: calibrated ranges for randomization; None if the data determine no parameter.
        gap: gap on the held-out episodes with nominal and identified parameters; None if nothing was held out.
        training: episodes of the fit.
        held_out: held-out episodes.
        structures: comparison of model structures, if requested.
        drift: test for change of parameters over time, if requested.
        residual: motion that no parameter explains, if requested.
        posterior: posterior from simulation-based inference, if requested.
    """

    twin: Twin
    log: LogEpisodes
    config: FitConfig
    result: IdentifyResult
    ranges: CalibratedRanges | None
    gap: GapReport | None
    training: Sequence[Episode]
    held_out: Sequence[Episode]
    structures: StructureComparison | None = None
    drift: Drift | None = None
    residual: ResidualFit | None = None
    posterior: PosteriorDraws | None = None

    @property
    def distribution(self) -> ParamDistribution:
        """The identified distribution.

        Residual noise and calibration are included only if the data determine any parameter.
        """
        return self.result.distribution if self.ranges is None else self.ranges.distribution

    def metrics(self) -> dict[str, Any]:
        """Return the content of result.json as a JSON-compatible dictionary, wall-clock seconds included."""
        return {
            **self.result.to_json(),
            "distribution": self.distribution.to_json(),
            "verb": "identify",
            "twin": name_and_hash(self.twin),
            "data": self.log.describe(),
            "gap": None if self.gap is None else self.gap.to_json(),
            "ranges": None if self.ranges is None else self.ranges.to_json(),
            "structures": None if self.structures is None else self.structures.to_json(),
            "drift": None if self.drift is None else self.drift.to_json(),
            "residual": None if self.residual is None else self.residual.to_json(),
            "posterior": None if self.posterior is None else self.posterior.to_json(),
        }

    def text(self) -> str:
        """Return all results as text for a terminal."""
        parts = [self.result.text()]
        beyond = (self.ranges, self.gap, self.structures, self.drift, self.residual, self.posterior)
        parts += [part.text() for part in beyond if part is not None]
        parts += filter(None, [note_on_held_out_clips(self.ranges, self.held_out)])
        return "\n\n".join(parts)

    def page(self, report: ReportPage, *, target: Sequence[float] | None = None) -> None:
        """Add the sections of an identification to a report.

        Args:
            report: the report.
            target: error per joint of another method, in log units, drawn for comparison; None for no comparison.
        """
        if self.gap is not None:
            options = self.config.replay
            gap_section(report, self.gap, self.twin, self.held_out, self.distribution, target=target, options=options)
            gap_tables_section(report, self.gap)
        identify_section(report, self.result, self.twin, self.training, self.config)
        if self.ranges is not None:
            ranges_section(report, self.ranges, self.twin, self.held_out, self.config)
        if self.structures is not None:
            structures_section(report, self.structures)
        if self.drift is not None:
            drift_section(report, self.drift)
        if self.residual is not None:
            residual_section(report, self.residual)


def _report_progress(counter: ProgressCounter, now: FitProgress, step: int) -> None:
    counter.update(now.stage, now.iteration, now.max_iterations)
    log_metrics(step, {f"loss/{now.stage}": now.loss, "replays": now.replays})


def fit(
    twin: Twin,
    log: LogEpisodes,
    holdout: str | None,
    config: FitConfig | None = None,
    *,
    calibration: str | None = None,
    given: ParamDistribution | None = None,
) -> IdentifyOutcome:
    """Fit the training episodes, calibrate ranges for randomization, and measure the gap on the held-out episodes.

    Args:
        twin: the twin.
        log: the log.
        holdout: selection of the held-out episodes, such as ``last:10``; None for none.
        config: configuration of the fit; None for the default.
        calibration: selection of the episodes for the calibration, among those not held out. They are not fitted. By
            default, the held-out episodes if there are enough of them; the ranges are then not tested.
        given: distribution of an earlier identification; see `identify`.
    """
    config, backend = config or FitConfig(), open_backend()
    training, widening, held = split_log(log.episodes, holdout, calibration)
    numbers = tuple(episode.index for episode in held)
    spec = HoldoutSpec(kind="list", numbers=numbers) if held else HoldoutSpec(kind="none")
    fitted = [episode for episode in log.episodes if episode not in widening]
    gap = ranges = None
    steps = itertools.count(1)
    with show_counter("identify", 0) as counter:
        result = identify(
            twin, fitted, backend=backend, holdout=spec, config=config, given=given,
            progress=lambda now: _report_progress(counter, now, next(steps)),
        )  # fmt: skip
        if held:
            counter.update("gap", 0, 1)
            gap = measure_gap(
                twin, held, backend=backend, params=result.distribution, options=config.replay, training=training
            )
        if any(result.distribution.determined):
            counter.update("ranges", 0, 1)
            reused = calibration is None and len(held) >= min_clip_count(LEVEL)
            ranges = calibrate(
                twin,
                result.distribution,
                backend=backend,
                training=training,
                calibration=held if reused else widening,
                test=[] if reused else held,
                config=config,
            )
    return IdentifyOutcome(
        twin=twin,
        log=log,
        config=config,
        result=result,
        ranges=ranges,
        gap=gap,
        training=training,
        held_out=held,
    )


def split_log(
    episodes: Sequence[Episode], holdout: str | None, calibration: str | None
) -> tuple[list[Episode], list[Episode], list[Episode]]:
    """Return training, calibration and held-out episodes.

    Args:
        episodes: all episodes.
        holdout: selection of the held-out episodes, such as ``last:10``; None for none.
        calibration: selection of the calibration episodes among those not held out; None for none.

    Raises:
        InputError: If a selection is invalid (see `HoldoutSpec`), or no training episode remains.
    """
    rest, held = HoldoutSpec.parse(holdout).split([episode.index for episode in episodes])
    if calibration is None:
        return [episodes[i] for i in rest], [], [episodes[i] for i in held]
    spec = HoldoutSpec.parse(calibration, option="--calibrate")
    training, widening = spec.split([episodes[i].index for i in rest])
    return (
        [episodes[rest[i]] for i in training],
        [episodes[rest[i]] for i in widening],
        [episodes[i] for i in held],
    )


def run_identify(request: IdentifyRequest, console: Console) -> dict[str, Any]:
    """Identify a twin from a log, or plan the identification if ``--plan`` is given.

    Raises:
        InputError: If an option has no effect, or data or output are missing.
    """
    planning = request.planning
    if planning.plan:
        _refuse_with_plan(request)
    config = build_fit_config(request.fitting)
    log = open_logs(request.data, request.reading) if request.data else None
    if planning.plan:
        return run_plan(request, log, config, console)
    if planning.excitation is not None:
        raise InputError("--excitation suggests a motion before a fit. Add --plan.")
    if log is None or request.output is None:
        raise InputError(
            "A fit needs --data and --output. Add --plan to see which parameters the data, or none, would determine."
        )
    return identify_log(request, log, request.output, config, console)


def _refuse_with_plan(request: IdentifyRequest) -> None:
    """Raise `InputError` if options of a fit are given together with --plan, which does not fit."""
    of_fit = {**vars(request.ranging), "holdout": request.holdout}
    of_fit |= {name: getattr(request.fitting, name) for name in ("bootstrap", "profile", "given")}
    usual = {**vars(PostFitAnalyses()), "holdout": None, "bootstrap": 0, "profile": (), "given": None}
    flags = [f"--{name.replace('_', '-')}" for name, value in of_fit.items() if value != usual[name]]
    if flags:
        raise InputError(
            f"--plan makes no fit, so {', '.join(flags)} would have no effect. Leave out one or the other."
        )


def identify_log(
    request: IdentifyRequest, log: LogEpisodes, output: Path, config: FitConfig, console: Console
) -> dict[str, Any]:
    """Fit a log, run the requested analyses after the fit, and print and store the result."""
    analyses, holdout = request.ranging, request.holdout
    if (analyses.structures or analyses.structure_file) and not analyses.compare:
        raise InputError("--structures and --structure-file select the structures of --compare. Add --compare.")
    twin = load_twin(request.twin)
    claim_output(output)
    _check_analyses(log, analyses, holdout)
    if request.fitting.fit is None:
        config = compare_tracked_tool(config, twin, log.episodes, console)
    earlier = request.fitting.given
    given = None if earlier is None else ParamDistribution.from_json(read_identified(earlier)["distribution"])
    config = fix_given(twin, config, given)  # also for the analyses after the fit
    found = fit(twin, log, holdout, config, calibration=analyses.calibrate, given=given)
    found = _run_analyses(found, analyses, holdout, console)
    console.print(f"Data: {log.label}")
    console.print(found.text(), soft_wrap=True)
    if found.residual is not None and found.residual.admitted is not None:
        _write_twin(request.twin, found.residual.admitted, output / RESIDUAL_TWIN, console)
    page = ReportPage(f"Identification of {found.twin.name}", log.label)
    return write_run(output, found.metrics(), page, found.page, console)


def _write_twin(base: str, residual: ResidualSpec, path: Path, console: Console) -> None:
    """Write the YAML file of a twin with a residual, from which datasets and policies are made."""
    plain = {
        "base": str(absolute_path(base)) if Path(base).is_file() else base,
        "residual": residual.model_dump(mode="json"),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))
    console.print(f"Twin with the residual: {path}")


def compare_tracked_tool(config: FitConfig, twin: Twin, episodes: Sequence[Episode], console: Console) -> FitConfig:
    """Return a configuration that also compares the tracked position of the tool, if all episodes have it.

    Joint readings alone hardly determine encoder zeros, because a wrong zero shifts reading and command together.
    """
    signal = f"place/{twin.spec.robot.tcp}" if twin.spec.robot else ""
    if not all(signal in episode.signals for episode in episodes):
        return config
    console.print(f"The fit compares the tracked position of the tool ({signal}), too, which determines encoder zeros.")
    return replace(config, replay=replace(config.replay, compare=(*config.replay.compare, signal)))


def _check_analyses(log: LogEpisodes, analyses: PostFitAnalyses, holdout: str | None) -> None:
    """Check the options of the analyses after the fit, so that errors are raised before it."""
    if analyses.compare:
        select_structures(analyses.structures, analyses.structure_file)
        held_out_splits([episode.index for episode in log.episodes], HoldoutSpec.parse(holdout), analyses.folds)
    if analyses.drift is not None:
        group_episodes(log.episodes, analyses.drift)
    if analyses.residual:
        check_holdout(len(split_log(log.episodes, holdout, analyses.calibrate)[2]))
    if analyses.posterior is not None:
        require_sbi()


def _run_analyses(
    found: IdentifyOutcome, analyses: PostFitAnalyses, holdout: str | None, console: Console
) -> IdentifyOutcome:
    """Run the requested analyses (structures, drift, residual, posterior), and return the extended result."""
    structures = drift = None
    backend, episodes = open_backend(), found.log.episodes
    if analyses.compare:
        structures = compare_structures(
            found.twin,
            episodes,
            backend=backend,
            structures=select_structures(analyses.structures, analyses.structure_file),
            holdout=HoldoutSpec.parse(holdout),
            folds=analyses.folds,
            config=found.config,
            progress=lambda what: console.print(f"Comparing structures, {what}"),
        )
    if analyses.drift is not None:
        groups = group_episodes(episodes, analyses.drift)
        drift = detect_drift(found.twin, episodes, groups, backend=backend, config=found.config)
    residual = None
    if analyses.residual:
        with show_counter("residual", 0):
            residual = _fit_residual(found, backend)
    posterior = None
    if analyses.posterior is not None:
        console.print("Simulating to learn a posterior")
        with show_counter("posterior", 0):
            posterior = sample_posterior(found.twin, episodes, found.result, backend=backend, config=found.config)
    return replace(found, structures=structures, drift=drift, residual=residual, posterior=posterior)


def _fit_residual(found: IdentifyOutcome, backend: Backend) -> ResidualFit:
    """Fit a residual to the training episodes of a fit, and decide on it with the held-out episodes."""
    logs = prepare_replay(found.twin, [*found.training, *found.held_out], found.config.replay)
    training, held = (
        logs.select_episodes([episode.index for episode in part]) for part in (found.training, found.held_out)
    )
    return fit_residual(backend, training, held, {**found.config.fixed, **found.result.values})
