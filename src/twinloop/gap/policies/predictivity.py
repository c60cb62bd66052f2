"""Measure how well simulated scores of policies predict real ones, by task and over tasks."""

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
from twinloop.stats.ranking import LEAST_POLICIES, PolicyScoreMatrix, PolicyScores, score_intervals

_UNNAMED = "all"
_LABELS = {
    "mmrv": "MMRV",
    "best_agrees": "best agrees",
    "pairwise_accuracy": "pairs right",
    "absolute_gap": "|sim − real|",
}


@dataclass(frozen=True, kw_only=True)
class TaskPredictivity:
    """Scores and metrics of one task; ``real`` and ``sim`` are the means with their intervals ``(P,)``.

    ``violations`` are pairs of policies (better, worse, difference in real score) that the simulation orders
    differently.
    """

    scores: PolicyScores
    result: PredictivityMetrics
    real: Interval
    sim: Interval
    violations: tuple[tuple[str, str, float], ...]

    @property
    def name(self) -> str:
        """The task's name."""
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
    """The metrics of each task, and those of scores averaged over tasks if there are several.

    ``notes`` list omissions with their reasons.
    """

    json_schema = 1

    tasks: tuple[TaskPredictivity, ...]
    average: TaskPredictivity | None
    notes: tuple[str, ...]

    @property
    def main(self) -> TaskPredictivity:
        """The task of the unqualified metrics: the average over tasks, or the only task."""
        return self.average or self.tasks[0]

    def headlines(self) -> list[HeadlineMetric]:
        """Return the headline metrics for `--fail-if` and the run history; those of a task are ``pearson/TASK``, …."""
        rows = [_headline(figure, figure.name) for figure in self.main.result.figures]
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
            _headline(figure, f"{figure.name}/{task.name}") for task in single for figure in task.result.figures
        ]

    def text(self) -> str:
        """Return the report for a terminal."""
        shown = [*self.tasks, *([] if self.average is None else [self.average])]
        parts = [_format_task(task) for task in shown]
        return "\n\n".join(
            [*parts, *(textwrap.fill(note, 110) for note in (*_explain_missing_intervals(shown), *self.notes))]
        )


def scores_by_task(trials: Trials, measure: Measure) -> tuple[tuple[PolicyScores, ...], tuple[str, ...]]:
    """Return scores by task of policies that were tried in both domains, and notes on the others.

    Raises:
        InputError: the measure is success, and a trial has no success value.
    """
    values = trials.values(measure)
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
    """Measure predictivity in every task with enough policies, and for the average over tasks of their common policies.

    Args:
        tables: the scores of each task.
        notes: notes on earlier omissions.
        level: confidence level.
        draws: see `twinloop.stats.predictivity.predictivity`.
        seed: run seed of the draws.

    Raises:
        InputError: no task has three policies with scores in both domains; the message has their number.
    """
    said, tasks = list(notes), []
    for table in tables:
        if len(table.policies) < LEAST_POLICIES:
            said.append(
                f"{len(table.policies)} policies with real and simulated scores{_format_task_suffix(table.task)}: too "
                "few for "
                f"predictivity, which needs {LEAST_POLICIES}."
            )
        else:
            tasks.append(_measure_task(table, level, draws, seed))
    average = _average_scores(tables)
    if not tasks and average is None:
        most = max((len(table.policies) for table in tables), default=0)
        raise InputError(
            f"Predictivity needs at least {LEAST_POLICIES} policies with scores in both; here there "
            f"{'is' if most == 1 else 'are'} {most}. Score more policies (checkpoints of one training suffice), or "
            "compare each policy's success with 'twinloop gap policies'."
        )
    return PredictivityReport(
        tasks=tuple(tasks),
        average=None if average is None else _measure_task(average, level, draws, seed),
        notes=tuple(said),
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
    if len(common) < LEAST_POLICIES:
        return None
    rows = [[table.policies.index(policy) for policy in common] for table in tables]
    real, sim = (
        PolicyScoreMatrix.average_tasks(
            [getattr(table, side).select_policies(at) for table, at in zip(tables, rows, strict=True)]
        )
        for side in ("real", "sim")
    )
    return PolicyScores(policies=tuple(common), real=real, sim=sim, task=f"average of {len(tables)} tasks")


def _headline(figure: PredictivityMetric, name: str) -> HeadlineMetric:
    interval = figure.others if np.isfinite(figure.others.low) else figure.these
    return HeadlineMetric(
        name=name,
        estimate=figure.estimate,
        low=float(interval.low),
        high=float(interval.high),
        level=interval.level,
        better=figure.better,
        method=figure.reason or f"{interval.method}; of {'these' if interval is figure.these else 'such'} policies",
        meaning=figure.meaning,
    )


def format_label(name: str) -> str:
    """Return a metric's name as tables show it."""
    return _LABELS.get(name, name.replace("_", " "))


def _format_task(task: TaskPredictivity) -> str:
    n = len(task.scores.policies)
    percent = f"{task.real.level:.0%}"
    lines = [
        f"{n} policies{_format_task_suffix(task.scores.task)}: simulated against real scores",
        f"{percent + ' interval':<18}{'value':>8}{'without noise':>15}{'these policies':>22}{'such policies':>22}",
    ]
    lines += [
        f"{format_label(figure.name):<18}{_format_number(figure.estimate):>8}{_format_number(figure.corrected):>15}"
        f"{_format_interval(figure.these):>22}{_format_interval(figure.others):>22}"
        for figure in task.result.figures
    ]
    reasons = dict.fromkeys(figure.reason for figure in task.result.figures if figure.reason)
    lines += [f"No metric: {reason}" for reason in reasons]
    lines.append(f"probability that the first in simulation is the best in reality: {task.result.best_policy:.2f}")
    for better, worse, lost in task.violations[:3]:
        lines.append(f"wrong order: {better} beats {worse} by {lost:.3f} in reality, and not in simulation")
    return "\n".join(lines)


def _explain_missing_intervals(tasks: Sequence[TaskPredictivity]) -> list[str]:
    """Return the reasons for missing intervals, each once."""
    found: dict[str, dict[str, None]] = {}
    for figure in (figure for task in tasks for figure in task.result.figures if not figure.reason):
        for interval, of in ((figure.these, "these"), (figure.others, "such")):
            if np.isnan(interval.low):
                found.setdefault(f"of {of} policies: {interval.method}", {})[format_label(figure.name)] = None
    return [f"No interval of {', '.join(names)} {why}." for why, names in found.items()]


def _format_number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3f}"


def _format_interval(interval: Interval) -> str:
    return "–" if np.isnan(interval.low) else f"[{interval.low:.3f}, {interval.high:.3f}]"


def _format_task_suffix(task: str) -> str:
    return f" in task {task}" if task and not task.startswith("average of") else f" ({task})" if task else ""
