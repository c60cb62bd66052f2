"""How well one set of scores tells another: correlations, rankings, distances, over the last axis of ``(..., P)``.

Arguments are keyword-only, because not all of these are symmetric. Scores closer than 1e-12 are tied. Where a figure
does not exist, because all scores of one side are equal, it is NaN; `twinloop.stats.predictivity` says so in words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError

Array = NDArray[np.float64]
_TIE = 1e-12  # rounding of means, far below what one trial in a billion changes


def pearson(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Pearson's correlation of real and simulated scores, the "sim-to-real correlation" (SRCC)."""
    r, s = _both(real, sim)
    return _correlation(r, s)


def spearman(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Spearman's correlation: Pearson's of the ranks; tied scores share the mean of their ranks."""
    r, s = _both(real, sim)
    return _correlation(_ranks(r), _ranks(s))


def kendall(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Kendall's τ-b: pairs ordered alike less pairs ordered otherwise, over √(pairs untied in each)."""
    order_r, order_s = _orders(*_both(real, sim))
    agreed = np.sum(order_r * order_s, axis=(-1, -2))
    untied = np.sqrt(np.sum(order_r**2, axis=(-1, -2)) * np.sum(order_s**2, axis=(-1, -2)))
    return np.divide(agreed, untied, out=np.full(np.shape(agreed), np.nan), where=untied > 0)


def mmrv(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Mean maximum rank violation: what a policy's wrong place in the simulation costs at most in real score, averaged.

    (1/P) Σ_i max_j |r_i − r_j| · 1[(s_i > s_j) ≠ (r_i > r_j)] (Li et al., "Evaluating real-world robot manipulation
    policies in simulation", arXiv:2405.05941, eq. 2). Not symmetric: it is measured in real scores, so that swapped
    arguments give another number. A tie on one side is a violation in one direction only.
    """
    r, s = _both(real, sim)
    distance = np.abs(r[..., :, None] - r[..., None, :])
    wrong = (_differences(s) > _TIE) != (_differences(r) > _TIE)
    return np.where(wrong, distance, 0.0).max(axis=-1).mean(axis=-1)


def violations(*, real: ArrayLike, sim: ArrayLike) -> list[tuple[int, int, float]]:
    """Pairs of policies that the simulation orders otherwise, and the real score at stake, largest first.

    ``(better, worse, difference)``: policy ``better`` is better in reality, and in the simulation it is not.
    """
    r, s = _both(real, sim)
    found = np.argwhere((_differences(r) > _TIE) & ~(_differences(s) > _TIE))
    rows = [(int(i), int(j), float(r[i] - r[j])) for i, j in found]
    return sorted(rows, key=lambda row: -row[2])


def pairwise_accuracy(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Share of pairs that differ in reality whose better one the simulation names; a tie in it counts half."""
    order_r, order_s = _orders(*_both(real, sim))
    differ = np.sum(order_r != 0, axis=(-1, -2))
    right = np.sum(np.where(order_r != 0, 0.5 + 0.5 * order_r * order_s, 0.0), axis=(-1, -2))
    return np.divide(right, differ, out=np.full(np.shape(right), np.nan), where=differ > 0)


def bias(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Mean of simulated − real score: positive where the simulation flatters."""
    r, s = _both(real, sim)
    return np.mean(s - r, axis=-1)


def absolute_gap(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Mean of |simulated − real score|."""
    r, s = _both(real, sim)
    return np.mean(np.abs(s - r), axis=-1)


def best_agrees(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """The chance that the simulation's best policy is the real best: 1 or 0, and between where it has several best."""
    r, s = _both(real, sim)
    chosen = _chosen(s)
    return np.sum(chosen * (r >= r.max(axis=-1, keepdims=True) - _TIE), axis=-1)


def regret(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Real score lost by taking the simulation's best policy instead of the real best; a mean over several best."""
    r, s = _both(real, sim)
    return np.sum(_chosen(s) * (r.max(axis=-1, keepdims=True) - r), axis=-1)


def _both(real: ArrayLike, sim: ArrayLike) -> tuple[Array, Array]:
    r, s = np.asarray(real, dtype=np.float64), np.asarray(sim, dtype=np.float64)
    if r.shape != s.shape or r.ndim < 1:
        raise InputError(f"Real scores have shape {r.shape}, simulated ones {s.shape}. Give each policy one of both.")
    return r, s


def _correlation(a: Array, b: Array) -> Array:
    a, b = a - a.mean(axis=-1, keepdims=True), b - b.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.sum(a * a, axis=-1) * np.sum(b * b, axis=-1))
    return np.divide(np.sum(a * b, axis=-1), spread, out=np.full(spread.shape, np.nan), where=spread > _TIE**2)


def _differences(values: Array) -> Array:
    return values[..., :, None] - values[..., None, :]


def _orders(r: Array, s: Array) -> tuple[Array, Array]:
    """Signs of all differences, 0 where tied."""
    pair = (_differences(values) for values in (r, s))
    first, second = (np.where(np.abs(difference) > _TIE, np.sign(difference), 0.0) for difference in pair)
    return first, second


def _ranks(values: Array) -> Array:
    """Ranks from their mean being 0; tied ones share theirs."""
    difference = _differences(values)
    return np.sum(np.where(np.abs(difference) > _TIE, np.sign(difference), 0.0), axis=-1) / 2


def _chosen(sim: Array) -> Array:
    """Weights that sum to one over the best of the simulation."""
    best = (sim >= sim.max(axis=-1, keepdims=True) - _TIE).astype(np.float64)
    return best / best.sum(axis=-1, keepdims=True)
