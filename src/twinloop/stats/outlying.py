"""From where on a value stands out among its likes, though some of these may be wrong themselves.

A fence is the median plus so many halves of the middle half of the values, each side by its own half, so that a skewed
distribution is not cut on its long side (Kimber, "Exploratory data analysis for possibly censored data from skewed
distributions", J. R. Stat. Soc. C 39, 1990). Up to a quarter of the values may be wrong on one side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from twinloop.core.errors import InputError

# 2.2 lengths of the middle half beyond it: of samples of up to 300 normal values, one in twenty has any value outside
# (Hoaglin & Iglewicz, "Fine-tuning some resistant rules for outlier labeling", J. Am. Stat. Assoc. 82, 1987). From the
# median that is 1 + 2 · 2.2 halves: 3.6 standard deviations of a normal distribution.
_REACH = 1.0 + 2.0 * 2.2
# Fewer values tell no quarter: at ten, each quarter holds two.
LEAST_VALUES = 10


@dataclass(frozen=True, kw_only=True)
class Fence:
    """Where values of one kind lie: ``median``, and the ends ``low`` and ``high`` beyond which one stands out."""

    median: float
    low: float
    high: float
    count: int

    def doubled(self) -> tuple[float, float]:
        """Both ends twice as far from the median."""
        return 2 * self.low - self.median, 2 * self.high - self.median


def fence(values: ArrayLike, *, least: float = 0.0, stretch: float = 1.0) -> Fence:
    """The fence of values ``(n,)``, NaN left out.

    Args:
        values: of likes.
        least: ends are at least so far from the median: a smaller difference does not matter.
        stretch: how many times as far ends are as usual, where many figures of one thing are looked at.

    Raises:
        InputError: fewer than `LEAST_VALUES` known values.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if len(known) < LEAST_VALUES:
        raise InputError(f"{len(known)} values tell no quarter of their likes; a fence needs {LEAST_VALUES}.")
    low, median, high = np.quantile(known, (0.25, 0.5, 0.75))
    reach = stretch * _REACH
    return Fence(
        median=float(median),
        low=float(median - max(reach * (median - low), least)),
        high=float(median + max(reach * (high - median), least)),
        count=len(known),
    )
