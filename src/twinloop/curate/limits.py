"""Where a figure becomes suspect: a limit with its source, or what is usual in the good mass of the same data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

LEAST = 8  # episodes of which something can be called usual: fewer have no spread to speak of
_NORMAL = 1.4826  # median absolute deviation of a normal distribution, inverted: its standard deviation
_LEAST_PART = 1e-3  # of the median: what is smaller is as small
_QUARTILE = 0.6745  # of a standard deviation: the upper quartile of a normal distribution


@dataclass(frozen=True, kw_only=True)
class Limit:
    """From ``value`` on a figure is suspect, from ``bad`` on bad; ``source`` says who says so."""

    value: float
    bad: float
    source: str

    def verdict(self, figure: float) -> Literal["good", "suspect", "bad"]:
        """``good``, ``suspect`` or ``bad``."""
        return "bad" if figure > self.bad else "suspect" if figure > self.value else "good"


def usual_limit(
    figures: ArrayLike,
    *,
    floor: float,
    spread: float = 0.1,
    suspect: float = 6.0,
    bad: float = 10.0,
    linear: bool = False,
) -> Limit | None:
    """The limit of a positive figure from its own good mass; None where there are too few to tell.

    The good mass is what lies about the median: its spread is taken from the median absolute deviation and the upper
    quartile, of logarithms or of the figures themselves, so that up to a fifth of the episodes may be bad without
    moving the limit much.

    Args:
        figures: of the episodes that are alike, ``(n,)``; NaN is left out.
        floor: what no limit lies below: a figure that does no harm whatever is usual.
        spread: standard deviation at least: of the logarithm, where 0.1 is 10 %, else of the figure.
        suspect: standard deviations above the median from which on a figure is suspect. Six leave one of a billion
            normal ones out, and few of those with heavy tails (see the false alarms in docs/quality.md).
        bad: the same, for bad.
        linear: take figures as they are: counts and durations, of which many are 0.
    """
    values = np.asarray(figures, dtype=np.float64)
    values = values[np.isfinite(values)]
    if len(values) < LEAST:
        return None
    least = _LEAST_PART * max(floor, float(np.median(values)), float(np.finfo(float).tiny))
    scaled = values if linear else np.log(np.maximum(values, least))
    middle = float(np.median(scaled))
    deviation = max(
        _NORMAL * float(np.median(np.abs(scaled - middle))),
        (float(np.quantile(scaled, 0.75)) - middle) / _QUARTILE,
        spread,
    )
    first, second = (middle + count * deviation for count in (suspect, bad))
    if not linear:
        first, second = math.exp(first), math.exp(second)
    value = max(floor, first)
    return Limit(
        value=value,
        bad=max(second, 1.5 * value),
        source=f"{suspect:g} deviations above the median of {len(values)} episodes of this data",
    )
