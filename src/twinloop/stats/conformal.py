"""Set alarm thresholds with finite-sample guarantees from calibration data (conformal prediction).

Every calibration clip has a score, such as its largest error. The threshold is the k-th smallest of the n scores, with
k = (n + 1) · level, rounded up. The score of a new clip is at most the threshold with a probability of at least
``level``, and of less than ``level`` + 1 / (n + 1) if no scores are equal. The condition is that the new clip and the
calibration clips are exchangeable, for example independent draws from one distribution. The guarantee holds for any
distribution and any model that computed the scores (Vovk, Gammerman & Shafer, "Algorithmic Learning in a Random World",
2005; Lei, G'Sell, Rinaldo, Tibshirani & Wasserman, J. Am. Stat. Assoc. 113, 2018, theorem 2.1).

The score of a curve (a signal over time) is the largest (value − centre) / width over its time. Centre and width are
estimated from one set of curves; the threshold is the conformal quantile of the scores of another set (Diquigiovanni,
Fontana & Vantini, "Conformal prediction bands for multivariate functional data", J. Multivar. Anal. 189, 2022). A new
curve that is exchangeable with those curves leaves the band at any time with a chance of at most 1 − level, in finite
samples, for any centre and width. With several signals the score is the largest over all signals, each scaled by its
own spread, so that all bands hold together.
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
    """Return an upper confidence bound of a quantile of the distribution of ``values``, for any distribution.

    The bound is the k-th smallest value. It is too low only if k or more values are below the quantile. The number of
    values below the quantile has a binomial distribution, so k is chosen as the smallest number for which this happens
    with a chance of at most 1 − ``level`` (Conover, Practical Nonparametric Statistics, 1999, section 3.2).

    Args:
        values: Independent values, shape ``(n,)``.
        quantile: The quantile, for example 0.99.
        level: Confidence: the bound is too low with a chance of at most 1 − ``level``.

    Returns:
        The bound; None if there are too few values.

    Raises:
        InputError: If there are no values, a value is not finite, or the quantile is outside (0, 1).
    """
    check_level(level)
    x = np.sort(np.asarray(values, dtype=np.float64))
    if not 0 < quantile < 1 or not len(x) or not np.isfinite(x).all():
        raise InputError(
            f"Cannot bound the {quantile:g} quantile of {len(x)} values. Give finite numbers, and a quantile "
            "between 0 and 1."
        )
    rank = int(scipy.stats.binom.ppf(level, len(x), quantile)) + 1  # the least k with P(fewer than k below) ≥ level
    return float(x[rank - 1]) if rank <= len(x) else None


def min_value_count(quantile: float, *, level: float = 0.95) -> int:
    """Return the smallest number of values whose maximum is an upper confidence bound of a quantile.

    It is the smallest n with quantileⁿ ≤ 1 − level.
    """
    return math.ceil(math.log(1 - level) / math.log(quantile))


_ROUND_OFF = 1e-9  # tolerance for (n + 1) · level: float arithmetic misses integers


def min_clip_count(level: float) -> int:
    """Return the smallest number of calibration clips with a finite threshold: 9 for 90 %, 19 for 95 %.

    Args:
        level: Probability with which a new score is at most the threshold.
    """
    check_level(level)
    return math.ceil(level / (1.0 - level) - _ROUND_OFF)


def conformal_threshold(scores: ArrayLike, level: float) -> float:
    """Return the conformal threshold: a new score exceeds it with a chance of at most 1 − ``level``.

    It is the ⌈(n + 1) level⌉-th smallest of n scores, and infinity if there are fewer than `min_clip_count`.

    Args:
        scores: Scores of the calibration clips, shape ``(n,)``.
        level: Chance that a new score is at most the threshold.

    Raises:
        InputError: If a score is NaN, or the level is outside (0, 1).
    """
    check_level(level)
    values = np.sort(np.asarray(scores, dtype=np.float64))
    if np.isnan(values).any():
        raise InputError("A calibration score is NaN. Leave that clip out, or find out why it could not be replayed.")
    rank = math.ceil((len(values) + 1) * level - _ROUND_OFF)
    return float(values[rank - 1]) if rank <= len(values) else math.inf


def coverage(inside: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return the share of test clips inside their predicted bounds, with the exact Clopper-Pearson interval.

    Args:
        inside: Whether each clip is inside its bounds, shape ``(nclip,)``.
        level: Confidence level of the interval.
    """
    flags = np.asarray(inside, dtype=bool)
    return clopper_pearson(int(flags.sum()), len(flags), level=level)


