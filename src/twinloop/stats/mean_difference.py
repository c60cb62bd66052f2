"""Test differences of means at a fixed number of trials or clusters: permutation, Welch's t, paired, several groups.

If groups do not differ, their values are exchangeable. A statistic of permuted values is then at least as large as the
observed one with a known chance, for any distribution (Pitman, "Significance tests which may be applied to samples from
any populations", Suppl. J. R. Stat. Soc. 4, 1937). The p-value is (1 + number of permuted statistics at least as large)
/ (1 + number of permutations).
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
    """Return the two-sided p-value of a permutation test of no difference between two arms.

    The hypothesis is that both arms have the same distribution, or for pairs that the two values of a pair are
    exchangeable. The unpaired statistic is Welch's t. With many trials, the test is therefore also valid for the
    hypothesis of equal means and unequal variances (Janssen, Statistics & Probability Letters 36, 1997). Unlike SciPy's
    ``permutation_test``, it uses the run's seed.

    Args:
        a: Values of arm a, shape ``(n,)``.
        b: Values of arm b, shape ``(m,)``.
        paired: Whether ``a[i]`` and ``b[i]`` belong together.
        draws: Number of random permutations; all permutations are used if there are at most this many.
        seed: Run seed.

    Raises:
        InputError: If an arm has fewer than two trials, or paired arms have unequal lengths.
    """
    first, second = check_two_arms(a, b, paired=paired)
    if paired:
        if not np.any(first != second):
            return 1.0
    elif np.ptp(np.concatenate([first, second])) == 0:
        return 1.0
    result = scipy.stats.permutation_test(
        (first, second),
        _mean_difference if paired else _welch_t,
        permutation_type="samples" if paired else "independent",
        vectorized=True,
        n_resamples=draws,
        rng=generator(seed, "stats/permutation"),
    )
    return float(result.pvalue)


def bootstrap_of_means(
    a: ArrayLike, b: ArrayLike, *, level: float = 0.95, draws: int = 4999, seed: int = 0
) -> Interval:
    """Return the BCa bootstrap interval of mean(a) − mean(b), with each arm resampled separately.

    It is approximate for few trials. The limits are NaN if the trials of each arm are all equal.

    Raises:
        InputError: If an arm has fewer than two trials.
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
            result = scipy.stats.bootstrap(
                (first, second),
                _mean_difference,
                confidence_level=level,
                n_resamples=draws,
                vectorized=True,
                method="BCa" if min(np.ptp(first), np.ptp(second)) > 0 else "percentile",
                rng=generator(seed, "stats/bootstrap-of-means"),
            )
        low, high = map(float, result.confidence_interval)
    return Interval.of(estimate, low, high, level=level, method=method)


def bounded_difference(a: ArrayLike, b: ArrayLike, *, paired: bool = False, level: float = 0.95) -> Interval:
    """Return an interval of mean(a) − mean(b) for scores in [0, 1], valid for any number of trials.

    The interval is computed by betting (Waudby-Smith & Ramdas 2024, see `betting`).

    For pairs, it is the interval of the mean of their differences. Otherwise its limits are differences of the limits
    of two separate intervals, each with the confidence level √``level``, so that the interval is wide.

    Raises:
        InputError: If a score is outside [0, 1], or paired arms have unequal lengths.
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
    """Return the values of both arms as arrays, after checking their number.

    Raises:
        InputError: If an arm has fewer than two trials, or paired arms have unequal lengths.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if paired and len(first) != len(second):
        raise InputError(f"{len(first)} values cannot be paired with {len(second)}. Give both values of every pair.")
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
    """Difference of two means with its interval and p-value.

    Attributes:
        difference: Mean of the first group minus mean of the second group, shape ``(…)``.
        p_value: P-value of the hypothesis that the difference is zero, same shape.
    """

    difference: Interval
    p_value: np.ndarray


