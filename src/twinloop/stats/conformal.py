"""Set thresholds that hold their rate in finite samples, by order statistics.

Of quantiles, of scores, of whole curves.

If the scores of n calibration clips and of a new one are exchangeable, the new score is at most the ⌈(n + 1) level⌉-th
smallest of the n with a probability of at least ``level``, and with no ties of less than level + 1 / (n + 1), whatever
their distribution and however bad the model that made them (Vovk, Gammerman & Shafer, "Algorithmic Learning in a Random
World", 2005; Lei, G'Sell, Rinaldo, Tibshirani & Wasserman, J. Am. Stat. Assoc. 113, 2018, theorem 2.1).

A curve's score is the largest of (value − centre) / width over its time. Centre and width are made of one set of
curves, the threshold is the conformal quantile of the scores of another (Diquigiovanni, Fontana & Vantini, "Conformal
prediction bands for multivariate functional data", J. Multivar. Anal. 189, 2022). A new curve that is exchangeable with
those leaves the band anywhere with a chance of at most 1 − level, in finite samples, whatever centre and width are. Of
several signals the score is the largest of all theirs, each over a spread of its own, so that they hold together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import frozen
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.proportion import clopper_pearson

Array = NDArray[np.float64]


def quantile_upper(values: ArrayLike, quantile: float, *, level: float = 0.95) -> float | None:
    """A bound that the quantile exceeds with a chance of at most 1 − ``level``; None where there are too few values.

    The k-th smallest value is beyond the quantile unless k or more values lie below it, which is a binomial chance
    (Conover, Practical Nonparametric Statistics, 1999, section 3.2).

    Raises:
        InputError: no values, one that is no number, or a quantile outside (0, 1).
    """
    check_level(level)
    x = np.sort(np.asarray(values, dtype=np.float64))
    if not 0 < quantile < 1 or not len(x) or not np.isfinite(x).all():
        raise InputError(f"The {quantile:g} quantile of {len(x)} values: give numbers, and a quantile between 0 and 1.")
    rank = int(scipy.stats.binom.ppf(level, len(x), quantile)) + 1  # the least k with P(fewer than k below) ≥ level
    return float(x[rank - 1]) if rank <= len(x) else None


def least_values(quantile: float, *, level: float = 0.95) -> int:
    """The fewest values of which the largest bounds a quantile: q^n ≤ 1 − level."""
    return math.ceil(math.log(1 - level) / math.log(quantile))


_ROUND_OFF = 1e-9  # (n + 1) · level is a whole number more often than float arithmetic says


def least_clips(level: float) -> int:
    """The fewest calibration clips for which a finite threshold holds ``level``: 9 for 90 %, 19 for 95 %."""
    check_level(level)
    return math.ceil(level / (1.0 - level) - _ROUND_OFF)


def conformal_threshold(scores: ArrayLike, level: float) -> float:
    """The ⌈(n + 1) level⌉-th smallest score; infinity where there are fewer than `least_clips`.

    Raises:
        InputError: a score that is NaN, or a level outside (0, 1).
    """
    check_level(level)
    values = np.sort(np.asarray(scores, dtype=np.float64))
    if np.isnan(values).any():
        raise InputError("A score is NaN. Leave the clip out, or look at why it could not be replayed.")
    rank = math.ceil((len(values) + 1) * level - _ROUND_OFF)
    return float(values[rank - 1]) if rank <= len(values) else math.inf


def coverage(inside: ArrayLike, *, level: float = 0.95) -> Interval:
    """The part of clips ``(n,)`` that lie inside, with Clopper and Pearson's exact interval."""
    flags = np.asarray(inside, dtype=bool)
    return clopper_pearson(int(flags.sum()), len(flags), level=level)


def conformal_band(level: NDArray[np.float64], calibration: int, test: int) -> tuple[NDArray, NDArray]:
    """Between which values 95 % of the empirical coverages of ``test`` clips lie where the calibration holds.

    Given n calibration clips the true coverage is Beta(k, n + 1 − k) with k = ⌈(n + 1) level⌉, and the count among
    m test clips beta-binomial (Vovk, "Conditional validity of inductive conformal predictors", 2012).

    Args:
        level: nominal levels, ``(k,)``.
        calibration: n.
        test: m.

    Returns:
        Lower and upper ends ``(k,)``; 1 where n clips give no finite threshold.
    """
    from scipy.stats import betabinom

    rank = np.ceil((calibration + 1) * np.asarray(level) - _ROUND_OFF)
    other = calibration + 1 - rank
    finite = other > 0
    safe = np.where(finite, other, 1.0)
    ends = [betabinom.ppf(tail, test, np.maximum(rank, 1.0), safe) / test for tail in (0.025, 0.975)]
    return np.where(finite, ends[0], 1.0), np.where(finite, ends[1], 1.0)


def conformal_p_values(calibration: ArrayLike, scores: ArrayLike) -> NDArray[np.float64]:
    """(1 + how many of the n calibration scores are as large) / (n + 1), for each of ``scores`` ``(m,)``.

    A p-value of the hypothesis that a score is drawn as the calibration's were: at most α with a chance of at most α.
    Of several scores they depend on each other positively, so that Benjamini and Hochberg's procedure holds (Bates,
    Candès, Lei, Romano & Sesia, "Testing for outliers with conformal p-values", Ann. Stat. 51, 2023, theorem 2).

    Raises:
        InputError: no calibration score, or one that is NaN.
    """
    known, given = np.sort(np.asarray(calibration, dtype=np.float64)), np.asarray(scores, dtype=np.float64)
    if not len(known) or np.isnan(known).any() or np.isnan(given).any():
        raise InputError("P-values need calibration scores, and none that is NaN. Leave such clips out.")
    beaten = np.asarray(len(known) - np.searchsorted(known, given, side="left"), dtype=np.float64)
    return (1.0 + beaten) / (1.0 + len(known))


