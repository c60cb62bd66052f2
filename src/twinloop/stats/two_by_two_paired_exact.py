"""Two success rates on the same starts against a margin: exact for any number of pairs, whatever the rates are."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from twinloop.core.errors import InputError
from twinloop.stats.two_by_two import check_difference
from twinloop.stats.two_by_two_paired import PairedCounts, tango_statistic

MOST_PAIRS = 600  # a table of outcomes grows with the square of the pairs: this many take three seconds
_RATES = 60  # shares of pairs that differ which are tried; twice as many change no p-value by 0.001
_TIE = 1e-9  # statistics that differ by less are one


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
