"""How well simulated scores predict real ones: read, measured, printed and stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.core.trials import Measure, Trials
from twinloop.dataset.trials import read_both
from twinloop.dataset.trials_scores import is_score_table, scores_of_rows
from twinloop.dataset.trials_table import read_rows
from twinloop.gap.predictivity import PredictivityReport, measure_predictivity, scores_by_task
from twinloop.loop.measured_run import MeasuredRun, Outcome
from twinloop.loop.pages_gap_policies import predictivity_section
from twinloop.stats.ranking_scores import PolicyScores

Asked = Literal["auto", "success", "score"]


def run_gap_predictivity(
    scores: Path | None,
    output: Path | None,
    *,
    real: Path | None,
    sim: Path | None,
    measure: Asked,
    level: float,
    seed: int,
    fail_if: Sequence[str],
    console: Console,
) -> Outcome:
    """Print and store how well simulated scores predict real ones.

    Args:
        scores: trials or means of both domains in one place.
        output: folder for result.json and report.html; None stores nothing.
        real: real trials, where they are kept apart.
        sim: simulated trials.
        measure: what of a trial is compared.
        level: confidence level.
        seed: of the draws behind the intervals.
        fail_if: conditions on which to exit with 1.
        console: for people.

    Raises:
        InputError: nothing to read, a table that cannot be read, or too few policies.
    """
    run = MeasuredRun.begin("gap", "predictivity", output, fail_if, console)
    tables, notes, data = _read(scores, real, sim, measure)
    report = measure_predictivity(tables, notes=notes, level=level, seed=seed)
    console.print(report.text(), soft_wrap=True, highlight=False)
    return run.end(
        {**report.to_json(), "data": data, "seed": seed, "measure": measure},
        report.headlines(),
        title="How well simulation predicts reality",
        subtitle=f"{_policies(report)} policies from {data}",
        fill=lambda page: predictivity_section(page, report),
    )


def chosen_measure(trials: Trials, asked: Asked) -> Measure:
    """What to compare where it was left open: successes where every trial tells them."""
    if asked != "auto":
        return asked
    return "success" if trials.tells_success else "score"


def _read(
    scores: Path | None, real: Path | None, sim: Path | None, asked: Asked
) -> tuple[tuple[PolicyScores, ...], tuple[str, ...], str]:
    if scores is None and real is None and sim is None:
        raise InputError("There is nothing to compare. Give a table of scores, or --real FILE --sim FILE.")
    if scores is not None and scores.is_file():
        rows = read_rows(scores)
        if is_score_table(rows):
            if real is not None or sim is not None:
                raise InputError(f"{scores} holds means of both domains already. Leave --real and --sim out.")
            return scores_of_rows(rows, where=str(scores)), (), str(scores)
    trials = read_both(real, sim, scores)
    tables, notes = scores_by_task(trials, chosen_measure(trials, asked))
    return tables, notes, trials.origin


def _policies(report: PredictivityReport) -> int:
    return len(report.main.scores.policies)
