"""Two success rates compared within conditions and summed over them: an exact test and Mantel–Haenszel's difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy  # its parts load when they are used
from scipy.special import ndtri

from twinloop.core.errors import InputError
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.two_by_two import TwoByTwo


def stratified_exact(tables: Sequence[TwoByTwo]) -> float:
    """Two-sided exact p-value of equal rates within every stratum; with one stratum it is Fisher's.

    Given the successes of each stratum, those of arm a are a sum of hypergeometric counts (Birch, J. R. Stat. Soc. B
    26, 1964); outcomes that are at most as probable count as at least as extreme.

    Raises:
        InputError: no stratum.
    """
    _some(tables)
    chance, least = np.ones(1), 0
    for table in tables:
        total = table.successes_a + table.successes_b
        low = max(0, total - table.trials_b)
        won = np.arange(low, min(table.trials_a, total) + 1)
        chance = np.convolve(
            chance, scipy.stats.hypergeom.pmf(won, table.trials_a + table.trials_b, total, table.trials_a)
        )
        least += low
    seen = chance[sum(table.successes_a for table in tables) - least]
    return float(min(chance[chance <= seen * (1 + 1e-7)].sum(), 1.0))


def mantel_haenszel(tables: Sequence[TwoByTwo], *, level: float = 0.95) -> Interval:
    """The common difference p_a − p_b within strata, with Sato's interval (Biometrics 45, 1989).

    Weights are n_a n_b / (n_a + n_b); the variance holds both for many small strata and for few large ones. It is
    asymptotic: where no stratum has both outcomes it would have no width, and its ends are NaN with the reason.

    Raises:
        InputError: no stratum.
    """
    check_level(level)
    _some(tables)
    x, n, y, m = np.array([(t.successes_a, t.trials_a, t.successes_b, t.trials_b) for t in tables], dtype=float).T
    both = n + m
    weight = n * m / both
    estimate = float(np.sum(weight * (x / n - y / m)) / weight.sum())
    skewed = (n**2 * y - m**2 * x + n * m * (m - n) / 2) / both**2
    mixed = (x * (m - y) + y * (n - x)) / (2 * both)
    variance = (estimate * skewed.sum() + mixed.sum()) / weight.sum() ** 2
    method = f"Mantel–Haenszel difference over {len(tables)} strata, Sato's variance"
    if variance <= 0:
        method += "; none: all trials of each stratum ended alike"
    half = float(ndtri((1 + level) / 2) * np.sqrt(variance)) if variance > 0 else np.nan
    low, high = max(estimate - half, -1.0), min(estimate + half, 1.0)
    ends = (low, high) if variance > 0 else (np.nan, np.nan)
    return Interval(
        estimate=np.array(estimate), low=np.array(ends[0]), high=np.array(ends[1]), level=level, method=method
    )


def _some(tables: Sequence[TwoByTwo]) -> None:
    if not tables:
        raise InputError("No condition has trials of both policies. Try both in the same conditions.")
