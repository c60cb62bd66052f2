"""Identify a twin from a log: fit, ranges, alternative structures, drift, result.json and report."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.records import Episode
from twinloop.core.yaml_documents import load_yaml
from twinloop.gap import GapReport, measure_gap
from twinloop.identify import FitConfig, HoldoutSpec, IdentifyResult, identify
from twinloop.identify.compare import StructureComparison, compare_structures, held_out_splits
from twinloop.identify.conformal import CalibratedRanges, calibrate
from twinloop.identify.drift import Drift, detect_drift, group_episodes
from twinloop.identify.sbi_bridge import sample_posterior
from twinloop.identify.sbi_flow import require_sbi
from twinloop.identify.sbi_result import PosteriorDraws
from twinloop.identify.structures import select_structures
from twinloop.report import ReportPage
from twinloop.simulate import open_backend
from twinloop.twin import Twin, load_twin
from twinloop.twin.spec import describe_errors
from twinloop.workflows.data.logs import LogEpisodes, open_logs
from twinloop.workflows.gap.options import name_and_hash
from twinloop.workflows.identify.excitation import run_plan
from twinloop.workflows.identify.page import drift_section, identify_section, ranges_section, structures_section
from twinloop.workflows.identify.requests import FitOptions, IdentifyRequest, PostFitAnalyses
from twinloop.workflows.run.results import claim_output, write_run
from twinloop.workflows.run.sections import gap_section, gap_tables_section

_LEAST_REFITS = 40  # with 40, one refit is beyond each end of a 95 % interval


def read_fit_config(path: Path) -> FitConfig:
    """Return the configuration in a YAML file; missing keys keep their default.

    Raises:
        InputError: the file is missing, is not YAML, or a value has the wrong type; names the key.
        UnknownNameError: a key does not exist; names the nearest.
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
    """Return the configuration in a file, or the default one, with the flags applied.

    Raises:
        InputError: the window is not longer than 0, there are too few refits, or as `read_fit_config`.
    """
    config = FitConfig() if fitting.fit is None else read_fit_config(fitting.fit)
    if fitting.window is not None:
        if not fitting.window > 0:
            raise InputError(f"--window {fitting.window:g}: give seconds, such as 0.5.")
        config = replace(config, replay=replace(config.replay, window=fitting.window, start="measured"))
    if fitting.bootstrap:
        if fitting.bootstrap < _LEAST_REFITS:
            raise InputError(
                f"--bootstrap {fitting.bootstrap}: percentiles take at least {_LEAST_REFITS} refits. Give as many, or "
                "leave it out."
            )
        config = replace(config, bootstrap=fitting.bootstrap)
    if fitting.profile:
        config = replace(config, profile=tuple(fitting.profile))
    if fitting.measured_torque:
        config = replace(config, replay=replace(config.replay, torque="measured"))
    return replace(config, free=tuple(fitting.free)) if fitting.free else config


def _check_keys(kind: type, value: Mapping[str, Any], *, where: str, prefix: str = "") -> None:
    """Refuse keys that are not fields of a dataclass, or of a dataclass nested in it."""
    hints = get_type_hints(kind)
    for key, item in value.items():
        if key not in hints:
            known = [f"{prefix}{name}" for name in hints]
            raise UnknownNameError("option of a fit", f"{prefix}{key}", known, where=where)
        inner = _find_dataclass(hints[key])
        if inner is None or not isinstance(item, Mapping):
            continue
        parts = item if _is_mapping(hints[key]) else {"": item}
        for name, part in parts.items():
            if isinstance(part, Mapping):
                _check_keys(inner, part, where=where, prefix=f"{prefix}{key}.{f'{name}.' if name else ''}")


def _find_dataclass(hint: Any) -> type | None:
    """Return the dataclass in a type annotation, or None."""
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
    """A fit, its ranges and, with held-out episodes, the gap on them before and after.

    ``compared``, ``drifted`` and ``learned`` (a posterior) exist if they were requested.
    """

    twin: Twin
    log: LogEpisodes
    config: FitConfig
    result: IdentifyResult
    ranges: CalibratedRanges | None
    gap: GapReport | None
    training: Sequence[Episode]
    held_out: Sequence[Episode]
    compared: StructureComparison | None = None
    drifted: Drift | None = None
    learned: PosteriorDraws | None = None

    @property
    def distribution(self) -> ParamDistribution:
        """The identified distribution, with noise and calibration if any parameter was determined."""
        return self.result.distribution if self.ranges is None else self.ranges.distribution

    def figures(self) -> dict[str, Any]:
        """Return the metrics for result.json as a JSON-compatible dictionary, wall-clock seconds included."""
        return {
            **self.result.to_json(),
            "distribution": self.distribution.to_json(),
            "verb": "identify",
            "twin": name_and_hash(self.twin),
            "data": self.log.describe(),
            "gap": None if self.gap is None else self.gap.to_json(),
            "ranges": None if self.ranges is None else self.ranges.to_json(),
            "structures": None if self.compared is None else self.compared.to_json(),
            "drift": None if self.drifted is None else self.drifted.to_json(),
            "posterior": None if self.learned is None else self.learned.to_json(),
        }

    def text(self) -> str:
        """Return all results as text for a terminal."""
        parts = [self.result.text()]
        beyond = (self.ranges, self.gap, self.compared, self.drifted, self.learned)
        parts += [part.text() for part in beyond if part is not None]
        return "\n\n".join(parts)

    def page(self, report: ReportPage, *, target: Sequence[float] | None = None) -> None:
        """Add the sections of a fit; ``target`` is an error per joint to compare with."""
        if self.gap is not None:
            options = self.config.replay
            gap_section(report, self.gap, self.twin, self.held_out, self.distribution, target=target, options=options)
            gap_tables_section(report, self.gap)
        identify_section(report, self.result, self.twin, self.training, self.config)
        if self.ranges is not None:
            ranges_section(report, self.ranges, self.twin, self.held_out, self.config)
        if self.compared is not None:
            structures_section(report, self.compared)
        if self.drifted is not None:
            drift_section(report, self.drifted)


