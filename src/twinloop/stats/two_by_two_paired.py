"""Two success rates on the same starts: McNemar's exact test and Tango's interval of the difference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # its parts load when they are used
from scipy.special import ndtri

from twinloop.core.errors import InputError
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.two_by_two import Alternative


@dataclass(frozen=True, kw_only=True)
class PairedCounts:
    """Pairs of trials: both succeeded, only a, only b, neither.

    Raises:
        InputError: no pair, or a negative number.
    """

    both: int
    only_a: int
    only_b: int
    neither: int

    def __post_init__(self) -> None:
        counts = (self.both, self.only_a, self.only_b, self.neither)
        if min(counts) < 0 or sum(counts) < 1:
            raise InputError(f"Paired counts {counts} hold no pairs; count both, only a, only b and neither.")

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def difference(self) -> float:
        """p_a − p_b as seen."""
        return (self.only_a - self.only_b) / self.pairs


def mcnemar(counts: PairedCounts, *, alternative: Alternative = "two-sided") -> float:
    """McNemar's exact p-value of p_a = p_b: pairs that differ are coins (Psychometrika 12, 1947); 1 if none differ."""
    differing = counts.only_a + counts.only_b
    if differing == 0:
        return 1.0
    return float(scipy.stats.binomtest(counts.only_a, differing, 0.5, alternative=alternative).pvalue)


def paired_difference_interval(counts: PairedCounts, *, level: float = 0.95) -> Interval:
    """Tango's score interval of p_a − p_b in pairs (Statistics in Medicine 17, 1998); near nominal, not exact."""
    check_level(level)
    z = float(ndtri((1 + level) / 2))
    low, high = _limit(counts, z), _limit(counts, -z)
    return Interval(
        estimate=np.array(counts.difference), low=np.array(low), high=np.array(high), level=level, method="Tango score"
    )


def _limit(counts: PairedCounts, z: float) -> float:
    """Where Tango's statistic equals ``z``; it falls with the difference."""
    end = -1.0 if z > 0 else 1.0
    seen = counts.difference
    if seen == end:
        return end
    found = scipy.optimize.brentq(lambda shift: _tango(counts, shift) - z, end * (1 - 1e-12), seen, xtol=1e-10)
    return float(found)  # pyright: ignore[reportArgumentType]


def _tango(counts: PairedCounts, shift: float) -> float:
    """Tango's score statistic of the difference ``shift``."""
    n, b, c = counts.pairs, counts.only_a, counts.only_b
    linear = -b - c + (2 * n - b + c) * shift
    q = (np.sqrt(max(linear**2 - 8 * n * (-c * shift * (1 - shift)), 0.0)) - linear) / (4 * n)
    variance = n * (2 * q + shift * (1 - shift))
    off = b - c - n * shift
    return float(off / np.sqrt(variance)) if variance > 0 else float(np.copysign(np.inf, off) if off else 0.0)
