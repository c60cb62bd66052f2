"""Compute shares of a total (Shapley values, ratios of sums) or of a variance (Sobol' indices), with intervals.

φ_i = Σ_{S ∌ i} |S|! (n − |S| − 1)! / n! · [v(S ∪ i) − v(S)] (Shapley, "A value for n-person games", Contributions to
the Theory of Games II, 1953). They sum to v(all) − v(none), are equal for equal players, zero for a player without
effect, and linear in v. Few players are valued exactly from all 2ⁿ coalitions; many from random orders, each used
forwards and backwards (Mitchell et al., "Sampling permutations for Shapley value estimation", JMLR 23, 2022), which is
exact if players interact at most in pairs.

First order S_i = V[E(f | x_i)] / V[f] and total order T_i = E[V(f | x_~i)] / V[f] of independent factors (Sobol',
"Sensitivity estimates for nonlinear mathematical models", 1993), from two independent designs A and B and, for each
factor, A with that factor taken from B. A factor may be a group of numbers. Estimators: Saltelli et al., "Variance
based sensitivity analysis of model output" (Computer Physics Communications 181, 2010), eq. (b) of table 2 for the
first order and Jansen's, eq. (f), for the total. For several outputs together (a trajectory) the indices are weighted
by each output's variance (Gamboa et al., "Sensitivity analysis for multidimensional and functional outputs", Electronic
Journal of Statistics 8, 2014).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.bootstrap import cluster_weights, stretched_percentile
from twinloop.stats.interval import Interval, check_level, holm

Array = NDArray[np.float64]
Coalitions = NDArray[np.bool_]
_MOST_PLAYERS = 16  # 65,536 coalitions: their weights still fit in memory


def every_coalition(nplayer: int) -> Coalitions:
    """Return all coalitions ``(2ⁿ, n)``: row b has the players whose bits are set in b, the first as lowest bit.

    Raises:
        InputError: fewer than 1 or more than 16 players.
    """
    if not 1 <= nplayer <= _MOST_PLAYERS:
        raise InputError(
            f"{nplayer} players have 2^{nplayer} coalitions; exact Shapley values take 1 to {_MOST_PLAYERS}. Put "
            "several into one, or sample orders."
        )
    return (np.arange(2**nplayer)[:, None] >> np.arange(nplayer)) & 1 == 1


def shapley(values: ArrayLike) -> Array:
    """Return exact Shapley values ``(n, …)`` from values ``(2ⁿ, …)`` of coalitions in the order of `every_coalition`.

    Raises:
        InputError: the number of values is not a power of two.
    """
    worth = np.asarray(values, dtype=np.float64)
    nplayer = max(len(worth).bit_length() - 1, 1)
    if len(worth) != 2**nplayer:
        raise InputError(f"{len(worth)} values are given; n players have 2^n coalitions, the empty one included.")
    return np.tensordot(_shapley_weights(nplayer), worth, axes=1)


def _shapley_weights(nplayer: int) -> Array:
    """Return the weight of each coalition's value in each player's share, ``(n, 2ⁿ)``."""
    member = every_coalition(nplayer)
    size = member.sum(axis=1)
    chance = np.array([1.0 / (nplayer * math.comb(nplayer - 1, s)) for s in range(nplayer)])
    joined = chance[np.maximum(size - 1, 0)]  # of being the coalition that forms when this player comes last
    left = chance[np.minimum(size, nplayer - 1)]
    return np.where(member, joined[:, None], -left[:, None]).T


@dataclass(frozen=True, kw_only=True)
class JoiningOrders:
    """``orders`` ``(nwalk, n)`` in which players join a coalition; the second half are the first half reversed.

    ``coalitions`` ``(k, n)`` are the different coalitions along the walks, the empty one first and the full one last.
    ``steps`` ``(nwalk, n + 1)`` are the rows of each walk in ``coalitions``.
    """

    orders: NDArray[np.intp]
    coalitions: Coalitions
    steps: NDArray[np.intp]


def draw_joining_orders(nplayer: int, pairs: int, *, seed: int = 0, stream: str = "stats/shapley") -> JoiningOrders:
    """Draw ``pairs`` random orders, each with its reverse.

    Raises:
        InputError: no player or no pair.
    """
    if nplayer < 1 or pairs < 1:
        raise InputError(f"{pairs} pairs of orders of {nplayer} players: both are at least 1.")
    rng = generator(seed, stream)
    forwards = np.stack([rng.permutation(nplayer) for _ in range(pairs)])
    orders = np.concatenate([forwards, forwards[:, ::-1]])
    passed = np.zeros((len(orders), nplayer + 1, nplayer), dtype=bool)
    rank = np.argsort(orders, axis=1)  # when each player joins
    passed[:] = rank[:, None, :] < np.arange(nplayer + 1)[:, None]
    flat = passed.reshape(-1, nplayer)
    size_first = np.lexsort((*flat.T, flat.sum(axis=1)))
    fresh = np.append(True, (flat[size_first][1:] != flat[size_first][:-1]).any(axis=1))
    number = np.empty(len(flat), dtype=np.intp)
    number[size_first] = np.cumsum(fresh) - 1
    return JoiningOrders(
        orders=orders, coalitions=flat[size_first][fresh], steps=number.reshape(len(orders), nplayer + 1)
    )


def shapley_from_orders(values: ArrayLike, walks: JoiningOrders) -> Array:
    """Return contributions ``(pair, n, …)`` by pair of walks, from values ``(k, …)`` of `JoiningOrders.coalitions`.

    The mean over pairs estimates the Shapley values without bias; each pair sums to v(all) − v(none).
    """
    worth = np.asarray(values, dtype=np.float64)
    gains = np.diff(worth[walks.steps], axis=1)  # (nwalk, n, …) by place in the order
    place = np.argsort(walks.orders, axis=1)
    own = np.take_along_axis(gains, place.reshape(*place.shape, *(1,) * (gains.ndim - 2)), axis=1)
    forwards, backwards = np.split(own, 2)
    return (forwards + backwards) / 2


_LEAST_CLUSTERS = 2


@dataclass(frozen=True, kw_only=True)
class ShapleyShares:
    """Shares ``(m, k)`` with intervals, and two-sided p-values ``(m, k)`` of the hypothesis that a share is 0.

    ``replicates`` ``(ndraw, m, k)`` are the shares from resampled clusters and from draws of the other uncertainties;
    none if there is no interval.
    """

    interval: Interval
    p_values: Array
    replicates: Array

    def significant_mask(self) -> NDArray[np.bool_]:
        """Return which shares differ significantly from 0, ``(m, k)``.

        Their interval excludes 0, and Holm's p-value over the ``m`` shares of a column is at most 1 − level. The chance
        of any false claim in a column is therefore at most 1 − level.
        """
        outside = (self.interval.low > 0) | (self.interval.high < 0)
        known = np.where(np.isfinite(self.p_values), self.p_values, 1.0)
        adjusted = np.stack([holm(column) for column in known.T], axis=-1)
        return np.asarray(outside & (adjusted <= 1 - self.interval.level))

    def correlation(self, column: int) -> Array:
        """Return the correlation of the errors of a column's shares, ``(m, m)``; 0 if a share does not vary."""
        values = self.replicates[..., column]
        scaled = values - values.mean(axis=0)
        size = np.sqrt(np.sum(scaled**2, axis=0))
        scaled = np.divide(scaled, size, out=np.zeros_like(scaled), where=size > 0)
        return scaled.T @ scaled


