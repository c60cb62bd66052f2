"""Measure how well the simulated scores of policies predict their real scores, per task and averaged over tasks."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.core.plain import JsonRecord
from twinloop.core.trials import Measure, Trials
from twinloop.stats import Interval, ranking
from twinloop.stats.predictivity import PredictivityMetric, PredictivityMetrics, predictivity
from twinloop.stats.ranking import MIN_POLICIES, PolicyScoreMatrix, PolicyScores, score_intervals

_UNNAMED = "all"
_LABELS = {
    "mmrv": "MMRV",
    "best_agrees": "best agrees",
    "pairwise_accuracy": "pairs right",
    "absolute_gap": "|sim − real|",
}


@dataclass(frozen=True, kw_only=True)
class TaskPredictivity:
    """Scores of several policies in one task, and how well simulation predicts the real ones.

    Attributes:
        scores: Trial scores of each policy in both domains.
        result: Metrics of predictivity, such as correlation and rank order.
        real: Mean real score per policy with its interval, shape ``(npolicy,)``.
        sim: Mean simulated score per policy with its interval, shape ``(npolicy,)``.
        violations: Pairs of policies that simulation ranks in the wrong order: better one, worse one, and the
            difference of their real scores.
    """

    scores: PolicyScores
    result: PredictivityMetrics
    real: Interval
    sim: Interval
    violations: tuple[tuple[str, str, float], ...]

    @property
    def name(self) -> str:
        """The task's name; ``all`` if it has none."""
        return self.scores.task or _UNNAMED

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "task": self.name,
            "policies": list(self.scores.policies),
            "real": self.real.to_json() | {"trials": self.scores.real.trials.tolist()},
            "sim": self.sim.to_json() | {"trials": self.scores.sim.trials.tolist()},
            "violations": [{"better": a, "worse": b, "real_difference": c} for a, b, c in self.violations],
            **self.result.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class PredictivityReport(JsonRecord):
    """Predictivity (how well simulated scores of policies predict their real scores) in each task and on average.

    Attributes:
        tasks: Results of the tasks with enough policies.
        average: Result for scores averaged over tasks; None for a single task or too few common policies.
        notes: Omitted policies and tasks, with the reasons.
    """

    json_schema = 1

    tasks: tuple[TaskPredictivity, ...]
    average: TaskPredictivity | None
    notes: tuple[str, ...]

    @property
    def main(self) -> TaskPredictivity:
        """Result that the headline metrics without a task name report: the average over tasks, or the only task."""
        return self.average or self.tasks[0]

    def headlines(self) -> list[HeadlineMetric]:
        """Return the headline metrics for `--fail-if` and the run history.

        If there are several tasks, the metrics of each task follow, with names such as ``pearson/TASK``.
        """
        rows = [_headline(metric, metric.name) for metric in self.main.result.metrics]
        rows.append(
            HeadlineMetric(
                name="best_policy",
                estimate=self.main.result.best_policy,
                better="higher",
                method="no interval of a probability",
                meaning="probability that the policy which the simulation ranks first is the best of these in reality",
            )
        )
        single = self.tasks if self.average is not None else ()
        return rows + [
            _headline(metric, f"{metric.name}/{task.name}") for task in single for metric in task.result.metrics
        ]

    def text(self) -> str:
        """Return the report for a terminal."""
        shown = [*self.tasks, *([] if self.average is None else [self.average])]
        parts = [_format_task(task) for task in shown]
        return "\n\n".join(
            [*parts, *(textwrap.fill(note, 110) for note in (*_explain_missing_intervals(shown), *self.notes))]
        )


def scores_by_task(trials: Trials, measure: Measure) -> tuple[tuple[PolicyScores, ...], tuple[str, ...]]:
    """Return the scores of policies by task, and notes on omitted policies.

    A policy is omitted from a task if it was tried in one domain only.

    Raises:
        InputError: If the measure is success, and a trial has no success value.
    """
    values = trials.select_measure(measure)
    samples: dict[str, dict[str, dict[str, list[float]]]] = {}
    for task, policy, domain, value in zip(trials.task, trials.policy, trials.domain, values, strict=True):
        samples.setdefault(task, {}).setdefault(policy, {}).setdefault(domain, []).append(float(value))
    notes, tables = [], []
    for task, policies in samples.items():
        both = {policy: sides for policy, sides in policies.items() if len(sides) == 2}
        alone = policies.keys() - both.keys()
        notes += [
            f"{policy} was tried in one domain only{_format_task_suffix(task)} and is left out there."
            for policy in alone
        ]
        if both:
            real, sim = (PolicyScoreMatrix.of_trials([both[p][domain] for p in both]) for domain in ("real", "sim"))
            tables.append(PolicyScores(policies=tuple(both), real=real, sim=sim, task=task))
    return tuple(tables), tuple(sorted(notes))


