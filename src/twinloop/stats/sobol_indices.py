"""Variance-based sensitivity: which part of an output's variance a factor makes alone, and with all others.

First order S_i = V[E(f | x_i)] / V[f] and total order T_i = E[V(f | x_~i)] / V[f] of independent factors (Sobol',
"Sensitivity estimates for nonlinear mathematical models", 1993), from two independent designs A and B and, for each
factor, A with that factor taken from B. A factor may be a group of numbers. Estimators: Saltelli et al., "Variance
based sensitivity analysis of model output" (Computer Physics Communications 181, 2010), eq. (b) of table 2 for the
first order and Jansen's, eq. (f), for the total. Of many outputs together (a trajectory) the indices are weighted by
each output's variance (Gamboa et al., "Sensitivity analysis for multidimensional and functional outputs", Electronic
Journal of Statistics 8, 2014).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.interval import Interval, check_level

Array = NDArray[np.float64]
_LEAST_ROWS = 8
_BITS = 30  # as SciPy's; a point has so many binary digits
_STREAM = "stats/sobol_indices"


def sobol_rows(nfactor: int, base: int, *, seed: int = 0, sizes: ArrayLike | None = None) -> Array:
    """Points ``(nfactor + 2, base, naxis)`` of the open unit cube: A, B, and A with each factor taken from B.

    A and B are the halves of Sobol' points of twice as many axes (``scipy.stats.qmc``) under a random digital shift,
    which makes every point uniform and leaves them balanced.

    Args:
        nfactor: factors.
        base: rows of A, a power of two, because Sobol' points are balanced only then.
        seed: of the shift.
        sizes: axes of each factor, ``(nfactor,)``; one each without it.

    Raises:
        InputError: no factor, or a base that is no power of two or below 8.
    """
    axes = np.ones(nfactor, dtype=np.intp) if sizes is None else np.asarray(sizes, dtype=np.intp)
    if nfactor < 1 or axes.shape != (nfactor,) or (axes < 1).any():
        raise InputError(f"A sensitivity of {nfactor} factors with {axes.tolist()} axes: each has at least one.")
    if base < _LEAST_ROWS or base & (base - 1):
        raise InputError(f"A Sobol' design of {base} rows: give a power of two from {_LEAST_ROWS}, such as 64.")
    naxis = 2 * int(axes.sum())
    digits = (scipy.stats.qmc.Sobol(naxis, scramble=False, bits=_BITS).random(base) * 2.0**_BITS).astype(np.int64)
    shift = generator(seed, _STREAM).integers(0, 2**_BITS, size=naxis)
    first, second = np.split(((digits ^ shift) + 0.5) / 2.0**_BITS, 2, axis=1)
    owner = np.repeat(np.arange(nfactor), axes)
    mixed = [np.where(owner == factor, second, first) for factor in range(nfactor)]
    return np.stack([first, second, *mixed]).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class SobolTerms:
    """What the indices are means of: ``first`` and ``total`` ``(nfactor, base, …)``, ``variance`` ``(base, …)``.

    Terms of several outputs add up to those of all together, in which each counts by its variance.
    """

    first: Array
    total: Array
    variance: Array

    def __add__(self, other: SobolTerms) -> SobolTerms:
        return SobolTerms(
            first=self.first + other.first, total=self.total + other.total, variance=self.variance + other.variance
        )

    def pooled(self, axis: int) -> SobolTerms:
        """The outputs along one of the trailing axes (negative number) together."""
        if axis >= 0:
            raise ValueError("axes of outputs are counted from the end")
        return SobolTerms(
            first=self.first.sum(axis=axis), total=self.total.sum(axis=axis), variance=self.variance.sum(axis=axis)
        )


def sobol_terms(values: ArrayLike) -> SobolTerms:
    """Terms of outputs ``(nfactor + 2, base, …)`` at the points of `sobol_rows`.

    Raises:
        InputError: an output that is not finite.
    """
    table = np.asarray(values, dtype=np.float64)
    if not np.isfinite(table).all():
        raise InputError("An output of a sensitivity design is not finite. Narrow the ranges that it draws from.")
    table = table - table[:2].mean(axis=(0, 1))
    a, b, mixed = table[0], table[1], table[2:]
    return SobolTerms(first=b * (mixed - a), total=(a - mixed) ** 2 / 2, variance=(a**2 + b**2) / 2)


@dataclass(frozen=True, kw_only=True)
class SobolIndices:
    """First and total order ``(nfactor, …)`` with intervals; NaN where the output does not vary.

    Estimates are left as they come: a factor without effect may read a little below 0.
    """

    first: Interval
    total: Interval


def sobol_indices(
    terms: SobolTerms, *, clusters: bool = False, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> SobolIndices:
    """Indices with percentile bootstrap intervals over the rows of the design.

    Rows of Sobol' points are spread more evenly than by chance, so that these intervals are rather too wide.

    Args:
        terms: see `sobol_terms`.
        clusters: the axis after the rows are clusters (episodes): they are pooled, and drawn again as well.
        level: confidence level.
        draws: how many resamples.
        seed: the run seed of the resamples.
    """
    check_level(level)
    base = terms.variance.shape[0]
    rng = generator(seed, f"{_STREAM}/bootstrap")
    rows = _counts(rng, base, draws)
    columns = _counts(rng, terms.variance.shape[1], draws) if clusters else None
    scale = _means(terms.variance, rows, columns)
    made = []
    for values in (terms.first, terms.total):
        ratios = np.stack([_ratio(_means(factor, rows, columns), scale) for factor in values], axis=1)
        tail = (1 - level) / 2
        low, high = np.quantile(ratios[1:], [tail, 1 - tail], axis=0)
        method = "percentile bootstrap over rows of the design" + (" and episodes" if clusters else "")
        made.append(Interval(estimate=ratios[0], low=low, high=high, level=level, method=method))
    return SobolIndices(first=made[0], total=made[1])


def _counts(rng: np.random.Generator, n: int, draws: int) -> Array:
    """How often each of ``n`` is drawn in each resample, ``(1 + draws, n)``; the first row holds each once."""
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=draws)
    return np.concatenate([np.ones((1, n)), drawn.astype(np.float64)])


def _means(values: Array, rows: Array, columns: Array | None) -> Array:
    """Weighted sums of ``(base, …)`` or ``(base, ncluster, …)`` under every resample, ``(1 + draws, …)``."""
    if columns is None:
        return np.tensordot(rows, values, axes=1)
    by_cluster = np.tensordot(rows, values, axes=1)  # (1 + draws, ncluster, …)
    return np.einsum("dc,dc...->d...", columns, by_cluster)


def _ratio(part: Array, whole: Array) -> Array:
    varies = whole > np.finfo(np.float64).tiny
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=varies)
