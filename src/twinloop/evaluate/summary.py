"""Summarize an evaluation: success rates with exact intervals of every slice, of all trials, and of the worst slice."""

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
    """Summary of the trials of one evaluation slice (condition); a metric is NaN if no trial has a value.

    Attributes:
        name: Name of the slice.
        success: Success rate with its exact interval; invalid trials count as failures.
        successes: Number of successes.
        trials: Number of trials.
        invalid: Number of invalid trials (the simulation diverged).
        progress: Mean progress; invalid trials count as 0.
        time_s: Median time to success in s, over valid successes.
        smoothness: Median smoothness (spectral arc length) of the tool's motion, over valid trials.
        peak_force_n: Median over valid trials of the largest contact force in N.
        peak_force_most_n: Largest contact force of all trials in N, including invalid ones: it occurred before the
            divergence.
        violating: Share of trials that violate a safety limit, including invalid ones.
        reasons: Reasons of the invalid trials, each once.
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
    """Summary of an evaluation.

    The interval of ``overall`` is an exact (Clopper–Pearson) interval. Its level also holds for slices with different
    success rates (Hoeffding, Ann. Math. Stat. 27, 1956), because the slices are independent.

    The interval of ``worst`` is simultaneous over the nslice slices: each slice gets an exact interval at level 1 − α /
    nslice (Bonferroni; slices may be dependent). The interval of ``worst`` is from the lowest of their lower limits to
    the lowest of their upper limits.

    Attributes:
        policy: Name of the policy.
        suite: Name of the suite.
        level: Confidence level 1 − α of the intervals.
        trials: Number of trials.
        invalid: Number of invalid trials, which count as failures.
        violating: Share of trials that violate a safety limit.
        overall: Success rate over all trials.
        worst: Lowest success rate of all slices. Its interval contains the lowest true rate, whichever slice has it.
        slices: Summary of each slice (condition), in ascending order of the success rate.
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
        """Summarize an evaluation, with intervals at the confidence ``level``.

        Raises:
            InputError: If the level is outside (0, 1).
        """
        check_level(level)
        rows = {name: np.asarray(evaluation.trials[name]) for name in ("slice", "success", "valid")}
        numbers = {name: _read_floats(evaluation, name) for name in _COLUMNS}
        reasons = np.asarray(evaluation.trials["reason"].to_pylist(), dtype=object)
        won = rows["success"].astype(bool) & rows["valid"].astype(bool)
        summaries: list[SliceSummary] = []
        for name in evaluation.slices:
            in_slice = rows["slice"] == name
            slice_numbers = {key: values[in_slice] for key, values in numbers.items()}
            invalid = ~rows["valid"][in_slice].astype(bool)
            summaries.append(
                _summarize_slice(
                    name, won[in_slice], invalid, slice_numbers, reasons[in_slice][invalid].tolist(), level
                )
            )
        summaries.sort(key=lambda item: (float(item.success.estimate), np.nan_to_num(item.progress), item.name))
        return cls(
            policy=evaluation.policy,
            suite=evaluation.suite,
            level=level,
            slices=tuple(summaries),
            overall=clopper_pearson(int(won.sum()), len(won), level=level),
            worst=compute_worst_rate([(item.successes, item.trials) for item in summaries], level=level),
            trials=len(won),
            invalid=sum(item.invalid for item in summaries),
            violating=_reduce_known(np.mean, _mark_violating(numbers["violations"])),
        )

    def headline(self) -> list[HeadlineMetric]:
        """Return success rates (overall, worst slice, every slice) and shares of invalid or violating trials.

        They are headline metrics for ``--fail-if`` and the run history.
        """
        metrics = [
            self.overall.headline(SUCCESS, better="higher", meaning="success rate over all trials"),
            self.worst.headline(WORST, better="higher", meaning="lowest success rate of all slices"),
        ]
        metrics += [item.success.headline(f"{SUCCESS}/{item.name}", better="higher") for item in self.slices]
        shares = {"invalid": self.invalid / self.trials, "violating": self.violating}
        return metrics + [HeadlineMetric(name=name, estimate=value, method="a share") for name, value in shares.items()]


def compute_worst_rate(counts: list[tuple[int, int]], *, level: float = 0.95) -> Interval:
    """Return the lowest of several success rates, with a simultaneous exact (Clopper–Pearson, Bonferroni) interval.

    Args:
        counts: Number of successes and number of trials of each slice.
        level: Confidence level of the result.
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
    invalid: NDArray[np.bool_],
    numbers: Mapping[str, NDArray[np.float64]],
    reasons: list[str | None],
    level: float,
) -> SliceSummary:
    return SliceSummary(
        name=name,
        success=clopper_pearson(int(won.sum()), len(won), level=level),
        successes=int(won.sum()),
        trials=len(won),
        invalid=int(invalid.sum()),
        progress=_compute_mean_progress(numbers["progress"], invalid),
        time_s=_reduce_known(np.median, numbers["time_s"][won]),
        smoothness=_reduce_known(np.median, numbers["smoothness"][~invalid]),
        peak_force_n=_reduce_known(np.median, numbers["peak_force_n"][~invalid]),
        peak_force_most_n=_reduce_known(np.max, numbers["peak_force_n"]),
        violating=_reduce_known(np.mean, _mark_violating(numbers["violations"])),
        reasons=tuple(dict.fromkeys(reason for reason in reasons if reason)),
    )


def _compute_mean_progress(values: NDArray[np.float64], invalid: NDArray[np.bool_]) -> float:
    """Return the mean progress, with 0 for invalid trials; NaN if no valid trial has a value.

    Args:
        values: Progress of each trial, shape ``(ntrial,)``.
        invalid: Whether each trial is invalid.
    """
    return _reduce_known(np.mean, np.where(invalid, 0.0, values)) if np.isfinite(values[~invalid]).any() else math.nan


def _mark_violating(violations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 for a trial that violated a safety limit, 0 for a trial that did not, and NaN if that is unknown.

    Args:
        violations: Number of violating control steps of each trial, NaN if unknown.
    """
    return np.where(np.isnan(violations), np.nan, violations > 0)


def _reduce_known(reduce: Any, values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(reduce(known)) if len(known) else math.nan


def _read_floats(evaluation: Evaluation, name: str) -> NDArray[np.float64]:
    values = evaluation.trials[name].to_pylist()
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)