@dataclass(frozen=True, kw_only=True)
class ShareDeviations:
    """Uncertainty of shares besides the one between clusters.

    Its covariance is the sum of products of ``values`` ``(n, m, k)``; ``df`` are its degrees of freedom.
    """

    values: Array
    df: float

    @classmethod
    def of_draws(cls, drawn: ArrayLike, *, df: float = np.inf) -> ShareDeviations:
        """Create from shares ``(n, m, k)`` at n draws of an uncertain quantity; the spread is that of one draw.

        ``df`` are the degrees of freedom of the covariance of the draws. A variance that was estimated twice
        has a relative variance of 2 / df + 2 / (n − 1).
        """
        table = np.asarray(drawn, dtype=np.float64)
        own = max(len(table) - 1, 1)
        return cls(values=(table - table.mean(axis=0)) / np.sqrt(own), df=1 / (1 / own + 1 / df))

    @classmethod
    def of_mean(cls, sampled: ArrayLike) -> ShareDeviations:
        """Create from n samples ``(n, m, k)`` whose mean the shares are; the spread is that of the mean."""
        one = cls.of_draws(sampled)
        return cls(values=one.values / np.sqrt(len(one.values)), df=one.df)

    def sum_groups(self, groups: ArrayLike) -> ShareDeviations:
        """Return the deviations of sums of shares; ``groups`` ``(g, m)`` are the weights of the shares in each sum."""
        return ShareDeviations(
            values=np.einsum("gm,nmk->ngk", np.asarray(groups, dtype=np.float64), self.values), df=self.df
        )

    def column(self, number: int) -> ShareDeviations:
        """Return the deviations of one column of the shares."""
        return ShareDeviations(values=self.values[..., [number]], df=self.df)

    def __add__(self, other: ShareDeviations) -> ShareDeviations:
        return ShareDeviations(values=np.concatenate([self.values, other.values]), df=min(self.df, other.df))


