"""Success and progress of policies, simulated against real: read, measured, printed and stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.core.trials import Measure, Trials
from twinloop.dataset.trials import read_both
from twinloop.gap.policies import measure_policies
from twinloop.gap.policies_text import policies_text
from twinloop.loop.measured_run import MeasuredRun, Outcome
from twinloop.loop.pages_gap_policies import policies_section


def run_gap_policies(
    trials: Path | None,
    output: Path | None,
    *,
    real: Path | None,
    sim: Path | None,
    level: float,
    seed: int,
    fail_if: Sequence[str],
    console: Console,
) -> Outcome:
    """Print and store where simulated trials of policies differ from real ones.

    Args:
        trials: trials of both domains in one place.
        output: folder for result.json and report.html; None stores nothing.
        real: real trials, where they are kept apart.
        sim: simulated trials.
        level: confidence level.
        seed: of permutations.
        fail_if: conditions on which to exit with 1.
        console: for people.

    Raises:
        InputError: nothing to read, or nothing that was tried in both domains.
    """
    if trials is None and (real is None or sim is None):
        raise InputError("Two sets of trials are compared. Give --real FILE --sim FILE, or one table with both.")
    run = MeasuredRun.begin("gap", "policies", output, fail_if, console)
    known = read_both(real, sim, trials)
    gaps = [measure_policies(known, measure, level=level, seed=seed) for measure in measures_of(known)]
    console.print("\n\n".join(policies_text(gap) for gap in gaps), soft_wrap=True, highlight=False)
    return run.end(
        {"schema": 1, "measures": [gap.to_json() for gap in gaps], "data": known.origin, "seed": seed},
        [figure for gap in gaps for figure in gap.headlines()],
        title="Policies in simulation and in reality",
        subtitle=f"{len(known.real)} real and {len(known.sim)} simulated trials from {known.origin}",
        fill=lambda page: policies_section(page, gaps),
    )


def measures_of(trials: Trials) -> tuple[Measure, ...]:
    """What can be compared: successes where all are told, scores where they say more than successes."""
    if not trials.tells_success:
        return ("score",)
    same = np.array_equal(trials.score, trials.values("success"))
    return ("success",) if same else ("success", "score")