def fit(
    twin: Twin,
    log: LogEpisodes,
    holdout: str | None,
    config: FitConfig | None = None,
    *,
    calibration: str | None = None,
) -> IdentifyOutcome:
    """Fit the training episodes, calibrate ranges on those of ``calibration``, and measure the held-out ones."""
    config, backend = config or FitConfig(), open_backend()
    training, widening, held = split_log(log.episodes, holdout, calibration)
    numbers = tuple(episode.index for episode in held)
    spec = HoldoutSpec(kind="list", numbers=numbers) if held else HoldoutSpec(kind="none")
    seen = [episode for episode in log.episodes if episode not in widening]
    result = identify(twin, seen, backend=backend, holdout=spec, config=config)
    gap = ranges = None
    if held:
        gap = measure_gap(
            twin, held, backend=backend, params=result.distribution, options=config.replay, training=training
        )
    if any(result.distribution.determined):
        ranges = calibrate(
            twin,
            result.distribution,
            backend=backend,
            training=training,
            calibration=widening,
            test=held,
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
    """Return training, calibration and held-out episodes; ``calibration`` selects among those not held out.

    Raises:
        InputError: see `HoldoutSpec`; or no training episode is left.
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
    """Identify a twin from a log; or plan the recording of one.

    Raises:
        InputError: a flag has no effect, or data or output are missing.
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
    """Refuse options of a fit together with --plan, which fits nothing."""
    of_fit = {**vars(request.ranging), "holdout": request.holdout}
    of_fit |= {name: getattr(request.fitting, name) for name in ("bootstrap", "profile")}
    usual = {**vars(PostFitAnalyses()), "holdout": None, "bootstrap": 0, "profile": ()}
    said = [f"--{name.replace('_', '-')}" for name, value in of_fit.items() if value != usual[name]]
    if said:
        raise InputError(f"--plan fits nothing, so {', '.join(said)} would do nothing. Leave out one or the other.")


def identify_log(
    request: IdentifyRequest, log: LogEpisodes, output: Path, config: FitConfig, console: Console
) -> dict[str, Any]:
    """Fit a log, run the requested analyses, and print and store the result."""
    asked, holdout = request.ranging, request.holdout
    if (asked.structures or asked.structure_file) and not asked.compare:
        raise InputError("--structures and --structure-file select the structures of --compare. Add --compare.")
    twin = load_twin(request.twin)
    claim_output(output)
    _check_analyses(log, asked, holdout)
    found = fit(twin, log, holdout, config, calibration=asked.calibrate)
    found = _run_analyses(found, asked, holdout, console)
    console.print(f"Data: {log.label}")
    console.print(found.text(), soft_wrap=True)
    page = ReportPage(f"Identification of {found.twin.name}", log.label)
    return write_run(output, found.figures(), page, found.page, console)


def _check_analyses(log: LogEpisodes, asked: PostFitAnalyses, holdout: str | None) -> None:
    """Check the options of the analyses after the fit, so that errors are raised before it."""
    if asked.compare:
        select_structures(asked.structures, asked.structure_file)
        held_out_splits([episode.index for episode in log.episodes], HoldoutSpec.parse(holdout), asked.folds)
    if asked.drift is not None:
        group_episodes(log.episodes, asked.drift)
    if asked.posterior is not None:
        require_sbi()


def _run_analyses(
    found: IdentifyOutcome, asked: PostFitAnalyses, holdout: str | None, console: Console
) -> IdentifyOutcome:
    """Compare model structures, test for drift and learn a posterior, as requested."""
    compared = drifted = None
    backend, episodes = open_backend(), found.log.episodes
    if asked.compare:
        compared = compare_structures(
            found.twin,
            episodes,
            backend=backend,
            structures=select_structures(asked.structures, asked.structure_file),
            holdout=HoldoutSpec.parse(holdout),
            folds=asked.folds,
            config=found.config,
            progress=lambda what: console.print(f"Comparing structures, {what}"),
        )
    if asked.drift is not None:
        groups = group_episodes(episodes, asked.drift)
        drifted = detect_drift(found.twin, episodes, groups, backend=backend, config=found.config)
    learned = None
    if asked.posterior is not None:
        console.print("Simulating for a posterior")
        learned = sample_posterior(found.twin, episodes, found.result, backend=backend, config=found.config)
    return replace(found, compared=compared, drifted=drifted, learned=learned)
