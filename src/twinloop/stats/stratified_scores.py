"""The difference of mean scores between two arms, within strata and summed over them, by permutation and Welch's t."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.interval import Interval, check_level

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
