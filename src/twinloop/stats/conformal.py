"""Split-conformal calibration: thresholds on scores that hold their rate in finite samples.

If the scores of n calibration clips and of a new one are exchangeable, the new score is at most the ⌈(n + 1) level⌉-th
smallest of the n with a probability of at least ``level``, and with no ties of less than level + 1 / (n + 1), whatever
their distribution and however bad the model that made them (Vovk, Gammerman & Shafer, "Algorithmic Learning in a Random
World", 2005; Lei, G'Sell, Rinaldo, Tibshirani & Wasserman, J. Am. Stat. Assoc. 113, 2018, theorem 2.1).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.proportion import clopper_pearson

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
