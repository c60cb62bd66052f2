"""Measure a twin against a log: figures, result.json, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.core.distribution import ParamDistribution
from twinloop.core.records import Episode
from twinloop.gap import GapReport, measure_gap
from twinloop.loop.gap_options import Request
from twinloop.loop.gap_run import GapRun, Outcome
from twinloop.loop.logs import Log
from twinloop.loop.pages import gap_section
from twinloop.loop.pages_gap_dynamics import clips_section, horizon_section, recorded_camera
from twinloop.randomize import read_identified
from twinloop.report import Report
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import Twin, load_twin


@dataclass(frozen=True, kw_only=True)
class Split:
    """Which episodes are measured, and which may choose the delay of the baseline."""

    measured: Sequence[Episode]
    training: Sequence[Episode] | None
    note: str


def run_gap(
    reference: str,
    log: Log,
    output: Path | None,
    *,
    params: Path | None,
    request: Request,
    fail_if: Sequence[str],
    console: Console,
) -> Outcome:
    """Print and store the gap between a twin and a log.

    With ``params`` from a run on the same log, only that run's held-out episodes are measured.
    """
    started = GapRun.begin("dynamics", output, fail_if, console)
    twin = load_twin(reference)
    run = None if params is None else read_identified(params)
    split = held_out_split(log, run)
    distribution = None if run is None else ParamDistribution.from_json(run["distribution"])
    options = request.options(twin, split.measured)
    report = measure_gap(
        twin,
        split.measured,
        backend=open_backend(),
        params=distribution,
        options=options,
        training=split.training,
        repeats=request.repeats,
    )
    console.print(f"{log.label}; {split.note}", soft_wrap=True)
    console.print(report.text(), soft_wrap=True)
    return started.end(
        {**report.to_json(), "twin": describe(twin), "data": log.describe(), "note": split.note}
        | {"params": None if params is None else params.name},
        report.headline(),
        title=f"Gap of {twin.name}",
        subtitle=f"{log.label}; {split.note}",
        fill=lambda page: _fill(page, report, twin, split.measured, distribution, options),
    )


def _fill(
    page: Report,
    report: GapReport,
    twin: Twin,
    episodes: Sequence[Episode],
    params: ParamDistribution | None,
    options: ReplayOptions,
) -> None:
    gap_section(page, report, twin, episodes, params, options=options)
    horizon_section(page, report)
    camera = recorded_camera(episodes)
    clips_section(page, report, twin, episodes, params, options=options, camera=camera)


def describe(twin: Twin) -> dict[str, str]:
    """Which twin a figure belongs to."""
    return {"name": twin.name, "hash": twin.hash}


def held_out_split(log: Log, run: dict[str, Any] | None) -> Split:
    """The held-out episodes of an identify run on the same log; else all of them."""
    if run is None or run.get("data", {}).get("hash") != log.hash:
        return Split(measured=log.episodes, training=None, note=f"all {len(log.episodes)} episodes")
    held, trained = set(run["holdout"]), set(run["training"])
    if not held:
        return Split(measured=log.episodes, training=None, note="NOTHING HELD OUT: the episodes that were fitted")
    return Split(
        measured=[e for e in log.episodes if e.index in held],
        training=[e for e in log.episodes if e.index in trained],
        note=f"{len(held)} held-out episodes of the identify run",
    )
