"""Real scores from few real and many simulated trials: words, result.json, report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from twinloop.dataset.trials import read_trials
from twinloop.gap.estimate import RealEstimate, estimate_real
from twinloop.loop.measured_run import MeasuredRun, Outcome
from twinloop.loop.pages_gap_comparison import estimate_section
from twinloop.stats import Interval


def run_gap_estimate(
    trials: Path,
    output: Path | None,
    *,
    measure: str,
    level: float,
    seed: int,
    fail_if: Sequence[str],
    console: Console,
) -> Outcome:
    """Print and store every policy's real score with simulation's help.

    Args:
        trials: a table, dataset or folder of real and simulated trials.
        output: folder for result.json and report.html; None stores nothing.
        measure: ``success``, ``score`` or ``auto``.
        level: confidence level.
        seed: of resamples.
        fail_if: conditions on which to exit with 1.
        console: for people.
    """
    run = MeasuredRun.begin("gap", "estimate", output, fail_if, console)
    found = estimate_real(read_trials(trials), measure=measure, level=level, seed=seed)
    _print(console, found)
    return run.end(
        {**found.to_json(), "trials": str(trials), "data": str(trials)},
        found.headline(),
        title="Real scores with simulation's help",
        subtitle=str(trials),
        fill=lambda page: estimate_section(page, found),
    )


def _print(console: Console, found: RealEstimate) -> None:
    table = Table("policy", "pairs", "sim only", "real alone", "with simulation", "correlation", "trials saved")
    for row in found.policies:
        table.add_row(
            row.policy, str(row.pairs), str(row.more), _ends(row.alone), _ends(row.combined),
            "–" if math.isnan(row.correlation) else f"{row.correlation:.2f}", _ends(row.saved, digits=0),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"Real {found.measure} and {100 * found.level:g} % intervals that hold for any number of trials. Trials saved: "
        "real trials that the simulated ones are worth as samples grow.",
        soft_wrap=True,
    )
    for row in found.policies:
        if row.narrower <= 0:
            console.print(
                f"{row.policy}: with so few pairs simulation does not narrow the interval; rely on the real trials "
                "alone.",
                soft_wrap=True,
            )
        for note in row.notes:
            console.print(f"{row.policy}: {note}", soft_wrap=True)
    for policy, why in found.left_out.items():
        console.print(f"Left out: {policy} {why}.", soft_wrap=True)


def _ends(interval: Interval, *, digits: int = 3) -> str:
    low, high = float(interval.low), float(interval.high)
    ends = "" if low != low else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{float(interval.estimate):.{digits}f}{ends}"
