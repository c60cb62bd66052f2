"""Test differences of means at a fixed number of trials or clusters: permutation, Welch's t, paired, several groups.

If the groups do not differ the values are exchangeable, and a permuted statistic is at least as large as the observed
one with a known chance, for any distribution (Pitman, "Significance tests which may be applied to samples from any
populations", Suppl. J. R. Stat. Soc. 4, 1937). p = (1 + number at least as large) / (1 + draws).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.betting import bounded_mean
from twinloop.stats.bootstrap import bootstrap_mean
from twinloop.stats.interval import Interval, check_level

Array = NDArray[np.float64]
_LEAST = 2


def permutation_of_means(
    a: ArrayLike, b: ArrayLike, *, paired: bool = False, draws: int = 4999, seed: int = 0
) -> float:
    """Return the two-sided permutation p-value that both arms have one distribution, or that pairs are exchangeable.

    The unpaired statistic is Welch's t, with which the test keeps its level also for equal means and unequal spreads as
    the number of trials grows (Janssen, Statistics & Probability Letters 36, 1997). All permutations are used if there
    are at most ``draws``. Unlike in SciPy's ``permutation_test``, the draws follow the run's seed.

    Raises:
        InputError: fewer than two trials of an arm, or unequal numbers of paired values.
    """
    first, second = check_two_arms(a, b, paired=paired)
    if paired:
        if not np.any(first != second):
            return 1.0
    elif np.ptp(np.concatenate([first, second])) == 0:
        return 1.0
    found = scipy.stats.permutation_test(
        (first, second),
        _mean_difference if paired else _welch_t,
        permutation_type="samples" if paired else "independent",
        vectorized=True,
        n_resamples=draws,
        rng=generator(seed, "stats/permutation"),
    )
    return float(found.pvalue)


def bootstrap_of_means(
    a: ArrayLike, b: ArrayLike, *, level: float = 0.95, draws: int = 4999, seed: int = 0
) -> Interval:
    """Return the BCa bootstrap interval of mean(a) − mean(b), arms resampled separately; approximate for few trials.

    Raises:
        InputError: fewer than two trials of an arm.
    """
    check_level(level)
    first, second = check_two_arms(a, b, paired=False)
    estimate = float(first.mean() - second.mean())
    low = high = np.nan
    method = "BCa bootstrap within arms"
    if np.ptp(first) + np.ptp(second) == 0:
        method = "none: all trials of each arm have the same outcome, so that resamples have no spread"
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a constant arm has no jackknife; that of the other arm is used
            found = scipy.stats.bootstrap(
                (first, second),
                _mean_difference,
                confidence_level=level,
                n_resamples=draws,
                vectorized=True,
                method="BCa" if min(np.ptp(first), np.ptp(second)) > 0 else "percentile",
                rng=generator(seed, "stats/bootstrap-of-means"),
            )
        low, high = map(float, found.confidence_interval)
    return Interval.of(estimate, low, high, level=level, method=method)


def bounded_difference(a: ArrayLike, b: ArrayLike, *, paired: bool = False, level: float = 0.95) -> Interval:
    """Return a finite-sample valid interval of mean(a) − mean(b) of scores in [0, 1], by betting.

    For pairs the bets are on their differences. Otherwise it is the difference of two intervals of level √level, which
    is wide.

    Raises:
        InputError: scores outside [0, 1], or unequal numbers of paired values.
    """
    check_level(level)
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if paired:
        first, second = check_two_arms(a, b, paired=paired)
        return bounded_mean(first - second, level=level, low=-1.0, high=1.0)
    one, two = (bounded_mean(values, level=level**0.5) for values in (first, second))
    return Interval.of(
        one.estimate - two.estimate,
        one.low - two.high,
        one.high - two.low,
        level=level,
        method="two betting intervals, finite-sample valid",
    )


def check_two_arms(a: ArrayLike, b: ArrayLike, *, paired: bool) -> tuple[Array, Array]:
    """Return both arms' values as arrays.

    Raises:
        InputError: fewer than two trials of an arm, or unequal numbers of paired values.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if paired and len(first) != len(second):
        raise InputError(f"{len(first)} values cannot be paired with {len(second)}. Give both of every pair.")
    if min(len(first), len(second)) < _LEAST:
        raise InputError(
            f"{len(first)} and {len(second)} trials do not show how trials differ; a comparison of means needs "
            f"at least {_LEAST} of each."
        )
    return first, second