_LEAST_WIDTH = 0.1  # of a band's mean width: where all curves agree by accident, it must not be a trap (our choice)
_SMOOTHED = 7  # steps over which centre and width are averaged: with tens of curves they are ragged (our choice)


@dataclass(frozen=True, kw_only=True)
class CurveBand:
    """Where curves lie at each time: ``centre`` and ``width`` ``(T,)``; later times are as the last."""

    centre: Array
    width: Array

    def __post_init__(self) -> None:
        for name in ("centre", "width"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    def standard(self, values: ArrayLike, step: ArrayLike) -> Array:
        """(value − centre) / width of values ``(…,)`` at their steps."""
        at = np.minimum(np.asarray(step), len(self.centre) - 1)
        return (np.asarray(values, dtype=np.float64) - self.centre[at]) / self.width[at]

    def largest(self, curves: ArrayLike) -> Array:
        """The largest standardized value of each curve ``(n, T)``; NaN where a curve has ended."""
        values = np.asarray(curves, dtype=np.float64)
        standard = self.standard(values, np.arange(values.shape[1])[None])
        return np.max(np.where(np.isnan(standard), -np.inf, standard), axis=1)


def envelope(curves: ArrayLike) -> CurveBand:
    """Mean and standard deviation of curves ``(n, T)`` at each time, smoothed a little; NaN where one has ended.

    Times at which fewer than three curves, or fewer than half, have a value take the figures of the nearest other.

    Raises:
        InputError: fewer than three curves, or a value that is infinite.
    """
    values = np.asarray(curves, dtype=np.float64)
    if values.ndim != 2 or len(values) < 3 or np.isinf(values).any():
        raise InputError(f"An envelope needs at least three finite curves (n, T); given {values.shape}.")
    there = np.flatnonzero(np.isfinite(values).sum(axis=0) >= max(3, len(values) / 2))
    if not len(there):
        raise InputError("No three curves have a value at the same time.")
    nearest = there[np.abs(np.arange(there[-1] + 1)[:, None] - there[None]).argmin(axis=1)]
    head = values[:, nearest]
    centre, width = np.nanmean(head, axis=0), np.nanstd(head, axis=0, ddof=1)
    centre, width = running_mean(centre, _SMOOTHED), np.sqrt(running_mean(width**2, _SMOOTHED))
    floor = max(_LEAST_WIDTH * float(width.mean()), 1e-9 * (1.0 + float(np.abs(centre).max())))
    return CurveBand(centre=centre, width=np.maximum(width, floor))


def least_curves(rate: float) -> int:
    """The fewest calibration curves for which a finite threshold keeps a false-alarm rate: 19 for 5 %."""
    return least_clips(1.0 - rate)


@dataclass(frozen=True, kw_only=True)
class JointBand:
    """Thresholds of several signals: ``alone`` each holds by itself, ``together`` all of them hold at once.

    Both by name, of standardized values; ``rate`` is the chance per curve of an alarm where nothing is wrong.
    """

    alone: dict[str, float]
    together: dict[str, float]
    rate: float
    count: int


def joint_band(shape: dict[str, Array], calibration: dict[str, Array], *, rate: float) -> JointBand:
    """Thresholds from the largest standardized values of curves, ``(n,)`` by signal.

    Args:
        shape: those of the curves that envelopes were made of; they say how large each signal's usually are.
        calibration: those of other curves, the same ones in every signal.
        rate: chance of a false alarm per curve, of each signal alone and of all together.

    Raises:
        InputError: too few calibration curves for the rate; says how many it needs.
    """
    count = len(next(iter(calibration.values()), ()))
    if count < least_curves(rate):
        raise InputError(
            f"A false-alarm rate of {100 * rate:g} % needs at least {least_curves(rate)} calibration episodes, and "
            f"there are {count}. Give more successful episodes, or ask for a rate of "
            f"{math.ceil(1000 / (count + 1)) / 10:g} % or more."
        )
    scale = {name: max(float(np.quantile(values, 1.0 - rate)), 1e-9) for name, values in shape.items()}
    worst = np.max([calibration[name] / scale[name] for name in scale], axis=0)
    shared = conformal_threshold(worst, 1.0 - rate)
    if not math.isfinite(shared):
        raise InputError("A calibration score is infinite. Leave that episode out, or look at why.")
    return JointBand(
        alone={name: conformal_threshold(values, 1.0 - rate) for name, values in calibration.items()},
        together={name: shared * scale[name] for name in scale},
        rate=rate,
        count=count,
    )


def running_mean(values: ArrayLike, steps: int) -> Array:
    """Means of values ``(T, …)`` over so many neighbouring steps, of fewer at the ends."""
    given = np.asarray(values, dtype=np.float64)
    kernel = np.ones(min(steps, len(given)))
    flat = given.reshape(len(given), -1)
    summed = np.stack([np.convolve(column, kernel, mode="same") for column in flat.T], axis=-1)
    return (summed / np.convolve(np.ones(len(given)), kernel, mode="same")[:, None]).reshape(given.shape)
