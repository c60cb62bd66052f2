"""Compare two success rates on the same starts.

McNemar's exact test, Tango's interval, and exact tests against a margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, ndtri, xlogy

from twinloop.core.errors import InputError
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.two_by_two import Alternative, check_difference

_TIE = 1e-9  # counts off by less are not off


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


def tango_statistic(only_a: ArrayLike, only_b: ArrayLike, pairs: int, difference: float) -> NDArray[np.float64]:
    """Tango's score statistic of p_a − p_b against ``difference``, elementwise over counts; 0 where none is seen."""
    b, c = np.asarray(only_a, dtype=np.float64), np.asarray(only_b, dtype=np.float64)
    linear = -b - c + (2 * pairs - b + c) * difference
    root = np.sqrt(np.maximum(linear**2 + 8 * pairs * c * difference * (1 - difference), 0.0))
    share = (root - linear) / (4 * pairs)
    variance = pairs * (2 * share + difference * (1 - difference))
    off = b - c - pairs * difference
    off = np.where(np.abs(off) < _TIE, 0.0, off)
    infinite = np.copysign(np.where(off == 0, 0.0, np.inf), off)
    return np.where(variance > _TIE, off / np.sqrt(np.maximum(variance, _TIE)), infinite)


def _tango(counts: PairedCounts, shift: float) -> float:
    return float(tango_statistic(counts.only_a, counts.only_b, counts.pairs, shift))


MOST_PAIRS = 600  # a table of outcomes grows with the square of the pairs: this many take three seconds
_RATES = 60  # shares of pairs that differ which are tried; twice as many change no p-value by 0.001


def paired_p_value(counts: PairedCounts, *, difference: float = 0.0) -> float:
    """The p-value of p_a − p_b ≤ ``difference`` from pairs, the largest over how often pairs differ.

    Outcomes are ordered by Tango's statistic (Hsueh, Liu & Chen, Biometrics 57, 2001).

    Raises:
        InputError: more than `MOST_PAIRS` pairs, or a difference outside (−1, 1).
    """
    return float(paired_p_values(counts.pairs, difference=difference)[counts.only_a, counts.only_b])


@lru_cache(maxsize=8)
def paired_p_values(pairs: int, *, difference: float = 0.0) -> NDArray[np.float64]:
    """`paired_p_value` of every outcome, ``(pairs + 1, pairs + 1)`` by only a and only b; 1 where there is none such.

    Raises:
        InputError: as `paired_p_value`.
    """
    check_difference(difference)
    if not 1 <= pairs <= MOST_PAIRS:
        raise InputError(
            f"The exact test of a margin takes 1 to {MOST_PAIRS} pairs, not {pairs}. Use the sequential test for more."
        )
    first, second = np.nonzero(np.add.outer(np.arange(pairs + 1), np.arange(pairs + 1)) <= pairs)
    key = np.round(tango_statistic(first, second, pairs, difference), 9)
    order = np.argsort(-key, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(key[order]) < -_TIE, True))
    which = np.searchsorted(ends, np.arange(len(order)))
    largest = np.zeros(len(order))
    ties = gammaln(pairs + 1) - gammaln(first + 1) - gammaln(second + 1) - gammaln(pairs - first - second + 1)
    low, high = max(0.0, -difference), (1 - difference) / 2
    for rate in low + (high - low) * np.sin(np.linspace(0, np.pi / 2, _RATES)) ** 2:
        p_a, p_b = rate + difference, rate
        rest = max(1 - p_a - p_b, 0.0)
        log_p = ties + xlogy(first, p_a) + xlogy(second, p_b) + xlogy(pairs - first - second, rest)
        np.maximum(largest, np.cumsum(np.exp(log_p)[order])[ends][which], out=largest)
    values = np.ones((pairs + 1, pairs + 1))
    values[first[order], second[order]] = np.minimum(largest, 1.0)
    values.setflags(write=False)
    return values
