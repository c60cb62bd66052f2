"""Compute shares of a total (Shapley values, ratios of sums) or of a variance (Sobol' indices), with intervals.

The Shapley value divides a total among n players, for example an error among its causes. v(S) is the value that a set
(coalition) S of players has together, and the total is v(all players) − v(no player). The players join one by one in
random order. The share of a player is the mean increase of v at its joining, over all orders (Shapley, "A value for
n-person games", Contributions to the Theory of Games II, 1953). The shares are equal for equal players, zero for a
player without effect, and linear in v. Shares of few players are computed exactly from all 2ⁿ coalitions. Those of many
players are estimated from random orders, each used forwards and backwards (Mitchell et al., "Sampling permutations for
Shapley value estimation", JMLR 23, 2022), which is exact if players interact at most in pairs.

Sobol' indices divide the variance V[f] of an output f among independent factors x_i. The first-order index S_i = V[E(f
| x_i)] / V[f] is the share that x_i causes alone. The total-order index T_i = E[V(f | all factors but x_i)] / V[f] also
includes its interactions with other factors (Sobol', "Sensitivity estimates for nonlinear mathematical models", 1993).
They are computed from two independent designs A and B and, for each factor, the design A with that factor taken from B.
A factor may be a group of numbers. Estimators: Saltelli et al., "Variance based sensitivity analysis of model output"
(Computer Physics Communications 181, 2010), eq. (b) of table 2 for the first order and Jansen's, eq. (f), for the total
order. For several outputs together (a trajectory) the indices are weighted by each output's variance (Gamboa et al.,
"Sensitivity analysis for multidimensional and functional outputs", Electronic Journal of Statistics 8, 2014).
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
    """Return all coalitions (subsets) of n players, as a mask of shape ``(2ⁿ, n)``.

    Row b has the players whose bits are set in the number b; the first player is the lowest bit.

    Raises:
        InputError: If there are fewer than 1 or more than 16 players.
    """
    if not 1 <= nplayer <= _MOST_PLAYERS:
        raise InputError(
            f"{nplayer} players have 2^{nplayer} coalitions; exact Shapley values allow 1 to {_MOST_PLAYERS}. "
            "Combine several players into one, or sample orders."
        )
    return (np.arange(2**nplayer)[:, None] >> np.arange(nplayer)) & 1 == 1


def shapley(values: ArrayLike) -> Array:
    """Return exact Shapley values of n players, shape ``(n, …)``.

    Args:
        values: Value v(S) of each coalition S in the order of `every_coalition`, shape ``(2ⁿ, …)``.

    Raises:
        InputError: If the number of values is not a power of two.
    """
    worth = np.asarray(values, dtype=np.float64)
    nplayer = max(len(worth).bit_length() - 1, 1)
    if len(worth) != 2**nplayer:
        raise InputError(f"{len(worth)} values are given; n players have 2^n coalitions, the empty one included.")
    return np.tensordot(_shapley_weights(nplayer), worth, axes=1)


def _shapley_weights(nplayer: int) -> Array:
    """Return the weights w with which the values of all coalitions give the Shapley values, shape ``(n, 2ⁿ)``.

    The Shapley value of player i is Σ_b w[i, b] v(b). Coalition b (a subset of the n players) has the players whose
    bits are set in the number b.
    """
    member = every_coalition(nplayer)
    size = member.sum(axis=1)
    chance = np.array([1.0 / (nplayer * math.comb(nplayer - 1, s)) for s in range(nplayer)])
    joined = chance[np.maximum(size - 1, 0)]  # of being the coalition that forms when this player comes last
    left = chance[np.minimum(size, nplayer - 1)]
    return np.where(member, joined[:, None], -left[:, None]).T


@dataclass(frozen=True, kw_only=True)
class JoiningOrders:
    """Random orders in which n players join a coalition one by one, for sampled Shapley values.

    Attributes:
        orders: Players in each order, shape ``(norder, n)``; the second half are the orders of the first half,
            reversed.
        coalitions: All different coalitions that occur, as a mask of shape ``(k, n)``; the empty coalition is first and
            the full coalition last.
        steps: Row of ``coalitions`` after 0 to n players have joined in each order, shape ``(norder, n + 1)``.
    """

    orders: NDArray[np.intp]
    coalitions: Coalitions
    steps: NDArray[np.intp]


def draw_joining_orders(nplayer: int, pairs: int, *, seed: int = 0, stream: str = "stats/shapley") -> JoiningOrders:
    """Draw random orders of players, each with its reverse, for `shapley_from_orders`.

    Players are the items among which a Shapley value divides a total, for example parameter groups.

    Args:
        nplayer: Number of players.
        pairs: Number of pairs of an order and its reverse.
        seed: Run seed.
        stream: Name of the random stream.

    Raises:
        InputError: If ``nplayer`` or ``pairs`` is below one.
    """
    if nplayer < 1 or pairs < 1:
        raise InputError(f"Cannot draw {pairs} pairs of orders of {nplayer} players. Both numbers must be at least 1.")
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
    """Return the contribution of each player in each pair of an order and its reverse.

    The contribution in an order is the increase of the value when the player joins the players before it.

    The mean over pairs is an unbiased estimate of the Shapley values. The contributions of a pair sum to the value of
    all players minus that of no player.

    Args:
        values: Value of each of the k coalitions (sets of players) in ``walks.coalitions``, shape ``(k, …)``.
        walks: Orders in which the players join, from `draw_joining_orders`.

    Returns:
        Shape ``(npair, n, …)`` for n players.
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
    """Shares of m parts in each of k totals, with intervals.

    A part is, for example, the contribution of a cause to an error, and the total is the error. k is the number of
    channels.

    Attributes:
        interval: Shares with intervals, shape ``(m, k)``.
        p_values: Two-sided p-values of the hypothesis that a share is 0, shape ``(m, k)``.
        replicates: Shares from resampled clusters and from draws of the other uncertainties, shape ``(ndraw, m, k)``;
            empty if there is no interval.
    """

    interval: Interval
    p_values: Array
    replicates: Array

    def significant_mask(self) -> NDArray[np.bool_]:
        """Return which shares differ significantly from 0, shape ``(m, k)``.

        Their interval excludes 0, and their p-value, adjusted by Holm's method over the m shares of a total, is at most
        1 − level. The chance of any false claim in a total is therefore at most 1 − level.
        """
        outside = (self.interval.low > 0) | (self.interval.high < 0)
        known = np.where(np.isfinite(self.p_values), self.p_values, 1.0)
        adjusted = np.stack([holm(column) for column in known.T], axis=-1)
        return np.asarray(outside & (adjusted <= 1 - self.interval.level))

    def correlation(self, column: int) -> Array:
        """Return the correlation matrix of the errors of the m shares of one total, shape ``(m, m)``.

        A total is a quantity that is divided among m causes.

        Entries are 0 if a share does not vary.

        Args:
            column: Index of the total.
        """
        values = self.replicates[..., column]
        scaled = values - values.mean(axis=0)
        size = np.sqrt(np.sum(scaled**2, axis=0))
        scaled = np.divide(scaled, size, out=np.zeros_like(scaled), where=size > 0)
        return scaled.T @ scaled


