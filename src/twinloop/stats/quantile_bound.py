"""How large a quantile can be, from values of any distribution: order statistics."""

from __future__ import annotations

import math

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike

from twinloop.core.errors import InputError
from twinloop.stats.interval import check_level


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
