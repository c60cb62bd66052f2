"""Summarize an evaluation: every slice with its exact interval, the mean over trials, and the worst slice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.evaluation import Evaluation
from twinloop.core.headline import HeadlineMetric
from twinloop.core.plain import JsonRecord
from twinloop.stats import Interval, clopper_pearson
from twinloop.stats.interval import check_level

OVERALL, WORST, SUCCESS = "overall", "worst", "success"
_COLUMNS = ("progress", "time_s", "smoothness", "peak_force_n", "violations")


@dataclass(frozen=True, kw_only=True)
class SliceSummary(JsonRecord):
    """Summary of one slice.

    ``success`` is the exact interval of its rate; invalid trials count as failures, and ``invalid`` is their number.
    Metrics are NaN if no trial has one: ``progress`` is a mean in which invalid trials count 0, ``time_s`` the median
    over valid successes, ``smoothness`` and ``peak_force_n`` medians over valid trials. ``peak_force_most_n`` is the
    largest force and ``violating`` the share of trials that violate a safety limit; both are of all trials, because a
    violation in an invalid trial still happened.
    """

    name: str
    success: Interval
    successes: int
    trials: int
    invalid: int
    progress: float
    time_s: float
    smoothness: float
    peak_force_n: float
    peak_force_most_n: float
    violating: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EvaluationSummary(JsonRecord):
    """Summary of an evaluation, with ``slices`` from the worst success rate to the best.

    ``overall`` is the rate over all trials. Slices are independent of each other, so the exact interval of a mean of
    rates is conservative (Hoeffding, Ann. Math. Stat. 27, 1956). ``worst`` is the lowest rate of all slices. Its
    interval is made of the intervals of all slices at level 1 − α / slices, from the lowest lower end to the lowest
    upper end. With a probability of at least 1 − α all of these contain their rates at once (Bonferroni; slices may
    depend on each other), and then the interval contains the lowest of the true rates, whichever slice that is.
    """

    policy: str
    suite: str
    level: float
    trials: int
    invalid: int
    violating: float
    overall: Interval
    worst: Interval
    slices: tuple[SliceSummary, ...]

    @classmethod
    def of(cls, evaluation: Evaluation, *, level: float = 0.95) -> EvaluationSummary:
        """Return the summary of an evaluation.

        Raises:
            InputError: the level is outside (0, 1).
        """
        check_level(level)
        rows = {name: np.asarray(evaluation.trials[name]) for name in ("slice", "success", "valid")}
        numbers = {name: _read_floats(evaluation, name) for name in _COLUMNS}
        reasons = np.asarray(evaluation.trials["reason"].to_pylist(), dtype=object)
        won = rows["success"].astype(bool) & rows["valid"].astype(bool)
        found: list[SliceSummary] = []
        for name in evaluation.slices:
            here = rows["slice"] == name
            there = {key: values[here] for key, values in numbers.items()}
            lost = ~rows["valid"][here].astype(bool)
            found.append(_summarize_slice(name, won[here], lost, there, reasons[here][lost].tolist(), level))
        found.sort(key=lambda item: (float(item.success.estimate), np.nan_to_num(item.progress), item.name))
        return cls(
            policy=evaluation.policy,
            suite=evaluation.suite,
            level=level,
            slices=tuple(found),
            overall=clopper_pearson(int(won.sum()), len(won), level=level),
            worst=compute_worst_rate([(item.successes, item.trials) for item in found], level=level),
            trials=len(won),
            invalid=sum(item.invalid for item in found),
            violating=_reduce_known(np.mean, _mark_violating(numbers["violations"])),
        )

    def headline(self) -> list[HeadlineMetric]:
        """Return the headline metrics for `--fail-if` and the run history: success, worst slice, and every slice."""
        figures = [
            self.overall.headline(SUCCESS, better="higher", meaning="success rate over all trials"),
            self.worst.headline(WORST, better="higher", meaning="lowest success rate of all slices"),
        ]
        figures += [item.success.headline(f"{SUCCESS}/{item.name}", better="higher") for item in self.slices]
        shares = {"invalid": self.invalid / self.trials, "violating": self.violating}
        return figures + [HeadlineMetric(name=name, estimate=value, method="a share") for name, value in shares.items()]


def compute_worst_rate(counts: list[tuple[int, int]], *, level: float = 0.95) -> Interval:
    """Return the lowest of several success rates, with the interval that `EvaluationSummary` describes.

    Args:
        counts: successes and trials of each.
        level: 1 − α.
    """
    each = 1.0 - (1.0 - level) / len(counts)
    ends = [clopper_pearson(won, tried, level=each) for won, tried in counts]
    return Interval(
        estimate=np.array(min(float(end.estimate) for end in ends)),
        low=np.array(min(float(end.low) for end in ends)),
        high=np.array(min(float(end.high) for end in ends)),
        level=level,
        method=f"lowest of {len(counts)} Clopper–Pearson intervals, Bonferroni",
    )


def _summarize_slice(
    name: str,
    won: NDArray[np.bool_],
    lost: NDArray[np.bool_],
    numbers: Mapping[str, NDArray[np.float64]],
    reasons: list[str | None],
    level: float,
) -> SliceSummary:
    return SliceSummary(
        name=name,
        success=clopper_pearson(int(won.sum()), len(won), level=level),
        successes=int(won.sum()),
        trials=len(won),
        invalid=int(lost.sum()),
        progress=_compute_mean_progress(numbers["progress"], lost),
        time_s=_reduce_known(np.median, numbers["time_s"][won]),
        smoothness=_reduce_known(np.median, numbers["smoothness"][~lost]),
        peak_force_n=_reduce_known(np.median, numbers["peak_force_n"][~lost]),
        peak_force_most_n=_reduce_known(np.max, numbers["peak_force_n"]),
        violating=_reduce_known(np.mean, _mark_violating(numbers["violations"])),
        reasons=tuple(dict.fromkeys(reason for reason in reasons if reason)),
    )


def _compute_mean_progress(values: NDArray[np.float64], lost: NDArray[np.bool_]) -> float:
    """Return the mean progress, in which invalid trials count 0; NaN if no valid trial has a value."""
    return _reduce_known(np.mean, np.where(lost, 0.0, values)) if np.isfinite(values[~lost]).any() else math.nan


def _mark_violating(violations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 for a trial that violated a safety limit, 0 for one that did not, NaN if unknown."""
    return np.where(np.isnan(violations), np.nan, violations > 0)


def _reduce_known(figure: Any, values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(figure(known)) if len(known) else math.nan


def _read_floats(evaluation: Evaluation, name: str) -> NDArray[np.float64]:
    values = evaluation.trials[name].to_pylist()
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)