@dataclass(frozen=True, kw_only=True)
class ShareDeviations:
    """Uncertainty of shares that comes in addition to the variation between clusters (episodes).

    A share is the part of a total that one cause has, for example the share of a parameter group in the error of a
    channel. Further uncertainty comes, for example, from estimated parameters.

    The covariance of share i of total a and share j of total b is the sum over n rows of ``values[:, i, a]`` ·
    ``values[:, j, b]``.

    Attributes:
        values: Scaled deviations of the shares from their mean, shape ``(n, m, k)`` for m shares of k totals.
        df: Degrees of freedom of that covariance.
    """

    values: Array
    df: float

    @classmethod
    def of_draws(cls, drawn: ArrayLike, *, df: float = np.inf) -> ShareDeviations:
        """Create the uncertainty of shares from their values at n draws of an uncertain quantity.

        The quantity is, for example, the vector of fitted parameters. The deviations are those from the mean of the
        draws.

        The covariance is that of the draws. Its degrees of freedom combine those of the quantity (``df``) and those of
        n draws (n − 1): their reciprocals are added, as relative variances of the two estimates.

        Args:
            drawn: Share of each of m causes in each of k totals at each draw, shape ``(n, m, k)``.
            df: Degrees of freedom of the covariance from which the quantity was drawn.
        """
        table = np.asarray(drawn, dtype=np.float64)
        own = max(len(table) - 1, 1)
        return cls(values=(table - table.mean(axis=0)) / np.sqrt(own), df=1 / (1 / own + 1 / df))

    @classmethod
    def of_mean(cls, sampled: ArrayLike) -> ShareDeviations:
        """Create the uncertainty of the mean of n independent samples of the shares.

        Use it if the mean of the samples is reported. Its covariance is 1/n of the covariance of the samples, which
        `of_draws` gives.

        Args:
            sampled: Share of each of m causes in each of k totals in each sample, shape ``(n, m, k)``.
        """
        one = cls.of_draws(sampled)
        return cls(values=one.values / np.sqrt(len(one.values)), df=one.df)

    def sum_groups(self, groups: ArrayLike) -> ShareDeviations:
        """Return the deviations of weighted sums of shares, for example of groups of causes, from the mean of the sums.

        The ``values`` of the result have shape ``(n, g, k)``.

        Args:
            groups: Weight of each of the m shares in each of g sums, shape ``(g, m)``.
        """
        return ShareDeviations(
            values=np.einsum("gm,nmk->ngk", np.asarray(groups, dtype=np.float64), self.values), df=self.df
        )

    def column(self, number: int) -> ShareDeviations:
        """Return the deviations of the shares of one of the k totals, with ``values`` of shape ``(n, m, 1)``.

        A total is a quantity that is divided among m causes.

        Args:
            number: Index of the total.
        """
        return ShareDeviations(values=self.values[..., [number]], df=self.df)

    def __add__(self, other: ShareDeviations) -> ShareDeviations:
        return ShareDeviations(values=np.concatenate([self.values, other.values]), df=min(self.df, other.df))