def conformal_band(level: NDArray[np.float64], calibration: int, test: int) -> tuple[NDArray, NDArray]:
    """Return the range in which the observed coverage of test clips is with a chance of 95 %, if calibration is valid.

    Given n calibration clips the true coverage has the distribution Beta(r, n + 1 − r) with r = ⌈(n + 1) level⌉, and
    the number of covered clips among m test clips is beta-binomial (Vovk, "Conditional validity of inductive conformal
    predictors", 2012).

    Args:
        level: Nominal coverage levels, shape ``(nlevel,)``.
        calibration: Number n of calibration clips.
        test: Number m of test clips.

    Returns:
        Lower and upper limits, shape ``(nlevel,)`` each; 1 if n clips give no finite threshold.
    """
    from scipy.stats import betabinom

    rank = np.ceil((calibration + 1) * np.asarray(level) - _ROUND_OFF)
    other = calibration + 1 - rank
    finite = other > 0
    safe = np.where(finite, other, 1.0)
    ends = [betabinom.ppf(tail, test, np.maximum(rank, 1.0), safe) / test for tail in (0.025, 0.975)]
    return np.where(finite, ends[0], 1.0), np.where(finite, ends[1], 1.0)


def conformal_p_values(calibration: ArrayLike, scores: ArrayLike) -> NDArray[np.float64]:
    """Return the p-value of each new score under the hypothesis that it has the distribution of the calibration scores.

    It is (1 + number of calibration scores at least as large) / (n + 1) for n calibration scores, and at most α with a
    chance of at most α. Several such p-values are positively dependent, so that the Benjamini-Hochberg procedure is
    valid (Bates, Candès, Lei, Romano & Sesia, "Testing for outliers with conformal p-values", Ann. Stat. 51, 2023,
    theorem 2).

    Args:
        calibration: Scores of the calibration clips, shape ``(n,)``.
        scores: New scores, shape ``(m,)``.

    Raises:
        InputError: If there is no calibration score, or a score is NaN.
    """
    known, given = np.sort(np.asarray(calibration, dtype=np.float64)), np.asarray(scores, dtype=np.float64)
    if not len(known) or np.isnan(known).any() or np.isnan(given).any():
        raise InputError(
            "P-values need at least one calibration score, and no score may be NaN. Leave out clips whose score is NaN."
        )
    larger = np.asarray(len(known) - np.searchsorted(known, given, side="left"), dtype=np.float64)
    return (1.0 + larger) / (1.0 + len(known))


_LEAST_WIDTH = 0.1  # smallest width relative to the mean width: curves may agree at a step by chance (our choice)
_SMOOTHED = 7  # steps over which centre and width are averaged: with tens of curves they are noisy (our choice)


@dataclass(frozen=True, kw_only=True)
class CurveBand:
    """Typical values of a signal at each time step: ``centre`` and ``width``, shape ``(nstep,)`` each.

    Steps after the last one have the centre and the width of the last step.
    """

    centre: Array
    width: Array

    def __post_init__(self) -> None:
        for name in ("centre", "width"):
            object.__setattr__(self, name, freeze_array(getattr(self, name)))

    def standardize(self, values: ArrayLike, step: ArrayLike) -> Array:
        """Return (value − centre) / width of values at their steps.

        Args:
            values: Values of the signal, shape ``(…,)``.
            step: Step of each value, from 0.
        """
        at = np.minimum(np.asarray(step), len(self.centre) - 1)
        return (np.asarray(values, dtype=np.float64) - self.centre[at]) / self.width[at]

    def largest_deviations(self, curves: ArrayLike) -> Array:
        """Return the largest standardized value of each curve, shape ``(ncurve,)``.

        Args:
            curves: Curves from step 0, shape ``(ncurve, nstep)``; NaN after the end of a curve.
        """
        values = np.asarray(curves, dtype=np.float64)
        standard = self.standardize(values, np.arange(values.shape[1])[None])
        return np.max(np.where(np.isnan(standard), -np.inf, standard), axis=1)


