"""Identify a twin from a log: figures, result.json, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.core.records import Episode
from twinloop.gap import GapReport, measure_gap
from twinloop.identify import FitConfig, HoldoutSpec, IdentifyResult, identify
from twinloop.loop.gap import describe
from twinloop.loop.logs import Log
from twinloop.loop.pages import gap_section, identify_section
from twinloop.loop.runs import claim_output, write_report, write_result
from twinloop.report import Report
from twinloop.simulate import open_backend
from twinloop.twin import Twin, load_twin


@dataclass(frozen=True, kw_only=True)
class Identified:
    """A fit and, where episodes were held out, the gap on them before and after."""

    twin: Twin
    log: Log
    result: IdentifyResult
    gap: GapReport | None
    held_out: Sequence[Episode]

    def figures(self) -> dict[str, Any]:
        """Plain figures for result.json; wall-clock seconds included, because a run is not data."""
        return {
            **self.result.to_json(),
            "verb": "identify",
            "twin": describe(self.twin),
            "data": self.log.describe(),
            "gap": None if self.gap is None else self.gap.to_json(),
        }

    def page(self, report: Report, *, target: Sequence[float] | None = None) -> None:
        """Add the sections of a fit; ``target`` is an error per joint to compare with."""
        if self.gap is not None:
            gap_section(report, self.gap, self.twin, self.held_out, self.result.distribution, target=target)
        identify_section(report, self.result)


def fit(twin: Twin, log: Log, holdout: str | None, config: FitConfig | None = None) -> Identified:
    """Fit the training episodes and measure the held-out ones."""
    spec = HoldoutSpec.parse(holdout)
    config = config or FitConfig()
    result = identify(twin, log.episodes, backend=open_backend(), holdout=spec, config=config)
    held = [episode for episode in log.episodes if episode.index in set(result.holdout)]
    training = [episode for episode in log.episodes if episode.index in set(result.training)]
    gap = None
    if held:
        gap = measure_gap(
            twin,
            held,
            backend=open_backend(),
            params=result.distribution,
            options=config.replay,
            training=training,
        )
    return Identified(twin=twin, log=log, result=result, gap=gap, held_out=held)


def run_identify(
    reference: str,
    log: Log,
    output: Path,
    *,
    holdout: str | None,
    console: Console,
    config: FitConfig | None = None,
) -> dict[str, Any]:
    """Print and store what a log says about a twin."""
    twin = load_twin(reference)
    claim_output(output)
    found = fit(twin, log, holdout, config)
    console.print(f"Data: {log.label}")
    console.print(found.result.text(), soft_wrap=True)
    if found.gap is not None:
        console.print("\n" + found.gap.text(), soft_wrap=True)
    result = write_result(output, found.figures())
    page = Report(f"Identification of {found.twin.name}", log.label)
    write_report(page, found.page, output / "report.html", console)
    return result
