"""The difference of two mean scores at a fixed number of trials: a permutation test and intervals."""

from __future__ import annotations

import warnings

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.betting import bounded_mean
from twinloop.stats.interval import Interval, check_level

Array = NDArray[np.float64]
_LEAST = 2


def permutation_of_means(
    a: ArrayLike, b: ArrayLike, *, paired: bool = False, draws: int = 4999, seed: int = 0
) -> float:
    """Two-sided permutation p-value that both arms have one distribution; of pairs, that either order is as likely.

    Unpaired the statistic is Welch's t, with which the test also keeps its level for equal means and unequal spreads as
    trials grow (Janssen, Statistics & Probability Letters 36, 1997). All permutations are gone through where there are
    no more than ``draws``.

    Raises:
        InputError: fewer than two trials of one, or pairs that do not match.
    """
    first, second = _two(a, b, paired)
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
    """BCa bootstrap interval of mean(a) − mean(b), each arm drawn again by itself; approximate for few trials.

    Raises:
        InputError: fewer than two trials of one.
    """
    check_level(level)
    first, second = _two(a, b, paired=False)
    estimate = float(first.mean() - second.mean())
    low = high = np.nan
    method = "BCa bootstrap within arms"
    if np.ptp(first) + np.ptp(second) == 0:
        method = "none: all trials of each arm ended alike, so that drawing them again shows no spread"
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one constant arm has no jackknife of its own; the other's stands
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
    return Interval(estimate=np.array(estimate), low=np.array(low), high=np.array(high), level=level, method=method)


def bounded_difference(a: ArrayLike, b: ArrayLike, *, paired: bool = False, level: float = 0.95) -> Interval:
    """Finite-sample valid interval of mean(a) − mean(b) of scores in [0, 1], by betting.

    Of pairs it bets on their differences; else it is the difference of two intervals of level √level, which is wide.

    Raises:
        InputError: scores outside [0, 1], or pairs that do not match.
    """
    check_level(level)
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if paired:
        first, second = _two(a, b, paired)
        return bounded_mean(first - second, level=level, low=-1.0, high=1.0)
    one, two = (bounded_mean(values, level=level**0.5) for values in (first, second))
    return Interval(
        estimate=one.estimate - two.estimate,
        low=one.low - two.high,
        high=one.high - two.low,
        level=level,
        method="two betting intervals, finite-sample valid",
    )


def _two(a: ArrayLike, b: ArrayLike, paired: bool) -> tuple[Array, Array]:
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if paired and len(first) != len(second):
        raise InputError(f"{len(first)} values cannot be paired with {len(second)}. Give both of every pair.")
    if min(len(first), len(second)) < _LEAST:
        raise InputError(
            f"{len(first)} and {len(second)} trials cannot tell how trials differ; a comparison of means needs at "
            f"least {_LEAST} of each."
        )
    return first, second


def _mean_difference(a: Array, b: Array, axis: int = -1) -> Array:
    return np.mean(a, axis=axis) - np.mean(b, axis=axis)


def _welch_t(a: Array, b: Array, axis: int = -1) -> Array:
    error = np.sqrt(np.var(a, axis=axis, ddof=1) / a.shape[axis] + np.var(b, axis=axis, ddof=1) / b.shape[axis])
    off = _mean_difference(a, b, axis)
    flat = error < 1e-12  # both groups constant: as far apart as can be
    return np.where(flat, np.sign(off) * 1e12, off / np.where(flat, 1.0, error))
