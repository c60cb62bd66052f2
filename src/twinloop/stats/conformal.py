"""Set thresholds with finite-sample guarantees, by order statistics: for quantiles, scores, and whole curves.

If the scores of n calibration clips and of a new one are exchangeable, the new score is at most the ⌈(n + 1) level⌉-th
smallest of the n with a probability of at least ``level``, and without ties of less than level + 1 / (n + 1). This
holds for any distribution and any model that made the scores (Vovk, Gammerman & Shafer, "Algorithmic Learning in a
Random World", 2005; Lei, G'Sell, Rinaldo, Tibshirani & Wasserman, J. Am. Stat. Assoc. 113, 2018, theorem 2.1).

A curve's score is the largest (value − centre) / width over its time. Centre and width are estimated from one set of
curves; the threshold is the conformal quantile of the scores of another set (Diquigiovanni, Fontana & Vantini,
"Conformal prediction bands for multivariate functional data", J. Multivar. Anal. 189, 2022). A new curve that is
exchangeable with those leaves the band anywhere with a chance of at most 1 − level, in finite samples, for any centre
and width. With several signals the score is the largest of all signals, each scaled by its own spread, so that all
bands hold together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import freeze_array
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.proportion import clopper_pearson

Array = NDArray[np.float64]


def quantile_upper(values: ArrayLike, quantile: float, *, level: float = 0.95) -> float | None:
    """Return an upper bound of the quantile, wrong with a chance of at most 1 − ``level``; None with too few values.

    The k-th smallest value is above the quantile unless k or more values are below it, which has a binomial probability
    (Conover, Practical Nonparametric Statistics, 1999, section 3.2).

    Raises:
        InputError: no values, a value that is not a finite number, or a quantile outside (0, 1).
    """
    check_level(level)
    x = np.sort(np.asarray(values, dtype=np.float64))
    if not 0 < quantile < 1 or not len(x) or not np.isfinite(x).all():
        raise InputError(f"The {quantile:g} quantile of {len(x)} values: give numbers, and a quantile between 0 and 1.")
    rank = int(scipy.stats.binom.ppf(level, len(x), quantile)) + 1  # the least k with P(fewer than k below) ≥ level
    return float(x[rank - 1]) if rank <= len(x) else None


def least_values(quantile: float, *, level: float = 0.95) -> int:
    """Return the fewest values for which the largest one bounds the quantile: q^n ≤ 1 − level."""
    return math.ceil(math.log(1 - level) / math.log(quantile))


_ROUND_OFF = 1e-9  # tolerance for (n + 1) · level: float arithmetic misses integers


def least_clips(level: float) -> int:
    """Return the fewest calibration clips with a finite threshold at ``level``: 9 for 90 %, 19 for 95 %."""
    check_level(level)
    return math.ceil(level / (1.0 - level) - _ROUND_OFF)


def conformal_threshold(scores: ArrayLike, level: float) -> float:
    """Return the ⌈(n + 1) level⌉-th smallest score; infinity with fewer than `least_clips`.

    Raises:
        InputError: a score that is NaN, or a level outside (0, 1).
    """
    check_level(level)
    values = np.sort(np.asarray(scores, dtype=np.float64))
    if np.isnan(values).any():
        raise InputError("A score is NaN. Leave the clip out, or find out why it could not be replayed.")
    rank = math.ceil((len(values) + 1) * level - _ROUND_OFF)
    return float(values[rank - 1]) if rank <= len(values) else math.inf


def coverage(inside: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return the share of clips ``(n,)`` inside, with the exact Clopper-Pearson interval."""
    flags = np.asarray(inside, dtype=bool)
    return clopper_pearson(int(flags.sum()), len(flags), level=level)


def conformal_band(level: NDArray[np.float64], calibration: int, test: int) -> tuple[NDArray, NDArray]:
    """Return limits that contain 95 % of the empirical coverages of ``test`` clips if the calibration holds.

    Given n calibration clips the true coverage is Beta(k, n + 1 − k) with k = ⌈(n + 1) level⌉, and the count among
    m test clips beta-binomial (Vovk, "Conditional validity of inductive conformal predictors", 2012).

    Args:
        level: nominal levels, ``(k,)``.
        calibration: number n of calibration clips.
        test: number m of test clips.

    Returns:
        Lower and upper limits ``(k,)``; 1 if n clips give no finite threshold.
    """
    from scipy.stats import betabinom

    rank = np.ceil((calibration + 1) * np.asarray(level) - _ROUND_OFF)
    other = calibration + 1 - rank
    finite = other > 0
    safe = np.where(finite, other, 1.0)
    ends = [betabinom.ppf(tail, test, np.maximum(rank, 1.0), safe) / test for tail in (0.025, 0.975)]
    return np.where(finite, ends[0], 1.0), np.where(finite, ends[1], 1.0)


