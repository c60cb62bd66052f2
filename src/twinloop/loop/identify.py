"""Identify a twin from a log: figures, result.json, report; and beyond the fit ranges, rival structures, drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.gap import GapReport, measure_gap
from twinloop.identify import FitConfig, HoldoutSpec, IdentifyResult, identify
from twinloop.identify.compare import compare, held_out_splits
from twinloop.identify.compare_result import Comparison
from twinloop.identify.conformal import CalibratedRanges, calibrate
from twinloop.identify.drift import Drift, drift, drift_groups
from twinloop.identify.sbi_bridge import posterior
from twinloop.identify.sbi_flow import require_sbi
from twinloop.identify.sbi_result import Posterior
from twinloop.identify.structures import chosen_structures
from twinloop.loop.gap_split import describe
from twinloop.loop.logs import Log
from twinloop.loop.pages import gap_section, gap_tables_section
from twinloop.loop.pages_identify import drift_section, identify_section, ranges_section, structures_section
from twinloop.loop.runs import claim_output, write_run
from twinloop.report import Report
from twinloop.simulate import open_backend
from twinloop.twin import Twin, load_twin


@dataclass(frozen=True, kw_only=True)
class Beyond:
    """What is asked for beyond the fit; see `cli.ranging`."""

    calibrate: str | None = None
    compare: bool = False
    structures: tuple[str, ...] = ()
    structure_file: Path | None = None
    folds: int = 3
    drift: str | None = None
    posterior: str | None = None

    def __post_init__(self) -> None:
        if (self.structures or self.structure_file) and not self.compare:
            raise InputError("--structures and --structure-file name what --compare fits. Say --compare as well.")


@dataclass(frozen=True, kw_only=True)
class Identified:
    """A fit, its ranges and, where episodes were held out, the gap on them before and after.

    ``compared``, ``drifted`` and ``learned`` (a posterior) are there where they were asked for.
    """

    twin: Twin
    log: Log
    config: FitConfig
    result: IdentifyResult
    ranges: CalibratedRanges | None
    gap: GapReport | None
    training: Sequence[Episode]
    held_out: Sequence[Episode]
    compared: Comparison | None = None
    drifted: Drift | None = None
    learned: Posterior | None = None

    @property
    def distribution(self) -> ParamDistribution:
        """What was found, with noise and calibration where anything was determined."""
        return self.result.distribution if self.ranges is None else self.ranges.distribution

    def figures(self) -> dict[str, Any]:
        """Plain figures for result.json; wall-clock seconds included, because a run is not data."""
        return {
            **self.result.to_json(),
            "distribution": self.distribution.to_json(),
            "verb": "identify",
            "twin": describe(self.twin),
            "data": self.log.describe(),
            "gap": None if self.gap is None else self.gap.to_json(),
            "ranges": None if self.ranges is None else self.ranges.to_json(),
            "structures": None if self.compared is None else self.compared.to_json(),
            "drift": None if self.drifted is None else self.drifted.to_json(),
            "posterior": None if self.learned is None else self.learned.to_json(),
        }

    def text(self) -> str:
        """Everything that was found, for a terminal."""
        parts = [self.result.text()]
        beyond = (self.ranges, self.gap, self.compared, self.drifted, self.learned)
        parts += [part.text() for part in beyond if part is not None]
        return "\n\n".join(parts)

    def page(self, report: Report, *, target: Sequence[float] | None = None) -> None:
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
    log: Log,
    holdout: str | None,
    config: FitConfig | None = None,
    *,
    calibration: str | None = None,
) -> Identified:
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
    return Identified(
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
    """Training, calibration and held-out episodes; ``calibration`` counts among those that are not held out.

    Raises:
        InputError: see `HoldoutSpec`; or nothing is left to train on.
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


def run_identify(
    reference: str,
    log: Log,
    output: Path,
    *,
    holdout: str | None,
    console: Console,
    config: FitConfig | None = None,
    beyond: Beyond | None = None,
) -> dict[str, Any]:
    """Print and store what a log says about a twin."""
    twin, asked = load_twin(reference), beyond or Beyond()
    claim_output(output)
    _refuse_early(log, asked, holdout)
    found = fit(twin, log, holdout, config, calibration=asked.calibrate)
    found = _further(found, asked, holdout, console)
    console.print(f"Data: {log.label}")
    console.print(found.text(), soft_wrap=True)
    page = Report(f"Identification of {found.twin.name}", log.label)
    return write_run(output, found.figures(), page, found.page, console)


def _refuse_early(log: Log, asked: Beyond, holdout: str | None) -> None:
    """Refuse before the fit what would only be refused after it."""
    if asked.compare:
        chosen_structures(asked.structures, asked.structure_file)
        held_out_splits([episode.index for episode in log.episodes], HoldoutSpec.parse(holdout), asked.folds)
    if asked.drift is not None:
        drift_groups(log.episodes, asked.drift)
    if asked.posterior is not None:
        require_sbi()


def _further(found: Identified, asked: Beyond, holdout: str | None, console: Console) -> Identified:
    """Rival structures, drift and a posterior, where they are asked for."""
    compared = drifted = None
    backend, episodes = open_backend(), found.log.episodes
    if asked.compare:
        compared = compare(
            found.twin,
            episodes,
            backend=backend,
            structures=chosen_structures(asked.structures, asked.structure_file),
            holdout=HoldoutSpec.parse(holdout),
            folds=asked.folds,
            config=found.config,
            progress=lambda what: console.print(f"Comparing structures, {what}"),
        )
    if asked.drift is not None:
        groups = drift_groups(episodes, asked.drift)
        drifted = drift(found.twin, episodes, groups, backend=backend, config=found.config)
    learned = None
    if asked.posterior is not None:
        console.print("Simulating for a posterior")
        learned = posterior(found.twin, episodes, found.result, backend=backend, config=found.config)
    return replace(found, compared=compared, drifted=drifted, learned=learned)