def _mean_difference(a: Array, b: Array, axis: int = -1) -> Array:
    return np.mean(a, axis=axis) - np.mean(b, axis=axis)


def _welch_t(a: Array, b: Array, axis: int = -1) -> Array:
    error = np.sqrt(np.var(a, axis=axis, ddof=1) / a.shape[axis] + np.var(b, axis=axis, ddof=1) / b.shape[axis])
    off = _mean_difference(a, b, axis)
    flat = error < 1e-12  # both groups constant: the most extreme statistic
    return np.where(flat, np.sign(off) * 1e12, off / np.where(flat, 1.0, error))


_LEAST_CLUSTERS = 2


@dataclass(frozen=True, kw_only=True)
class WelchTest:
    """Difference of the means, first − second, with its interval, and ``p_value`` ``(…)`` that it is zero."""

    difference: Interval
    p_value: np.ndarray


def welch_test(first: ArrayLike, second: ArrayLike, *, level: float = 0.95) -> WelchTest:
    """Return Welch's two-sided t-test of cluster values ``(n, …)`` and ``(m, …)``, elementwise over the trailing axes.

    Welch, "The generalization of 'Student's' problem when several different population variances are involved",
    Biometrika 34 (1947), with Satterthwaite's degrees of freedom. If neither group varies, the difference is exact: its
    interval has no width, and p is 1 if it is 0, else 0.

    Raises:
        InputError: fewer than two clusters in a group.
    """
    check_level(level)
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    for values in (one, two):
        if len(values) < _LEAST_CLUSTERS:
            raise InputError(
                f"A group of {len(values)} does not show how members differ; give at least {_LEAST_CLUSTERS} of each."
            )
    parts = [values.var(axis=0, ddof=1) / len(values) for values in (one, two)]
    total = parts[0] + parts[1]
    exact = total <= (1e-12 * (np.abs(one).max(axis=0) + np.abs(two).max(axis=0))) ** 2
    loose = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (one, two), strict=True))
    freedom = np.divide(total**2, loose, out=np.ones_like(total), where=~exact)
    estimate, error = one.mean(axis=0) - two.mean(axis=0), np.where(exact, 0.0, np.sqrt(total))
    reach = stdtrit(freedom, (1 + level) / 2) * error
    t = np.divide(np.abs(estimate), error, out=np.where(np.abs(estimate) > 0, np.inf, 0.0), where=error > 0)
    return WelchTest(
        difference=Interval.of(
            estimate, estimate - reach, estimate + reach, level=level, method="Welch's t over clusters"
        ),
        p_value=np.asarray(2.0 * stdtr(freedom, -t), dtype=np.float64),
    )


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """Mean of paired differences with its interval, and ``p_value`` of the hypothesis that it is at most zero."""

    mean: Interval
    p_value: float


