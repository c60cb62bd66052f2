"""Compare policies in simulation and reality (`twinloop gap policies`, `gap predictivity`).

`gap policies` measures differences of success and score; `gap predictivity` measures how well simulated scores predict
real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.core.trials import Measure, Trials
from twinloop.dataset.trials import read_both_domains
from twinloop.dataset.trials_table import is_score_table, read_rows, rows_to_scores
from twinloop.gap.policies.gap_rows import GapRow
from twinloop.gap.policies.measure import ALPHA, MeasureGap, format_drivers, format_policies, measure_policies
from twinloop.gap.policies.predictivity import (
    PredictivityReport,
    TaskPredictivity,
    format_label,
    measure_predictivity,
    scores_by_task,
)
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.gap_policies import plot_gap_rows, plot_score_scatter
from twinloop.stats import Interval
from twinloop.stats.ranking import PolicyScores
from twinloop.workflows.gap.requests import GapPoliciesRequest, GapPredictivityRequest
from twinloop.workflows.run.results import MeasuredRun, Outcome

_KEY = ("pearson", "mmrv", "pairwise_accuracy", "bias")


def predictivity_section(page: ReportPage, report: PredictivityReport) -> None:
    """Add to a report key metrics, a scatter plot of scores, all metrics with intervals, and wrongly ordered pairs."""
    main = report.main
    page.section(
        "Does a better score in simulation mean a better score in reality?",
        f"{len(main.scores.policies)} policies were scored in both. If simulation predicts reality, the dots below "
        "rise together: the policy that wins in simulation wins on the robot too. They need not be on the dotted "
        "line for that; a simulation that is equally too easy for all policies still ranks them well.",
    )
    page.key_metrics([_predictivity_metric(main, name) for name in _KEY] + [_best_policy_metric(main)])
    shown = [*([] if report.average is None else [report.average]), *report.tasks]
    for task in shown:
        _task_section(page, task, alone=len(shown) == 1)
    _explain_intervals(page, report)


def _task_section(page: ReportPage, task: TaskPredictivity, *, alone: bool) -> None:
    if not alone:
        page.section(task.name[:1].upper() + task.name[1:])
    scores = task.scores
    page.plot(
        plot_score_scatter(
            scores.policies,
            scores.real.mean,
            scores.sim.mean,
            real_ends=(task.real.low, task.real.high),
            sim_ends=(task.sim.low, task.sim.high),
            violations=[(better, worse) for better, worse, _ in task.violations],
        ),
        f"A dot per policy; bars are {task.real.level:.0%} intervals from its trials"
        + (
            ""
            if scores.real.has_trial_counts and scores.sim.has_trial_counts
            else " (none where their number is unknown)"
        )
        + ". An orange line joins two policies that simulation puts in the wrong order.",
    )
    page.table(
        ["metric", "value", "without noise of trials", "of these policies", "of such policies", "meaning"],
        [
            [
                format_label(f.name),
                f.estimate,
                f.corrected,
                _format_interval(f.evaluated),
                _format_interval(f.population),
                f.reason or f.meaning,
            ]
            for f in task.result.metrics
        ],
        caption=f"Intervals at {task.real.level:.0%}.",
    )
    if task.violations:
        page.table(
            ["better in reality", "not so in simulation against", "real score at stake"],
            [list(row) for row in task.violations],
            caption="Pairs that simulation orders otherwise, the costliest first.",
        )
    else:
        page.text("Simulation orders every pair of these policies as reality does.")


def _explain_intervals(page: ReportPage, report: PredictivityReport) -> None:
    real, sim = report.main.result.noise_share
    page.section(
        "How to read the two intervals",
        "“These policies” is the interval of the metric for exactly these policies with unlimited trials: more "
        "trials narrow it. “Such policies” is the interval for further policies of this kind: only more "
        "policies narrow it, and with three or four it is wide. Both assume that true "
        "scores are normally distributed; docs/evidence/compare_policies.md has their coverage for others.\n\n"
        f"Of the spread of the scores shown, about {real:.0%} (real) and {sim:.0%} (simulated) is noise of few "
        "trials. Noise reduces a correlation and makes wrong orders more frequent, so the table has the value "
        "as published and the median value without this noise.",
    )
    for note in report.notes:
        page.text(note)


def _predictivity_metric(task: TaskPredictivity, name: str) -> KeyMetric:
    metric = task.result[name]
    interval = metric.population if np.isfinite(metric.population.low) else metric.evaluated
    return KeyMetric(
        label={"pearson": "correlation (Pearson)", "bias": "simulated − real"}.get(
            metric.name, format_label(metric.name)
        ),
        value=metric.estimate,
        source=metric.reason or f"{interval.level:.0%} of such policies: {_format_interval(interval)}",
    )


def _best_policy_metric(task: TaskPredictivity) -> KeyMetric:
    first = task.scores.policies[int(np.argmax(task.scores.sim.mean))]
    return KeyMetric(
        label="the first is the best",
        value=task.result.best_policy,
        source=f"chance that {first}, first in simulation, is truly the best of these in reality",
    )


def _format_interval(interval: Interval) -> str:
    return "–" if np.isnan(interval.low) else f"{interval.low:.3f} to {interval.high:.3f}"


def policies_section(page: ReportPage, gaps: Sequence[MeasureGap]) -> None:
    """Add to a report the difference between simulated and real scores: overall, by policy, by condition, and by both.

    Args:
        page: the report.
        gaps: the differences, one for each measure (success or score).
    """
    for gap in gaps:
        word = "success rate" if gap.measure == "success" else "score"
        page.section(
            f"Does simulation show the same {word} as reality?",
            f"The same policies were tried in both. A difference above zero means that simulation is too easy: "
            f"policies look better there than on the robot. Differences are taken within conditions, so that it does "
            f"not matter how often each was tried. {format_drivers(gap)}",
        )
        page.key_metrics([_overall_metric(gap, word), *_differing_conditions_metric(gap)])
        for rows, title in ((gap.conditions, "By condition"), (gap.policies, "By policy")):
            if len(rows) > 1:
                page.text(f"{title}:")
                page.plot(
                    _rows_plot(rows, word),
                    f"Bars are {_format_level(gap)} intervals; orange where the difference is "
                    f"shown at {ALPHA:.0%} with all {len(rows)} tested together (Holm).",
                )
        if len(gap.conditions) > 1:
            page.table(*_rows_table((gap.overall, *gap.conditions)), caption="Overall and by condition.")
            page.table(*_rows_table(gap.cells), caption="Each policy in each condition, all tested together.")
        else:
            page.table(*_rows_table((gap.overall, *gap.policies)), caption="Overall and by policy.")
        page.text("\n\n".join(gap.notes))


def _overall_metric(gap: MeasureGap, word: str) -> KeyMetric:
    d = gap.overall.difference
    return KeyMetric(
        label=f"simulated − real {word}",
        value=float(d.estimate),
        source=f"{_format_level(gap)}: {_format_interval(d)}; {d.method}",
    )


def _differing_conditions_metric(gap: MeasureGap) -> list[KeyMetric]:
    if len(gap.conditions) < 2:
        return []
    text = f"{len(gap.significant_conditions)} of {len(gap.conditions)}"
    return [KeyMetric(label="conditions that differ", value=text, source=f"Holm's test at {ALPHA:.0%}")]


def _rows_plot(rows: Sequence[GapRow], word: str) -> Any:
    return plot_gap_rows(
        [row.name for row in rows],
        [float(row.difference.estimate) for row in rows],
        ([float(row.difference.low) for row in rows], [float(row.difference.high) for row in rows]),
        significant=[row.p_holm <= ALPHA for row in rows],
        unit=word,
    )


def _rows_table(rows: Sequence[GapRow]) -> tuple[list[str], list[list[str | float | int | None]]]:
    head = [
        "",
        "real",
        "trials",
        "simulated",
        "trials",
        "simulated − real",
        "interval",
        "p",
        "adjusted p",
        "adds",
        "test",
    ]
    body = [
        [
            row.name,
            row.real,
            row.trials_real,
            row.sim,
            row.trials_sim,
            float(row.difference.estimate),
            _format_interval(row.difference),
            row.p_value,
            row.p_holm,
            row.contribution,
            row.test + (f"; {row.note}" if row.note else ""),
        ]
        for row in rows
    ]
    return head, body


def _format_level(gap: MeasureGap) -> str:
    return f"{gap.overall.difference.level:.0%}"


def run_gap_policies(request: GapPoliciesRequest, console: Console) -> Outcome:
    """Compare simulated and real trials of policies; print and store the differences.

    Raises:
        InputError: If trials of a domain are missing, or no policy was tried in both domains.
    """
    if request.trials is None and (request.real is None or request.sim is None):
        raise InputError("Two sets of trials are compared. Give --real FILE --sim FILE, or one table with both.")
    run = MeasuredRun.begin("gap", "policies", request.output, request.fail_if, console)
    known = read_both_domains(request.real, request.sim, request.trials)
    gaps = [
        measure_policies(known, measure, level=request.level, seed=request.seed) for measure in list_measures(known)
    ]
    console.print("\n\n".join(format_policies(gap) for gap in gaps), soft_wrap=True, highlight=False)
    return run.end(
        {"schema": 1, "measures": [gap.to_json() for gap in gaps], "data": known.origin, "seed": request.seed},
        [metric for gap in gaps for metric in gap.headlines()],
        title="Policies in simulation and in reality",
        subtitle=f"{len(known.real)} real and {len(known.sim)} simulated trials from {known.origin}",
        fill=lambda page: policies_section(page, gaps),
    )


def list_measures(trials: Trials) -> tuple[Measure, ...]:
    """Return the measures to compare.

    They are success if every trial has an outcome, and the score if it differs from success.
    """
    if not trials.has_outcomes:
        return ("score",)
    same = np.array_equal(trials.score, trials.select_measure("success"))
    return ("success",) if same else ("success", "score")


RequestedMeasure = Literal["auto", "success", "score"]


def run_gap_predictivity(request: GapPredictivityRequest, console: Console) -> Outcome:
    """Measure how well simulated scores predict real ones; print and store the result.

    Raises:
        InputError: If no scores are given, a table cannot be read, or there are too few policies.
    """
    run = MeasuredRun.begin("gap", "predictivity", request.output, request.fail_if, console)
    tables, notes, data = _read_scores(request.scores, request.real, request.sim, request.measure)
    report = measure_predictivity(tables, notes=notes, level=request.level, seed=request.seed)
    console.print(report.text(), soft_wrap=True, highlight=False)
    return run.end(
        {**report.to_json(), "data": data, "seed": request.seed, "measure": request.measure},
        report.headlines(),
        title="How well simulation predicts reality",
        subtitle=f"{len(report.main.scores.policies)} policies from {data}",
        fill=lambda page: predictivity_section(page, report),
    )


def choose_measure(trials: Trials, requested: RequestedMeasure) -> Measure:
    """Return the measure to compare.

    Args:
        trials: the trials.
        requested: the requested measure; ``auto`` chooses success if every trial has an outcome, else the score.
    """
    if requested != "auto":
        return requested
    return "success" if trials.has_outcomes else "score"


def _read_scores(
    scores: Path | None, real: Path | None, sim: Path | None, measure: RequestedMeasure
) -> tuple[tuple[PolicyScores, ...], tuple[str, ...], str]:
    if scores is None and real is None and sim is None:
        raise InputError("There is nothing to compare. Give a table of scores, or --real FILE --sim FILE.")
    if scores is not None and scores.is_file():
        rows = read_rows(scores)
        if is_score_table(rows):
            if real is not None or sim is not None:
                raise InputError(f"{scores} already contains means of both domains. Leave --real and --sim out.")
            return rows_to_scores(rows, where=str(scores)), (), str(scores)
    trials = read_both_domains(real, sim, scores)
    tables, notes = scores_by_task(trials, choose_measure(trials, measure))
    return tables, notes, trials.origin
