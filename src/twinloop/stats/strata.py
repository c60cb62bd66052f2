"""Compare two arms within strata and summed over them.

Success rates (exact, Mantel–Haenszel) and mean scores (permutation, Welch).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
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


Array = NDArray[np.float64]
Stratum = tuple[ArrayLike, ArrayLike]


def stratified_difference(strata: Sequence[Stratum], *, level: float = 0.95) -> Interval:
    """Weighted mean over strata of mean(a) − mean(b), with Student's interval.

    Weights are n_a n_b / (n_a + n_b), as Mantel and Haenszel's. The variance within strata is pooled for each arm by
    itself, with Satterthwaite's degrees of freedom; with one stratum this is Welch's interval. Ends are NaN, with the
    reason, where nothing varies within strata or an arm has one trial in each.

    Raises:
        InputError: no stratum, or one without trials of an arm.
    """
    check_level(level)
    rows, weight = _weighted(strata)
    estimate = sum(w * (a.mean() - b.mean()) for w, (a, b) in zip(weight, rows, strict=True))
    parts, freedoms = [], []
    for arm in (0, 1):
        sizes = np.array([len(row[arm]) for row in rows])
        freedom = int(sizes.sum() - len(sizes))
        squares = sum(float(np.sum((row[arm] - row[arm].mean()) ** 2)) for row in rows)
        parts.append(squares / freedom * float(np.sum(weight**2 / sizes)) if freedom else np.nan)
        freedoms.append(freedom)
    variance = sum(parts)
    half, method = np.nan, "none: scores do not vary within an arm, so nothing tells how far they might"
    if np.isnan(variance):
        method = "none: one trial of an arm in each condition cannot tell how trials differ"
    elif variance > 1e-18:
        df = variance**2 / sum(part**2 / freedom for part, freedom in zip(parts, freedoms, strict=True))
        half, method = float(stdtrit(df, (1 + level) / 2) * np.sqrt(variance)), "Welch's t within conditions"
    value = np.array(estimate)
    low, high = np.maximum(value - half, -1.0), np.minimum(value + half, 1.0)
    return Interval(estimate=value, low=low, high=high, level=level, method=method)


def stratified_permutation(strata: Sequence[Stratum], *, draws: int = 4999, seed: int = 0) -> float:
    """Two-sided p-value that a and b do not differ in any stratum: arms are permuted within strata.

    p = (1 + number as far from zero) / (1 + draws), exact whatever the scores' distribution.

    Raises:
        InputError: no stratum, or one without trials of an arm.
    """
    rows, weight = _weighted(strata)
    rng = generator(seed, "stats/stratified_scores")
    seen, drawn = 0.0, np.zeros(draws)
    for w, (a, b) in zip(weight, rows, strict=True):
        both, n = np.concatenate([a, b]), len(a)
        seen += w * (a.mean() - b.mean())
        mixed = rng.permuted(np.tile(both, (draws, 1)), axis=1)
        drawn += w * (mixed[:, :n].mean(axis=1) - mixed[:, n:].mean(axis=1))
    return float((1 + np.sum(np.abs(drawn) >= abs(seen) - 1e-12)) / (1 + draws))


def paired_scores(
    differences: ArrayLike, *, level: float = 0.95, draws: int = 4999, seed: int = 0
) -> tuple[Interval, float]:
    """Mean of paired differences ``(n,)`` with Student's interval, and the two-sided p-value of sign flips.

    Raises:
        InputError: no pairs.
    """
    check_level(level)
    d = np.asarray(differences, dtype=np.float64)
    if not len(d):
        raise InputError("There are no pairs. Name what a real and a simulated trial have in common in a column pair.")
    spread = d.std(ddof=1) if len(d) > 1 else 0.0
    half = stdtrit(len(d) - 1, (1 + level) / 2) * spread / np.sqrt(len(d)) if spread > 0 else np.nan
    method = "Student's t over pairs" if spread > 0 else "none: all pairs differ alike"
    signs = generator(seed, "stats/paired_scores").choice([-1.0, 1.0], size=(draws, len(d)))
    p = (1 + np.sum(np.abs(signs @ d) >= abs(d.sum()) - 1e-12)) / (1 + draws)
    value = np.array(d.mean())
    return Interval(estimate=value, low=value - half, high=value + half, level=level, method=method), float(p)


def _weighted(strata: Sequence[Stratum]) -> tuple[list[tuple[Array, Array]], Array]:
    rows = [(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)) for a, b in strata]
    if not rows or any(not len(a) or not len(b) for a, b in rows):
        raise InputError("A condition lacks trials of one arm, or there is none. Compare conditions that both have.")
    weight = np.array([len(a) * len(b) / (len(a) + len(b)) for a, b in rows])
    return rows, weight / weight.sum()
