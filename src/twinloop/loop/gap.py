"""Measure a twin against a log: figures, result.json, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, LogError
from twinloop.core.records import Episode
from twinloop.gap import GapReport, measure_gap
from twinloop.loop.gap_options import Request
from twinloop.loop.gap_split import describe, held_out_split
from twinloop.loop.gap_why import Why, explain
from twinloop.loop.logs import Log
from twinloop.loop.measured_run import MeasuredRun, Outcome
from twinloop.loop.pages import gap_section, gap_tables_section
from twinloop.loop.pages_gap_dynamics import clips_section, horizon_section, recorded_camera
from twinloop.loop.pages_gap_why import why_section
from twinloop.randomize import read_identified
from twinloop.report import Report
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import Twin, load_twin


def run_gap(
    reference: str,
    log: Log,
    output: Path | None,
    *,
    params: Path | None,
    request: Request,
    why: bool = True,
    fail_if: Sequence[str],
    console: Console,
) -> Outcome:
    """Print and store the gap between a twin and a log.

    With ``params`` from a run on the same log, only that run's held-out episodes are measured, and with ``why`` the
    nominal twin's error is shared out among groups of parameters.
    """
    started = MeasuredRun.begin("gap", "dynamics", output, fail_if, console)
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
    reason, unsaid = None, ""
    if why and distribution is not None:
        try:
            reason = explain(
                twin,
                split.measured,
                distribution,
                backend=open_backend(),
                options=options,
                note=split.note,
                names=(reference, log.name),
            )
        except (InputError, LogError) as error:  # the gap is measured all the same
            unsaid = f"Why the twin errs is not told: {error}"
        console.print("\n" + (reason.text() if reason else unsaid), soft_wrap=True)
    return started.end(
        {**report.to_json(), "twin": describe(twin), "data": log.describe(), "note": split.note}
        | {"params": None if params is None else params.name}
        | {"why": None if reason is None else reason.to_json(), "why_not": unsaid or None},
        [*report.headline(), *(reason.headline() if reason else [])],
        title=f"Gap of {twin.name}",
        subtitle=f"{log.label}; {split.note}",
        fill=lambda page: _fill(page, report, twin, split.measured, distribution, options, reason, unsaid),
    )


def _fill(
    page: Report,
    report: GapReport,
    twin: Twin,
    episodes: Sequence[Episode],
    params: ParamDistribution | None,
    options: ReplayOptions,
    why: Why | None,
    unsaid: str,
) -> None:
    gap_section(page, report, twin, episodes, params, options=options)
    horizon_section(page, report)
    if why is not None:
        why_section(page, why.sentences(), why.attribution, why.where, why.moved)
    elif unsaid:
        page.text(unsaid)
    camera = recorded_camera(episodes)
    clips_section(page, report, twin, episodes, params, options=options, camera=camera)
    gap_tables_section(page, report)