def paired_test(
    differences: ArrayLike, *, level: float = 0.95, draws: int = 4999, seed: int = 0, stream: str = "paired"
) -> PairedTest:
    """Return a paired bootstrap over clusters: BCa interval, and the one-sided p-value of the studentized bootstrap.

    The test compares t = mean / standard error with t* of resamples of the centred differences, so it keeps its level
    to second order (Hall & Wilson, "Two guidelines for bootstrap hypothesis testing", Biometrics 47, 1991). p = (1 +
    number of t* ≥ t) / (1 + draws), and at least 2⁻ⁿ with n clusters: the signs of n differences give no smaller
    p-value, and with few clusters there are few different resamples. If all differences are equal and at most zero, p
    is 1.

    Args:
        differences: ``(nclusters,)``, positive if the second is better.
        level: confidence level of the interval.
        draws: number of resamples.
        seed: run seed of the resamples.
        stream: name of the random stream, so that several tests use different resamples.

    Raises:
        InputError: fewer than two clusters.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < _LEAST_CLUSTERS:
        raise InputError(
            f"{len(values)} episode does not show how episodes differ; compare at least {_LEAST_CLUSTERS}."
        )
    mean = bootstrap_mean(values, level=level, seed=seed)
    return PairedTest(mean=mean, p_value=max(_studentized_p_value(values, draws, seed, stream), 0.5 ** len(values)))


def _studentized_p_value(values: NDArray[np.float64], draws: int, seed: int, stream: str) -> float:
    n, error = len(values), values.std(ddof=1) / np.sqrt(len(values))
    if error <= 1e-12 * np.abs(values).max():
        return 1.0 if values.mean() <= 0 else 1.0 / (1 + draws)
    centred = values - values.mean()
    rows = generator(seed, f"stats/{stream}").integers(0, n, size=(draws, n))
    sampled = centred[rows]
    spread = sampled.std(axis=1, ddof=1) / np.sqrt(n)
    mean = sampled.mean(axis=1)
    flat = spread <= 1e-9 * error  # one cluster drawn n times: the most extreme statistic, with the sign of its mean
    extreme = np.where(mean > 0, np.inf, -np.inf)
    ratio = np.where(flat, extreme, mean / np.where(flat, 1.0, spread))
    return float((1 + np.sum(ratio >= values.mean() / error)) / (1 + draws))


@dataclass(frozen=True, kw_only=True)
class GroupTest:
    """Change between groups and trend along the order, for every column of values.

    ``q`` ``(p,)`` is Cochran's Q: squared deviations of the groups' means from the common mean, relative to their
    errors. ``correlation`` ``(p,)`` is that of values and order.
    """

    means: Array
    errors: Array
    q: Array
    p_change: Array
    correlation: Array
    p_trend: Array


def group_test(
    values: ArrayLike, groups: ArrayLike, order: ArrayLike, *, draws: int = 4999, seed: int = 0
) -> GroupTest:
    """Run permutation tests of values ``(ncluster, p)`` between groups and along an order, ``(ncluster,)`` each.

    Q = Σ_g n_g (m_g − m)² / s² with the variance s² within groups (Cochran, "The combination of estimates from
    different experiments", Biometrics 10, 1954); ``errors`` ``(ngroup, p)`` are s / √n_g.

    Raises:
        InputError: fewer than two groups, or no group with two clusters.
    """
    table = np.asarray(values, dtype=np.float64)
    names, label = np.unique(np.asarray(groups), return_inverse=True)
    sizes = np.bincount(label)
    if len(names) < 2 or sizes.max() < 2:
        raise InputError(
            f"{len(table)} episodes in {len(names)} groups cannot show a change: give at least two groups, one of them "
            "with at least two episodes."
        )
    at = np.asarray(order, dtype=np.float64)
    member = (label[None] == np.arange(len(names))[:, None]).astype(np.float64) / sizes[:, None]
    spread = np.maximum(table.std(axis=0), np.finfo(float).tiny)
    scaled, position = (table - table.mean(axis=0)) / spread, (at - at.mean()) / max(at.std(), np.finfo(float).tiny)
    q, means, within = _cochran(scaled, member, sizes)
    correlation = position @ scaled / len(scaled)
    rng = generator(seed, "stats/groups")
    larger, steeper = np.ones(table.shape[1]), np.ones(table.shape[1])
    for _ in range(draws):
        mixed = scaled[rng.permutation(len(scaled))]
        larger += _cochran(mixed, member, sizes)[0] >= q * (1 - 1e-9)
        steeper += np.abs(position @ mixed / len(mixed)) >= np.abs(correlation) * (1 - 1e-9)
    return GroupTest(
        means=means * spread + table.mean(axis=0),
        errors=within * spread / np.sqrt(sizes)[:, None],
        q=q,
        p_change=larger / (1 + draws),
        correlation=correlation,
        p_trend=steeper / (1 + draws),
    )


def _cochran(values: Array, member: Array, sizes: NDArray[np.intp]) -> tuple[Array, Array, Array]:
    """Return Q ``(p,)``, means ``(ngroup, p)`` and standard deviation within groups ``(p,)`` of values of mean zero."""
    means = member @ values
    between = sizes @ means**2
    inside = np.maximum(np.sum(values**2, axis=0) - between, 1e-12)
    variance = inside / max(len(values) - len(sizes), 1)
    return between / variance, means, np.sqrt(variance)