def measure_predictivity(
    tables: Sequence[PolicyScores], *, notes: Sequence[str] = (), level: float = 0.95, draws: int = 4000, seed: int = 0
) -> PredictivityReport:
    """Measure predictivity in every task with enough policies, and for the average over tasks.

    The average uses the policies that all tasks have in common.

    Args:
        tables: Scores of each task, as returned by `scores_by_task`.
        notes: Notes on earlier omissions, repeated in the report.
        level: Confidence level.
        draws: Number of resamples, see `twinloop.stats.predictivity.predictivity`.
        seed: Seed of the resamples.

    Raises:
        InputError: If no task has three policies with scores in both domains; the message gives the number found.
    """
    all_notes, tasks = list(notes), []
    for table in tables:
        if len(table.policies) < MIN_POLICIES:
            all_notes.append(
                f"{len(table.policies)} policies with real and simulated scores{_format_task_suffix(table.task)}: too "
                "few for "
                f"predictivity, which needs {MIN_POLICIES}."
            )
        else:
            tasks.append(_measure_task(table, level, draws, seed))
    average = _average_scores(tables)
    if not tasks and average is None:
        most = max((len(table.policies) for table in tables), default=0)
        raise InputError(
            f"Predictivity needs at least {MIN_POLICIES} policies with real and simulated scores; "
            f"there {'is' if most == 1 else 'are'} {most}. Score more policies (checkpoints of one training "
            "suffice), or compare each policy's success with 'twinloop gap policies'."
        )
    return PredictivityReport(
        tasks=tuple(tasks),
        average=None if average is None else _measure_task(average, level, draws, seed),
        notes=tuple(all_notes),
    )


def _measure_task(table: PolicyScores, level: float, draws: int, seed: int) -> TaskPredictivity:
    found = ranking.violations(real=table.real.mean, sim=table.sim.mean)
    return TaskPredictivity(
        scores=table,
        result=predictivity(real=table.real, sim=table.sim, level=level, draws=draws, seed=seed),
        real=score_intervals(table.real, level=level),
        sim=score_intervals(table.sim, level=level),
        violations=tuple((table.policies[i], table.policies[j], lost) for i, j, lost in found),
    )


def _average_scores(tables: Sequence[PolicyScores]) -> PolicyScores | None:
    if len(tables) < 2:
        return None
    common = [p for p in tables[0].policies if all(p in table.policies for table in tables)]
    if len(common) < MIN_POLICIES:
        return None
    rows = [[table.policies.index(policy) for policy in common] for table in tables]
    real, sim = (
        PolicyScoreMatrix.average_tasks(
            [getattr(table, side).select_policies(at) for table, at in zip(tables, rows, strict=True)]
        )
        for side in ("real", "sim")
    )
    return PolicyScores(policies=tuple(common), real=real, sim=sim, task=f"average of {len(tables)} tasks")


def _headline(metric: PredictivityMetric, name: str) -> HeadlineMetric:
    interval = metric.population if np.isfinite(metric.population.low) else metric.evaluated
    return HeadlineMetric(
        name=name,
        estimate=metric.estimate,
        low=float(interval.low),
        high=float(interval.high),
        level=interval.level,
        better=metric.better,
        method=metric.reason or f"{interval.method}; of {'these' if interval is metric.evaluated else 'such'} policies",
        meaning=metric.meaning,
    )


def format_label(name: str) -> str:
    """Return the label of a metric for tables, such as ``MMRV`` for ``mmrv`` (mean maximum rank violation)."""
    return _LABELS.get(name, name.replace("_", " "))


def _format_task(task: TaskPredictivity) -> str:
    n = len(task.scores.policies)
    percent = f"{task.real.level:.0%}"
    lines = [
        f"{n} policies{_format_task_suffix(task.scores.task)}: simulated against real scores",
        f"{percent + ' interval':<18}{'value':>8}{'without noise':>15}{'these policies':>22}{'such policies':>22}",
    ]
    lines += [
        f"{format_label(metric.name):<18}{_format_number(metric.estimate):>8}{_format_number(metric.corrected):>15}"
        f"{_format_interval(metric.evaluated):>22}{_format_interval(metric.population):>22}"
        for metric in task.result.metrics
    ]
    reasons = dict.fromkeys(metric.reason for metric in task.result.metrics if metric.reason)
    lines += [f"No metric: {reason}" for reason in reasons]
    lines.append(f"probability that the first in simulation is the best in reality: {task.result.best_policy:.2f}")
    for better, worse, lost in task.violations[:3]:
        lines.append(f"wrong order: {better} beats {worse} by {lost:.3f} in reality, and not in simulation")
    return "\n".join(lines)


def _explain_missing_intervals(tasks: Sequence[TaskPredictivity]) -> list[str]:
    """Return one sentence per reason for missing intervals."""
    found: dict[str, dict[str, None]] = {}
    for metric in (metric for task in tasks for metric in task.result.metrics if not metric.reason):
        for interval, of in ((metric.evaluated, "these"), (metric.population, "such")):
            if np.isnan(interval.low):
                found.setdefault(f"of {of} policies: {interval.method}", {})[format_label(metric.name)] = None
    return [f"No interval of {', '.join(names)} {why}." for why, names in found.items()]


def _format_number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3f}"


def _format_interval(interval: Interval) -> str:
    return "–" if np.isnan(interval.low) else f"[{interval.low:.3f}, {interval.high:.3f}]"


def _format_task_suffix(task: str) -> str:
    return f" in task {task}" if task and not task.startswith("average of") else f" ({task})" if task else ""
