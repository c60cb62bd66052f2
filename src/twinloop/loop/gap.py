"""Measure a twin against a log: figures, result.json, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.core.distribution import ParamDistribution
from twinloop.core.records import Episode
from twinloop.gap import measure_gap
from twinloop.loop.logs import Log
from twinloop.loop.pages import gap_section
from twinloop.loop.runs import claim_output, write_report, write_result
from twinloop.randomize import read_identified
from twinloop.report import Report
from twinloop.simulate import open_backend
from twinloop.twin import Twin, load_twin


@dataclass(frozen=True, kw_only=True)
class _Split:
    """Which episodes are measured, and which may choose the delay of the baseline."""

    measured: Sequence[Episode]
    training: Sequence[Episode] | None
    note: str


def run_gap(reference: str, log: Log, output: Path, *, params: Path | None, console: Console) -> dict[str, Any]:
    """Print and store the gap between a twin and a log.

    With ``params`` from a run on the same log, only that run's held-out episodes are measured.
    """
    twin = load_twin(reference)
    claim_output(output)
    run = None if params is None else read_identified(params)
    split = _split(log, run)
    distribution = None if run is None else ParamDistribution.from_json(run["distribution"])
    report = measure_gap(twin, split.measured, backend=open_backend(), params=distribution, training=split.training)
    console.print(f"{log.label}; {split.note}")
    console.print(report.text(), soft_wrap=True)
    figures = {**report.to_json(), "verb": "gap", "twin": describe(twin), "data": log.describe(), "note": split.note}
    result = write_result(output, figures)
    page = Report(f"Gap of {twin.name}", f"{log.label}; {split.note}")
    write_report(
        page, lambda p: gap_section(p, report, twin, split.measured, distribution), output / "report.html", console
    )
    return result


def describe(twin: Twin) -> dict[str, str]:
    """Which twin a figure belongs to."""
    return {"name": twin.name, "hash": twin.hash}


def _split(log: Log, run: dict[str, Any] | None) -> _Split:
    if run is None or run.get("data", {}).get("hash") != log.hash:
        return _Split(measured=log.episodes, training=None, note=f"all {len(log.episodes)} episodes")
    held, trained = set(run["holdout"]), set(run["training"])
    if not held:
        return _Split(measured=log.episodes, training=None, note="NOTHING HELD OUT: the episodes that were fitted")
    return _Split(
        measured=[e for e in log.episodes if e.index in held],
        training=[e for e in log.episodes if e.index in trained],
        note=f"{len(held)} held-out episodes of the identify run",
    )