def estimate_curve_band(curves: ArrayLike) -> CurveBand:
    """Estimate mean and standard deviation of curves at each step.

    Mean and variance are smoothed by a moving average over 7 steps. The standard deviation is at least 10 % of its mean
    over the steps.

    Steps at which fewer than three curves, or fewer than half, have a value take the statistics of the nearest other
    step.

    Args:
        curves: Curves (one signal over one episode each) from step 0, shape ``(ncurve, nstep)``; NaN after the end of a
            curve.

    Raises:
        InputError: If there are fewer than three curves, or a value is infinite.
    """
    values = np.asarray(curves, dtype=np.float64)
    if values.ndim != 2 or len(values) < 3 or np.isinf(values).any():
        raise InputError(f"An envelope needs at least three finite curves (n, T); given {values.shape}.")
    usable = np.flatnonzero(np.isfinite(values).sum(axis=0) >= max(3, len(values) / 2))
    if not len(usable):
        raise InputError("No three curves have a value at the same time.")
    nearest = usable[np.abs(np.arange(usable[-1] + 1)[:, None] - usable[None]).argmin(axis=1)]
    head = values[:, nearest]
    centre, width = np.nanmean(head, axis=0), np.nanstd(head, axis=0, ddof=1)
    centre, width = running_mean(centre, _SMOOTHED), np.sqrt(running_mean(width**2, _SMOOTHED))
    floor = max(_LEAST_WIDTH * float(width.mean()), 1e-9 * (1.0 + float(np.abs(centre).max())))
    return CurveBand(centre=centre, width=np.maximum(width, floor))


def min_curve_count(rate: float) -> int:
    """Return the smallest number of calibration curves (one per episode) that gives a finite alarm threshold.

    Args:
    rate: Required chance of a false alarm per episode; 5 % needs 19 curves.
    """
    return min_clip_count(1.0 - rate)


@dataclass(frozen=True, kw_only=True)
class JointBand:
    """Alarm thresholds of several signals, by the name of the signal.

    A curve is one signal over one episode. An alarm is raised if its largest standardized value, (value − centre) /
    width of the `CurveBand` of the signal, exceeds the threshold.

    Attributes:
        alone: Thresholds if only one signal can raise an alarm.
        together: Thresholds if every signal can raise an alarm. They are higher, so that the chance of any false alarm
            is also ``rate``.
        rate: Chance of a false alarm per episode.
        count: Number of calibration episodes.
    """

    alone: dict[str, float]
    together: dict[str, float]
    rate: float
    count: int


def joint_band(band_deviations: dict[str, Array], calibration: dict[str, Array], *, rate: float) -> JointBand:
    """Return alarm thresholds for several signals that have a given false-alarm rate, separately and together.

    A curve is one signal over one episode. Its standardized values are (value − centre) / width of the `CurveBand` of
    the signal.

    Args:
        band_deviations: For each signal, the largest standardized value of each curve from which the band was
            estimated, shape ``(n,)``. Their quantile 1 − ``rate`` is the scale of the signal: for the thresholds
            ``together``, calibration values are divided by it, so that signals can be compared.
        calibration: For each signal, the largest standardized value in each of m other episodes, shape ``(m,)``; the
            same episodes for every signal.
        rate: Chance of a false alarm per episode, for each signal alone and for all signals together.

    Raises:
        InputError: If there are too few calibration episodes for the rate (the message has the required number), or a
            calibration value is infinite.
    """
    count = len(next(iter(calibration.values()), ()))
    if count < min_curve_count(rate):
        raise InputError(
            f"A false-alarm rate of {100 * rate:g} % needs at least {min_curve_count(rate)} calibration episodes, and "
            f"there are {count}. Give more successful episodes, or use a rate of "
            f"{math.ceil(1000 / (count + 1)) / 10:g} % or more."
        )
    scale = {name: max(float(np.quantile(values, 1.0 - rate)), 1e-9) for name, values in band_deviations.items()}
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
    """Return the moving average of values ``(nstep, …)`` over ``steps`` neighbouring steps, over fewer at the ends."""
    given = np.asarray(values, dtype=np.float64)
    kernel = np.ones(min(steps, len(given)))
    flat = given.reshape(len(given), -1)
    summed = np.stack([np.convolve(column, kernel, mode="same") for column in flat.T], axis=-1)
    return (summed / np.convolve(np.ones(len(given)), kernel, mode="same")[:, None]).reshape(given.shape)