def ratios(parts: ArrayLike, whole: ArrayLike, weights: ArrayLike | None = None) -> Array:
    """Return the sum of the parts over all clusters divided by the sum of the totals; NaN for a total of 0.

    Args:
        parts: Parts of each of C clusters, shape ``(…, C, k)`` for k totals.
        whole: Totals of each cluster, shape ``(C, k)``.
        weights: If given, weighted sums of the k ratios are returned, one per column of the weights ``(k, j)``. A ratio
            that is NaN must have weight 0.

    Returns:
        Shape ``(…, k)``, or ``(…, j)`` with ``weights``.
    """
    return _divide_sums(np.asarray(parts, dtype=np.float64).sum(axis=-2), np.asarray(whole).sum(axis=0), weights)


def compute_shares(
    parts: ArrayLike,
    whole: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    deviations: ShareDeviations | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> ShapleyShares:
    """Return the shares of m parts in k totals, with intervals over resampled clusters (episodes).

    A share is the sum of a part over all clusters divided by the sum of the total, for example the share of one cause
    in an error.

    Intervals are percentiles of the bootstrap over clusters, widened for few of them (`stretched_percentile`). If the
    parts have further uncertainties (from estimated parameters, or from Shapley values that are computed from random
    orders), normal random numbers with the covariance of ``deviations`` are added to the shares of each resample. The
    p-value is that of the share divided by its standard error, from Student's t with Satterthwaite's degrees of freedom
    ("An approximate distribution of estimates of variance components", Biometrics Bulletin 2, 1946).

    Args:
        parts: Parts of each of C clusters, shape ``(m, C, k)``.
        whole: Totals of each cluster, shape ``(C, k)``.
        weights: If given, weighted sums of the k shares are returned, one per column of the weights ``(k, j)``, see
            `ratios`.
        deviations: Further uncertainties of the shares that are returned (after the sums with ``weights``, if given);
            None if there are none.
        level: Confidence level.
        draws: Number of resamples.
        seed: Run seed of the resamples.

    Raises:
        InputError: If there are fewer than two clusters; use `shares_without_intervals` for a single cluster.
    """
    check_level(level)
    pieces, total = np.asarray(parts, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    clusters = len(total)
    if clusters < _LEAST_CLUSTERS:
        raise InputError(f"Intervals of shares need at least {_LEAST_CLUSTERS} episodes, not {clusters}.")
    estimate = ratios(pieces, total, weights)
    counts = cluster_weights(clusters, draws, seed=seed)
    values = _divide_sums(np.einsum("dc,mck->dmk", counts, pieces), (counts @ total)[:, None], weights)
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
    parts: ArrayLike, whole: ArrayLike, *, weights: ArrayLike | None = None, level: float, reason: str
) -> ShapleyShares:
    """Return the shares of m parts in k totals if no intervals can be computed; limits and p-values are NaN.

    A share is a part divided by the total, for example of one cause in an error, after both are summed over the
    clusters (episodes).

    Args:
        parts: Parts of each of C clusters, shape ``(m, C, k)``.
        whole: Totals of each cluster, shape ``(C, k)``.
        weights: If given, weighted sums of the k shares are returned, one per column of the weights ``(k, j)``, see
            `ratios`.
        level: Nominal confidence level, for the record.
        reason: Reason why there is no interval; it becomes the interval's ``method``.
    """
    estimate = ratios(parts, whole, weights)
    unknown = np.full_like(estimate, np.nan)
    interval = Interval.of(estimate, unknown, unknown, level=level, method=reason)
    return ShapleyShares(interval=interval, p_values=unknown, replicates=np.zeros((0, *estimate.shape)))


def _divide_sums(parts: Array, whole: Array, weights: ArrayLike | None) -> Array:
    whole = np.broadcast_to(whole, parts.shape)
    known = whole > 0
    if weights is None:
        return np.divide(parts, whole, out=np.full_like(parts, np.nan), where=known)
    matrix = np.asarray(weights, dtype=np.float64)
    split = np.divide(parts, whole, out=np.zeros_like(parts), where=known)
    lost = ~known @ (matrix != 0)
    return np.where(lost | ~(matrix != 0).any(axis=0), np.nan, split @ matrix)


def _satterthwaite(first: Array, first_df: float, second: Array, second_df: float) -> Array:
    total = first**4 / first_df + second**4 / second_df
    return np.divide((first**2 + second**2) ** 2, total, out=np.full_like(total, first_df), where=total > 0)


def _p_values(estimate: Array, error: Array, df: Array) -> Array:
    """Return two-sided p-values of shares; for a share that never varies, 1 if it is 0 and else 0.

    Args:
        estimate: Shares.
        error: Standard errors.
        df: Degrees of freedom.
    """
    sure = np.where(np.isnan(estimate), np.nan, np.where(estimate == 0, 1.0, 0.0))
    varies = error > 1e-12 * np.abs(estimate)
    t = np.divide(np.abs(estimate), error, out=np.zeros_like(error), where=varies)
    return np.where(varies, 2 * stdtr(df, -t), sure)


_LEAST_ROWS = 8
_BITS = 30  # as SciPy's; a point has so many binary digits
_SOBOL_STREAM = "stats/sobol_indices"


def sobol_rows(nfactor: int, base: int, *, seed: int = 0, sizes: ArrayLike | None = None) -> Array:
    """Return the points of the open unit cube at which a sensitivity analysis evaluates its model.

    The designs are A, B, and for each factor A with that factor taken from B. A and B are independent: the first and
    the second half of the axes of Sobol' points (``scipy.stats.qmc``) with twice as many axes. A random digital shift
    makes every point uniform and keeps the points evenly spread.

    Args:
        nfactor: Number of factors.
        base: Number of rows of A, a power of two, because Sobol' points are balanced only then.
        seed: Seed of the shift.
        sizes: Number of axes (numbers) of each factor, shape ``(nfactor,)``; 1 by default.

    Returns:
        Shape ``(nfactor + 2, base, naxis)``; naxis is the sum of ``sizes``.

    Raises:
        InputError: If there is no factor, or ``base`` is below 8 or not a power of two.
    """
    axes = np.ones(nfactor, dtype=np.intp) if sizes is None else np.asarray(sizes, dtype=np.intp)
    if nfactor < 1 or axes.shape != (nfactor,) or (axes < 1).any():
        raise InputError(
            f"A sensitivity analysis of {nfactor} factors cannot have {axes.tolist()} axes. "
            "Each factor needs at least one."
        )
    if base < _LEAST_ROWS or base & (base - 1):
        raise InputError(
            f"A Sobol' design cannot have {base} rows. Give a power of two from {_LEAST_ROWS}, such as 64."
        )
    naxis = 2 * int(axes.sum())
    digits = (scipy.stats.qmc.Sobol(naxis, scramble=False, bits=_BITS).random(base) * 2.0**_BITS).astype(np.int64)
    shift = generator(seed, _SOBOL_STREAM).integers(0, 2**_BITS, size=naxis)
    first, second = np.split(((digits ^ shift) + 0.5) / 2.0**_BITS, 2, axis=1)
    owner = np.repeat(np.arange(nfactor), axes)
    mixed = [np.where(owner == factor, second, first) for factor in range(nfactor)]
    return np.stack([first, second, *mixed]).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class SobolTerms:
    """Numerators and denominators of the Sobol' indices, for each row of the design (sampled point of all factors).

    The indices are ratios of their means over rows: mean ``first`` or mean ``total``, divided by mean ``variance``.

    Terms of several outputs can be summed. The indices are then those of all outputs together, each weighted by its
    variance.

    Attributes:
        first: Terms of the first-order indices, shape ``(nfactor, base, …)`` for ``base`` rows; the last axes are those
            of the outputs.
        total: Terms of the total-order indices, same shape.
        variance: Terms of the output's variance, shape ``(base, …)``.
    """

    first: Array
    total: Array
    variance: Array

    def __add__(self, other: SobolTerms) -> SobolTerms:
        return SobolTerms(
            first=self.first + other.first, total=self.total + other.total, variance=self.variance + other.variance
        )

    def sum_outputs(self, axis: int) -> SobolTerms:
        """Return the terms summed over several outputs, such as the frames of a trajectory.

        The indices from the sums describe all these outputs together, each weighted by its variance.

        Args:
        axis: Axis of the outputs, counted from the end, so it is negative.
        """
        if axis >= 0:
            raise ValueError("axes of outputs are counted from the end")
        return SobolTerms(
            first=self.first.sum(axis=axis), total=self.total.sum(axis=axis), variance=self.variance.sum(axis=axis)
        )


def sobol_terms(values: ArrayLike) -> SobolTerms:
    """Return the terms of the Sobol' indices from outputs at the points of `sobol_rows`.

    The terms are the numerators of the first-order and total-order indices and their denominator (the variance), each
    before the mean over rows.

    Args:
        values: Outputs at each point, shape ``(nfactor + 2, base, …)``, for ``base`` rows in each of the nfactor + 2
            designs.

    Raises:
        InputError: If an output is not finite.
    """
    table = np.asarray(values, dtype=np.float64)
    if not np.isfinite(table).all():
        raise InputError("An output of a sensitivity design is not finite. Narrow the ranges that it draws from.")
    table = table - table[:2].mean(axis=(0, 1))
    a, b, mixed = table[0], table[1], table[2:]
    return SobolTerms(first=b * (mixed - a), total=(a - mixed) ** 2 / 2, variance=(a**2 + b**2) / 2)


@dataclass(frozen=True, kw_only=True)
class SobolIndices:
    """Sobol' indices of first and total order with intervals, shape ``(nfactor, …)`` each.

    They are NaN if the output does not vary. Estimates are not clipped: a factor without effect may have an index
    slightly below 0.
    """

    first: Interval
    total: Interval


def sobol_indices(
    terms: SobolTerms, *, clusters: bool = False, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> SobolIndices:
    """Return Sobol' indices with percentile bootstrap intervals over the rows of the design (sampled points).

    Rows of Sobol' points are spread more evenly than random points, so these intervals are slightly too wide.

    Args:
        terms: Numerators and variances of the indices, from `sobol_terms`.
        clusters: Whether the second axis of the terms, after the rows, has clusters (episodes). The indices then
            describe all clusters together, and clusters are resampled, too.
        level: Confidence level.
        draws: Number of resamples.
        seed: Run seed of the resamples.
    """
    check_level(level)
    base = terms.variance.shape[0]
    rng = generator(seed, f"{_SOBOL_STREAM}/bootstrap")
    rows = _resample_counts(rng, base, draws)
    columns = _resample_counts(rng, terms.variance.shape[1], draws) if clusters else None
    scale = _weighted_sums(terms.variance, rows, columns)
    intervals = []
    for values in (terms.first, terms.total):
        ratios = np.stack([_ratio(_weighted_sums(factor, rows, columns), scale) for factor in values], axis=1)
        tail = (1 - level) / 2
        low, high = np.quantile(ratios[1:], [tail, 1 - tail], axis=0)
        method = "percentile bootstrap over rows of the design" + (" and episodes" if clusters else "")
        intervals.append(Interval.of(ratios[0], low, high, level=level, method=method))
    return SobolIndices(first=intervals[0], total=intervals[1])


def _resample_counts(rng: np.random.Generator, n: int, draws: int) -> Array:
    """Return how often each of ``n`` items is drawn in each resample, shape ``(1 + ndraw, n)``.

    The first row is all ones.
    """
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=draws)
    return np.concatenate([np.ones((1, n)), drawn.astype(np.float64)])


def _weighted_sums(values: Array, row_weights: Array, episode_weights: Array | None) -> Array:
    """Return sums over rows (and clusters) with the weights of every resample, shape ``(1 + ndraw, …)``.

    Args:
        values: Terms, shape ``(base, …)``, or ``(base, ncluster, …)`` if ``episode_weights`` is given.
        row_weights: Weight of each row in each resample, shape ``(1 + ndraw, base)``; the first entry is the original
            sample.
        episode_weights: Weight of each cluster in each resample, shape ``(1 + ndraw, ncluster)``.
    """
    summed = np.tensordot(row_weights, values, axes=1)
    return summed if episode_weights is None else np.einsum("dc,dc...->d...", episode_weights, summed)


def _ratio(part: Array, whole: Array) -> Array:
    varies = whole > np.finfo(np.float64).tiny
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=varies)
