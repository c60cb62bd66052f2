"""Diagnose why a policy fails on the robot: each function tests one failure class and returns the evidence.

The functions test a twin's errors (gap too wide, another environment, drift) and the successes of scored trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.core.trials import Trials
from twinloop.gap.policies.classes_result import ALPHA, ClassCheck, Kind
from twinloop.gap.policies.paired_trials import success_table
from twinloop.stats import (
    Interval,
    bootstrap,
    clopper_pearson,
    difference_interval,
    fisher,
    group_test,
    trials_for_rates,
)

Array = NDArray[np.float64]

_FEW = 2  # least episodes on either side of a change, or in each environment


@dataclass(frozen=True, kw_only=True)
class EpisodeErrors:
    """Relative error of a twin in each episode: its mean absolute error divided by that of holding the first frame.

    The ratio removes the effect that some episodes have more motion than other episodes.

    Attributes:
        channels: Names of the channels.
        values: Relative errors, shape ``(nepisode, nchannel)``, in order of time; 1 is as bad as holding the first
            frame.
        numbers: Episode numbers, one per row of ``values``.
    """

    channels: tuple[str, ...]
    values: Array
    numbers: tuple[int, ...]


def check_gap_limits(
    metrics: Sequence[HeadlineMetric], limits: Mapping[str, float], *, episodes: int, remedy: Sequence[str] = ()
) -> list[ClassCheck]:
    """Check whether metrics of a gap are worse than their limits; return one check per metric that has a limit.

    The p-values assume that a metric has a normal distribution whose width is that of its interval.

    Args:
        metrics: Metrics of a measured gap, with intervals.
        limits: Limits, by the first word of a metric's name (``skill`` of ``skill/elbow_flex``) or by its full name.
        episodes: Number of episodes from which the intervals were computed; used to estimate how many are needed.
        remedy: Shell commands that may close the gap; copied into the result.
    """
    found = []
    for metric in metrics:
        limit = limits.get(metric.name.partition("/")[0], limits.get(metric.name))
        if limit is None:
            continue
        worst, best = (metric.low, metric.high) if metric.better == "higher" else (metric.high, metric.low)
        is_worse = (lambda value, at=limit: value < at) if metric.better == "higher" else (lambda v, at=limit: v > at)
        words = (
            f"{metric.name} is {metric.estimate:.3g} ({metric.low:.3g} to {metric.high:.3g}), "
            f"{'at least' if metric.better == 'higher' else 'at most'} {limit:g} is required"
        )
        needed = ""
        if math.isnan(worst) or math.isnan(best):
            needed = f"it has no interval ({metric.method or 'one episode'}); give more episodes"
        elif is_worse(metric.estimate) and not is_worse(best):
            half = abs(best - metric.estimate) / max(abs(metric.estimate - limit), 1e-12)
            needed = f"about {math.ceil(episodes * half**2 - 1e-6)} episodes like these {episodes} would decide it"
        found.append(
            ClassCheck(
                kind="gap_too_wide",
                subject=metric.name,
                fired=bool(is_worse(metric.estimate)),
                evidence=words,
                metric=Interval.of(metric.estimate, metric.low, metric.high, level=metric.level, method=metric.method),
                p_value=_limit_p_value(metric, limit, best),
                needed=needed,
                remedy=tuple(remedy),
            )
        )
    return found


def _limit_p_value(metric: HeadlineMetric, limit: float, best: float) -> float:
    """Return the one-sided p-value of the hypothesis that a metric is no worse than its limit.

    It is 1 if the metric has no interval.

    Args:
        metric: The metric.
        limit: Its limit.
        best: The better end of the metric's interval.
    """
    width = abs(best - metric.estimate)
    if not math.isfinite(width):
        return 1.0
    off = (limit - metric.estimate) * (1.0 if metric.better == "higher" else -1.0)
    return float(ndtr(-off / max(width / ndtri((1 + metric.level) / 2), np.finfo(float).tiny)))


def check_drift(errors: EpisodeErrors, first: int, *, seed: int = 0, remedy: Sequence[str] = ()) -> list[ClassCheck]:
    """Check whether a twin's errors are larger after a calibration than before, by a permutation test over episodes.

    Args:
        errors: Errors of the calibrated twin, in order of time.
        first: Index of the first episode after the calibration.
        seed: Seed of the permutations.
        remedy: Shell commands that may help; copied into the result.

    Returns:
        One check per channel.

    Raises:
        InputError: If there are fewer than two episodes before or after the calibration.
    """
    count = len(errors.values)
    if not _FEW <= first <= count - _FEW:
        raise InputError(
            f"{first} episodes are before the calibration and {count - first} after it; a comparison needs at least "
            f"{_FEW} of each."
        )
    before, after = errors.values[:first], errors.values[first:]
    return _check_growth("drift", errors.channels, before, after, "its earlier value", seed, remedy)


def check_other_environment(
    here: EpisodeErrors, there: EpisodeErrors, *, name: str = "there", seed: int = 0, remedy: Sequence[str] = ()
) -> list[ClassCheck]:
    """Check whether a twin's error is larger in the log of another environment, by a permutation test over episodes.

    Args:
        here: Errors in the environment for which the twin was identified.
        there: Errors in the other environment, with the same channels.
        name: Name of the other environment in the result.
        seed: Seed of the permutations.
        remedy: Shell commands that may help; copied into the result.

    Returns:
        One check per channel.

    Raises:
        InputError: If the channels differ, or an environment has fewer than two episodes.
    """
    if here.channels != there.channels:
        raise InputError(
            f"The logs have different channels: {', '.join(here.channels)} and {', '.join(there.channels)}. Compare "
            "logs with the same channels."
        )
    sizes = len(here.values), len(there.values)
    if min(sizes) < _FEW:
        raise InputError(
            f"The environments have {sizes[0]} and {sizes[1]} episodes; a comparison needs at least {_FEW} of each."
        )
    subjects = [f"{channel} in {name}" for channel in here.channels]
    return _check_growth("other_environment", subjects, here.values, there.values, "that here", seed, remedy)


def _check_growth(
    kind: Kind,
    subjects: Sequence[str],
    before: Array,
    after: Array,
    than: str,
    seed: int,
    remedy: Sequence[str],
) -> list[ClassCheck]:
    """Check by a permutation test whether each channel's error has grown from ``before`` to ``after``.

    Args:
        kind: Failure class of the returned checks.
        subjects: Name of each channel in the evidence.
        before: Earlier errors, shape ``(nepisode, nchannel)``.
        after: Later errors, same number of channels.
        than: End of the sentence "the error is 1.3 times …", such as ``its earlier value``.
        seed: Seed of the permutations and of the bootstrap.
        remedy: Shell commands, copied into the result.
    """
    values, late = np.concatenate([before, after]), np.repeat([0, 1], [len(before), len(after)])
    draws = max(
        4999, math.ceil(20 * len(subjects) / ALPHA)
    )  # enough for p-values below ``ALPHA`` after Holm over all tests
    test = group_test(values, late, np.arange(len(values)), draws=draws, seed=seed)
    orders = math.comb(len(values), len(before))
    few = f"{len(before)} and {len(after)} episodes allow only {orders} permutations; {round(1 / ALPHA)} are needed"
    ratios = [_bootstrap_ratio(column, late == 1, seed) for column in values.T]
    return [
        ClassCheck(
            kind=kind,
            subject=subject,
            fired=bool(ratio.estimate > 1.0),
            evidence=f"the twin's error of {subject} is {ratio.estimate:.2f} times ({ratio.low:.2f} to "
            f"{ratio.high:.2f}) {than}, {len(after)} episodes against {len(before)}",
            metric=ratio,
            p_value=float(p_value),
            needed=few if orders * ALPHA < 1 else "",
            remedy=tuple(remedy),
        )
        for subject, ratio, p_value in zip(subjects, ratios, test.p_change, strict=True)
    ]


def _bootstrap_ratio(values: Array, late: NDArray[np.bool_], seed: int) -> Interval:
    """Return the ratio of the later to the earlier mean value, with a bootstrap interval over episodes.

    Args:
        values: One value per episode.
        late: True for the later episodes.
        seed: Seed of the resampling.
    """

    def metric(rows: NDArray[np.intp]) -> Array:
        before, after = (
            np.where(chosen, values[rows], 0.0).sum(axis=1) / np.maximum(chosen.sum(axis=1), 1)
            for chosen in (~late[rows], late[rows])
        )
        return after / np.maximum(before, np.finfo(float).tiny)

    return bootstrap(metric, len(values), method="percentile", seed=seed)


def compute_relative_errors(
    channels: Sequence[str], twin: ArrayLike, hold: ArrayLike, numbers: Sequence[int]
) -> EpisodeErrors:
    """Return the errors of a twin divided by the errors of the prediction that the first frame is held.

    The error of this prediction measures how much a channel moves. Channels that do not move in most episodes are
    omitted. The divisor is at least one hundredth of the channel's median of ``hold`` over episodes.

    Args:
        channels: Names of the channels.
        twin: Mean absolute errors of the twin, shape ``(nepisode, nchannel)``.
        hold: Mean absolute errors of the prediction that the first frame is held, same shape.
        numbers: Episode numbers, one per row.
    """
    errors, still = np.asarray(twin, dtype=np.float64), np.asarray(hold, dtype=np.float64)
    usual = np.median(still, axis=0)
    moves = np.flatnonzero(usual > 0).tolist()
    return EpisodeErrors(
        channels=tuple(channels[i] for i in moves),
        values=(errors / np.maximum(still, 0.01 * usual + np.finfo(float).tiny))[:, moves],
        numbers=tuple(numbers),
    )


_POWER = 0.8  # power of the proposed number of trials for a difference of the observed size


def check_conditions(trials: Trials, *, remedy: Mapping[str, Sequence[str]] | None = None) -> list[ClassCheck]:
    """Check whether real success in one condition is lower than in the other conditions, by Fisher's exact test.

    A condition is a named setting of a trial, such as the lighting.

    Args:
        trials: Trials; only real ones with a named condition are used.
        remedy: Shell commands that may help, by name of the condition.

    Raises:
        InputError: If fewer than two named conditions have real trials.
    """
    real = trials.real
    names = [name for name in real.conditions if name]
    if len(names) < 2:
        raise InputError(
            f"{len(real)} real trials in {len(names)} named conditions: a comparison of environments needs two. Name "
            "the condition of each trial."
        )
    won, found = real.select_measure("success") > 0, []
    for name in names:
        inside = np.array([condition == name for condition in real.condition])
        table = success_table(won[inside], won[~inside])
        rates = table.successes_a / table.trials_a, table.successes_b / table.trials_b
        here, elsewhere = f"{table.successes_a} of {table.trials_a}", f"{table.successes_b} of {table.trials_b}"
        p_value = fisher(table, alternative="less")
        found.append(
            ClassCheck(
                kind="other_environment",
                subject=name,
                fired=rates[0] < rates[1],
                evidence=f"{here} succeed in {name}, {elsewhere} elsewhere",
                metric=difference_interval(table),
                p_value=p_value,
                needed=_format_needed_trials(*rates, tests=len(names))
                if rates[0] < rates[1] and p_value > ALPHA
                else "",
                remedy=tuple((remedy or {}).get(name, ())),
            )
        )
    return found


def _format_needed_trials(worse: float, better: float, *, tests: int) -> str:
    try:
        count = trials_for_rates(worse, better, power=_POWER, alpha=ALPHA / tests, alternative="less")
    except InputError:
        return "the rates are too similar for any affordable number of trials"
    return f"rates like these need {count.trials_a} trials of each for a significant difference ({_POWER:.0%} power)"


def check_weak_policies(trials: Trials, wanted: float, *, remedy: Sequence[str] = ()) -> list[ClassCheck]:
    """Check for each policy whether it already fails in simulation, by a binomial test of its success rate.

    Args:
        trials: Trials; only simulated ones are used.
        wanted: Required success rate, 0 to 1.
        remedy: Shell commands that may help; copied into the result.
    """
    found = []
    for policy in trials.sim.policies:
        won = trials.sim.where(policy=policy).select_measure("success")
        rate = clopper_pearson(int(won.sum()), len(won))
        estimate, low, high = (float(part) for part in (rate.estimate, rate.low, rate.high))
        found.append(
            ClassCheck(
                kind="weak_in_simulation",
                subject=policy,
                fired=estimate < wanted,
                evidence=f"{policy} succeeds in {100 * estimate:.0f} % ({100 * low:.0f} to {100 * high:.0f}) of "
                f"{len(won)} simulated trials, {wanted:.0%} are required",
                metric=rate,
                p_value=float(binom.cdf(int(won.sum()), len(won), wanted)),
                needed=_format_needed_trials(estimate, wanted, tests=1) if estimate < wanted <= high else "",
                remedy=tuple(remedy),
            )
        )
    return found


def check_simulation_easier(trials: Trials, *, remedy: Sequence[str] = ()) -> list[ClassCheck]:
    """Check for each policy whether it succeeds more often in simulation than in reality, by Fisher's exact test.

    Args:
        trials: Real and simulated trials; policies with trials in one domain only are ignored.
        remedy: Shell commands that may help; copied into the result.
    """
    found = []
    for policy in (name for name in trials.real.policies if name in trials.sim.policies):
        sim, real = (side.where(policy=policy).select_measure("success") for side in (trials.sim, trials.real))
        table = success_table(sim, real)
        found.append(
            ClassCheck(
                kind="beyond_what_is_modelled",
                subject=policy,
                fired=table.difference > 0,
                evidence=f"{policy} succeeds in {table.successes_a} of {table.trials_a} simulated and "
                f"{table.successes_b} of {table.trials_b} real trials",
                metric=difference_interval(table),
                p_value=fisher(table, alternative="greater"),
                remedy=tuple(remedy),
            )
        )
    return found