def ratios(parts: ArrayLike, whole: ArrayLike, mix: ArrayLike | None = None) -> Array:
    """Return Σ ``parts`` / Σ ``whole`` over clusters, ``(…, k)`` from ``(…, C, k)`` and ``(C, k)``; NaN if undefined.

    Args:
        parts: parts of each cluster.
        whole: total of each cluster.
        mix: weights ``(k, j)`` to sum columns after the division; columns that are NaN must have weight 0.
    """
    return _divide_sums(np.asarray(parts, dtype=np.float64).sum(axis=-2), np.asarray(whole).sum(axis=0), mix)


def compute_shares(
    parts: ArrayLike,
    whole: ArrayLike,
    *,
    mix: ArrayLike | None = None,
    deviations: ShareDeviations | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> ShapleyShares:
    """Return shares of a whole with intervals over resampled clusters.

    Intervals are percentiles of the bootstrap over clusters, widened for few of them (`stretched_percentile`). Other
    uncertainties of the parts (estimated parameters, sampled orders) widen the distribution by normal deviations. The
    p-value is that of the share divided by its standard error, with Student's t of Satterthwaite's degrees of freedom
    ("An approximate distribution of estimates of variance components", Biometrics Bulletin 2, 1946).

    Args:
        parts: ``(m, C, k)``.
        whole: ``(C, k)``.
        mix: see `ratios`.
        deviations: other uncertainties of the shares, after mixing; see `ShareDeviations`.
        level: confidence level.
        draws: number of resamples.
        seed: run seed of the resamples.

    Raises:
        InputError: fewer than two clusters, for which there is no interval; see `shares_without_intervals`.
    """
    check_level(level)
    pieces, total = np.asarray(parts, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    clusters = len(total)
    if clusters < _LEAST_CLUSTERS:
        raise InputError(f"Intervals of shares need at least {_LEAST_CLUSTERS} episodes, not {clusters}.")
    estimate = ratios(pieces, total, mix)
    weights = cluster_weights(clusters, draws, seed=seed)
    values = _divide_sums(np.einsum("dc,mck->dmk", weights, pieces), (weights @ total)[:, None], mix)
    own = values.std(axis=0) * np.sqrt(clusters / (clusters - 1))
    more, df = np.zeros_like(own), np.inf
    if deviations is not None:
        normal = generator(seed, "stats/shares").standard_normal((draws, len(deviations.values)))
        values = values + np.einsum("dn,nmk->dmk", normal, deviations.values)
        more, df = np.sqrt(np.sum(deviations.values**2, axis=0)), deviations.df
    freedom = _satterthwaite(own, clusters - 1, more, df)
    low, high = stretched_percentile(values, clusters, freedom, level=level)
    method = "bootstrap over clusters" + ("" if deviations is None else ", widened for other uncertainties")
    interval = Interval.of(estimate, low, high, level=level, method=method)
    p_values = _p_values(estimate, np.hypot(own, more), freedom)
    return ShapleyShares(interval=interval, p_values=p_values, replicates=values)


def shares_without_intervals(
    parts: ArrayLike, whole: ArrayLike, *, mix: ArrayLike | None = None, level: float, reason: str
) -> ShapleyShares:
    """Return the shares of a single cluster without intervals (NaN); ``reason`` becomes the interval's method."""
    estimate = ratios(parts, whole, mix)
    unknown = np.full_like(estimate, np.nan)
    interval = Interval.of(estimate, unknown, unknown, level=level, method=reason)
    return ShapleyShares(interval=interval, p_values=unknown, replicates=np.zeros((0, *estimate.shape)))


def _divide_sums(parts: Array, whole: Array, mix: ArrayLike | None) -> Array:
    whole = np.broadcast_to(whole, parts.shape)
    known = whole > 0
    if mix is None:
        return np.divide(parts, whole, out=np.full_like(parts, np.nan), where=known)
    weights = np.asarray(mix, dtype=np.float64)
    split = np.divide(parts, whole, out=np.zeros_like(parts), where=known)
    lost = ~known @ (weights != 0)
    return np.where(lost | ~(weights != 0).any(axis=0), np.nan, split @ weights)


def _satterthwaite(first: Array, first_df: float, second: Array, second_df: float) -> Array:
    total = first**4 / first_df + second**4 / second_df
    return np.divide((first**2 + second**2) ** 2, total, out=np.full_like(total, first_df), where=total > 0)


def _p_values(estimate: Array, error: Array, df: Array) -> Array:
    """Return two-sided p-values; a share that never varies has 1 if it is 0, else 0."""
    sure = np.where(np.isnan(estimate), np.nan, np.where(estimate == 0, 1.0, 0.0))
    varies = error > 1e-12 * np.abs(estimate)
    t = np.divide(np.abs(estimate), error, out=np.zeros_like(error), where=varies)
    return np.where(varies, 2 * stdtr(df, -t), sure)


_LEAST_ROWS = 8
_BITS = 30  # as SciPy's; a point has so many binary digits
_SOBOL_STREAM = "stats/sobol_indices"


def sobol_rows(nfactor: int, base: int, *, seed: int = 0, sizes: ArrayLike | None = None) -> Array:
    """Return points ``(nfactor + 2, base, naxis)`` of the open unit cube: A, B, and A with each factor taken from B.

    A and B are the halves of Sobol' points with twice as many axes (``scipy.stats.qmc``) under a random digital shift,
    which makes every point uniform and keeps the points balanced.

    Args:
        nfactor: number of factors.
        base: number of rows of A, a power of two, because Sobol' points are balanced only then.
        seed: seed of the shift.
        sizes: number of axes of each factor, ``(nfactor,)``; by default 1.

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
    shift = generator(seed, _SOBOL_STREAM).integers(0, 2**_BITS, size=naxis)
    first, second = np.split(((digits ^ shift) + 0.5) / 2.0**_BITS, 2, axis=1)
    owner = np.repeat(np.arange(nfactor), axes)
    mixed = [np.where(owner == factor, second, first) for factor in range(nfactor)]
    return np.stack([first, second, *mixed]).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class SobolTerms:
    """Terms whose means are the indices: ``first`` and ``total`` ``(nfactor, base, …)``, ``variance`` ``(base, …)``.

    Terms of several outputs sum to those of all together, with each output weighted by its variance.
    """

    first: Array
    total: Array
    variance: Array

    def __add__(self, other: SobolTerms) -> SobolTerms:
        return SobolTerms(
            first=self.first + other.first, total=self.total + other.total, variance=self.variance + other.variance
        )

    def sum_outputs(self, axis: int) -> SobolTerms:
        """Return the terms summed over one of the trailing axes of outputs (negative number)."""
        if axis >= 0:
            raise ValueError("axes of outputs are counted from the end")
        return SobolTerms(
            first=self.first.sum(axis=axis), total=self.total.sum(axis=axis), variance=self.variance.sum(axis=axis)
        )


def sobol_terms(values: ArrayLike) -> SobolTerms:
    """Return the terms of outputs ``(nfactor + 2, base, …)`` at the points of `sobol_rows`.

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
    """First and total order indices ``(nfactor, …)`` with intervals; NaN if the output does not vary.

    Estimates are not clipped: a factor without effect may have an index slightly below 0.
    """

    first: Interval
    total: Interval


def sobol_indices(
    terms: SobolTerms, *, clusters: bool = False, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> SobolIndices:
    """Return indices with percentile bootstrap intervals over the rows of the design.

    Rows of Sobol' points are spread more evenly than random points, so these intervals are slightly too wide.

    Args:
        terms: see `sobol_terms`.
        clusters: the axis after the rows are clusters (episodes): they are pooled, and resampled too.
        level: confidence level.
        draws: number of resamples.
        seed: run seed of the resamples.
    """
    check_level(level)
    base = terms.variance.shape[0]
    rng = generator(seed, f"{_SOBOL_STREAM}/bootstrap")
    rows = _resample_counts(rng, base, draws)
    columns = _resample_counts(rng, terms.variance.shape[1], draws) if clusters else None
    scale = _weighted_sums(terms.variance, rows, columns)
    made = []
    for values in (terms.first, terms.total):
        ratios = np.stack([_ratio(_weighted_sums(factor, rows, columns), scale) for factor in values], axis=1)
        tail = (1 - level) / 2
        low, high = np.quantile(ratios[1:], [tail, 1 - tail], axis=0)
        method = "percentile bootstrap over rows of the design" + (" and episodes" if clusters else "")
        made.append(Interval.of(ratios[0], low, high, level=level, method=method))
    return SobolIndices(first=made[0], total=made[1])


def _resample_counts(rng: np.random.Generator, n: int, draws: int) -> Array:
    """Return how often each of ``n`` is drawn in each resample, ``(1 + draws, n)``; the first row is all ones."""
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=draws)
    return np.concatenate([np.ones((1, n)), drawn.astype(np.float64)])


def _weighted_sums(values: Array, rows: Array, columns: Array | None) -> Array:
    """Return weighted sums of ``(base, …)`` or ``(base, ncluster, …)`` for every resample, ``(1 + draws, …)``."""
    summed = np.tensordot(rows, values, axes=1)
    return summed if columns is None else np.einsum("dc,dc...->d...", columns, summed)


def _ratio(part: Array, whole: Array) -> Array:
    varies = whole > np.finfo(np.float64).tiny
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=varies)