def conformal_p_values(calibration: ArrayLike, scores: ArrayLike) -> NDArray[np.float64]:
    """Return (1 + number of calibration scores at least as large) / (n + 1) for each of ``scores`` ``(m,)``.

    This is a p-value of the hypothesis that a score has the distribution of the n calibration scores: at most α with a
    chance of at most α. Several of them depend on each other positively, so that the Benjamini-Hochberg procedure is
    valid (Bates, Candès, Lei, Romano & Sesia, "Testing for outliers with conformal p-values", Ann. Stat. 51, 2023,
    theorem 2).

    Raises:
        InputError: no calibration score, or one that is NaN.
    """
    known, given = np.sort(np.asarray(calibration, dtype=np.float64)), np.asarray(scores, dtype=np.float64)
    if not len(known) or np.isnan(known).any() or np.isnan(given).any():
        raise InputError("P-values need calibration scores, and none that is NaN. Leave such clips out.")
    beaten = np.asarray(len(known) - np.searchsorted(known, given, side="left"), dtype=np.float64)
    return (1.0 + beaten) / (1.0 + len(known))


_LEAST_WIDTH = 0.1  # minimum width, of the mean width: curves may agree at a time by chance (our choice)
_SMOOTHED = 7  # steps over which centre and width are averaged: with tens of curves they are noisy (our choice)


@dataclass(frozen=True, kw_only=True)
class CurveBand:
    """Expected range of curves at each time: ``centre`` and ``width`` ``(T,)``; later times use the last one."""

    centre: Array
    width: Array

    def __post_init__(self) -> None:
        for name in ("centre", "width"):
            object.__setattr__(self, name, freeze_array(getattr(self, name)))

    def standardize(self, values: ArrayLike, step: ArrayLike) -> Array:
        """Return (value − centre) / width of values ``(…,)`` at their steps."""
        at = np.minimum(np.asarray(step), len(self.centre) - 1)
        return (np.asarray(values, dtype=np.float64) - self.centre[at]) / self.width[at]

    def largest_deviations(self, curves: ArrayLike) -> Array:
        """Return the largest standardized value of each curve ``(n, T)``; NaN marks times after a curve's end."""
        values = np.asarray(curves, dtype=np.float64)
        standard = self.standardize(values, np.arange(values.shape[1])[None])
        return np.max(np.where(np.isnan(standard), -np.inf, standard), axis=1)


def estimate_curve_band(curves: ArrayLike) -> CurveBand:
    """Return smoothed mean and standard deviation of curves ``(n, T)`` at each time; NaN marks ended curves.

    Times with values of fewer than three curves, or of fewer than half, take the statistics of the nearest other time.

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
    """Return the fewest calibration curves with a finite threshold at a false-alarm rate: 19 for 5 %."""
    return least_clips(1.0 - rate)


@dataclass(frozen=True, kw_only=True)
class JointBand:
    """Thresholds of several signals by name, for standardized values.

    Thresholds ``alone`` hold for each signal separately, ``together`` for all signals at once. ``rate`` is the chance
    of a false alarm per curve.
    """

    alone: dict[str, float]
    together: dict[str, float]
    rate: float
    count: int


def joint_band(shape: dict[str, Array], calibration: dict[str, Array], *, rate: float) -> JointBand:
    """Return thresholds from the largest standardized values of curves, ``(n,)`` by signal.

    Args:
        shape: values of the curves from which the envelopes were estimated; they set each signal's scale.
        calibration: values of other curves, the same curves for every signal.
        rate: chance of a false alarm per curve, for each signal alone and for all together.

    Raises:
        InputError: too few calibration curves for the rate; the message gives the required number.
    """
    count = len(next(iter(calibration.values()), ()))
    if count < least_curves(rate):
        raise InputError(
            f"A false-alarm rate of {100 * rate:g} % needs at least {least_curves(rate)} calibration episodes, and "
            f"there are {count}. Give more successful episodes, or use a rate of "
            f"{math.ceil(1000 / (count + 1)) / 10:g} % or more."
        )
    scale = {name: max(float(np.quantile(values, 1.0 - rate)), 1e-9) for name, values in shape.items()}
    worst = np.max([calibration[name] / scale[name] for name in scale], axis=0)
    shared = conformal_threshold(worst, 1.0 - rate)
    if not math.isfinite(shared):
        raise InputError("A calibration score is infinite. Leave that episode out, or find the cause.")
    return JointBand(
        alone={name: conformal_threshold(values, 1.0 - rate) for name, values in calibration.items()},
        together={name: shared * scale[name] for name in scale},
        rate=rate,
        count=count,
    )


def running_mean(values: ArrayLike, steps: int) -> Array:
    """Return means of values ``(T, …)`` over ``steps`` neighbouring steps, over fewer at the ends."""
    given = np.asarray(values, dtype=np.float64)
    kernel = np.ones(min(steps, len(given)))
    flat = given.reshape(len(given), -1)
    summed = np.stack([np.convolve(column, kernel, mode="same") for column in flat.T], axis=-1)
    return (summed / np.convolve(np.ones(len(given)), kernel, mode="same")[:, None]).reshape(given.shape)