def welch_test(first: ArrayLike, second: ArrayLike, *, level: float = 0.95) -> WelchTest:
    """Run Welch's two-sided t-test of two groups of clusters (episodes), elementwise over the trailing axes.

    Welch, "The generalization of 'Student's' problem when several different population variances are involved",
    Biometrika 34 (1947), with Satterthwaite's degrees of freedom. If neither group varies, the difference is exact: its
    interval has no width, and the p-value is 1 if the difference is 0, else 0.

    Args:
        first: Values of the first group, shape ``(n, …)``.
        second: Values of the second group, shape ``(m, …)``.
        level: Confidence level of the interval.

    Raises:
        InputError: If a group has fewer than two clusters.
    """
    check_level(level)
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    for values in (one, two):
        if len(values) < _LEAST_CLUSTERS:
            raise InputError(
                f"A group of {len(values)} does not show how its members differ. "
                f"Give at least {_LEAST_CLUSTERS} per group."
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
    """Result of a one-sided test of paired differences.

    Attributes:
        mean: Mean difference with its interval.
        p_value: P-value of the hypothesis that the mean difference is at most zero.
    """

    mean: Interval
    p_value: float


def paired_test(
    differences: ArrayLike, *, level: float = 0.95, draws: int = 4999, seed: int = 0, stream: str = "paired"
) -> PairedTest:
    """Test by bootstrap whether the mean of paired differences over clusters (episodes) is above zero.

    The interval is the BCa bootstrap. The one-sided p-value is that of the studentized bootstrap: t = mean / standard
    error is compared with t* of resamples of the centred differences, which is more accurate for few clusters than a
    comparison of means (Hall & Wilson, "Two guidelines for bootstrap hypothesis testing", Biometrics 47, 1991). It is
    (1 + number of t* ≥ t) / (1 + draws), but at least 2⁻ⁿ with n clusters. The reason is that few clusters have few
    different resamples. 2⁻ⁿ is the smallest p-value of a sign test with n differences. If all differences are equal and
    at most zero, the p-value is 1.

    Args:
        differences: Difference of each cluster, shape ``(ncluster,)``, positive if the second is better.
        level: Confidence level of the interval.
        draws: Number of resamples.
        seed: Run seed of the resamples.
        stream: Name of the random stream, so that several tests use different resamples.

    Raises:
        InputError: If there are fewer than two clusters.
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
    """Change between groups, and trend along an order, for each of p columns of values.

    Attributes:
        means: Mean of each group, shape ``(ngroup, p)``.
        errors: Standard error of each mean, same shape.
        q: Cochran's Q, shape ``(p,)``: squared deviations of the group means from the common mean, relative to their
            standard errors.
        p_change: P-value of the hypothesis that the groups do not differ, shape ``(p,)``.
        correlation: Correlation of values and order, shape ``(p,)``.
        p_trend: P-value of the hypothesis that values do not depend on the order, shape ``(p,)``.
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
    """Test by permutation whether values change between groups, and whether they have a trend along an order.

    The statistic of a change is Q = Σ_g n_g (m_g − m)² / s², with size n_g and mean m_g of group g, the common mean m,
    and the variance s² within groups (Cochran, "The combination of estimates from different experiments", Biometrics
    10, 1954). The standard error of a group's mean is s / √n_g.

    Args:
        values: Values of each cluster (episode) in p columns, shape ``(ncluster, p)``.
        groups: Group of each cluster, shape ``(ncluster,)``.
        order: Position of each cluster in the order, for example its time, shape ``(ncluster,)``.
        draws: Number of permutations.
        seed: Run seed.

    Raises:
        InputError: If there are fewer than two groups, or no group has two clusters.
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
    """Return Cochran's Q, the group means, and the standard deviation within groups.

    Args:
        values: Values, centred so that their mean is zero, shape ``(ncluster, p)``.
        member: 1 / size of the group for its members, else 0, shape ``(ngroup, ncluster)``.
        sizes: Number of clusters of each group, shape ``(ngroup,)``.

    Returns:
        Shapes ``(p,)``, ``(ngroup, p)`` and ``(p,)``.
    """
    means = member @ values
    between = sizes @ means**2
    inside = np.maximum(np.sum(values**2, axis=0) - between, 1e-12)
    variance = inside / max(len(values) - len(sizes), 1)
    return between / variance, means, np.sqrt(variance)
