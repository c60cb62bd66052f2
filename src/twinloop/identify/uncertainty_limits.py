"""How far the parameters of one block may be off, from its clusters; on a bound, from one side only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from twinloop.identify.problem import Block, Linearization, Problem
from twinloop.identify.uncertainty_clusters import Clusters
from twinloop.identify.uncertainty_scores import Scores
from twinloop.stats import bias_reduced_sandwich, score_bootstrap, stretched_percentile

Array = NDArray[np.float64]

_NEAR_BOUND = 1e-3  # prior standard deviations
DRAWS = 2000  # of the one-step bootstrap, which replays nothing; 50 lie beyond each limit of 95 %


@dataclass(frozen=True, kw_only=True)
class BlockLimits:
    """What is known of one block's parameters, ``(p,)`` each; ``low`` and ``high`` are offsets from the estimate.

    ``sides`` is "at most" or "at least" for a parameter on its bound, and "past" where the data exclude the bound.
    ``curvature``, ``df``, ``unfinished`` and ``rank`` are as in `Uncertainty`.
    """

    covariance: Array
    low: Array
    high: Array
    sides: tuple[str, ...]
    curvature: Array
    df: Array
    unfinished: Array
    rank: int


@dataclass(frozen=True, kw_only=True)
class _Spread:
    """Errors of some parameters while the others hold still: from other data, and (``shrunk``) from the prior."""

    columns: NDArray[np.intp]
    covariance: Array
    shrunk: Array
    df: Array
    move: Array
    inverse: Array
    rank: int

    @property
    def error(self) -> Array:
        """Standard errors, ``(p,)``."""
        return np.sqrt(np.diag(self.covariance))


def block_limits(
    problem: Problem,
    here: Linearization,
    block: Block,
    score: Scores,
    clusters: Clusters,
    *,
    level: float,
    refits: Array | None = None,
) -> BlockLimits:
    """Limits of one block's parameters; those on a bound hold still while the others are judged.

    Args:
        problem: the fit.
        here: where it ended.
        block: the block.
        score: of that block.
        clusters: what is independent.
        level: of the intervals; a one-sided one has all of it on its side.
        refits: estimates from data drawn again, ``(draws, p)``.
    """
    point, sd, p = here.point[block.columns], problem.sd[block.columns], len(block.columns)
    low, high = problem.low[block.columns] - point, problem.high[block.columns] - point
    lowest, highest = low > -_NEAR_BOUND * sd, high < _NEAR_BOUND * sd
    every = _spread(score, sd, clusters, np.arange(p))
    inner = np.flatnonzero(~(lowest | highest))
    loose = every if len(inner) in (0, p) else _spread(score, sd, clusters, inner)
    covariance = np.diag(np.diag(every.covariance))
    found = {"low": np.zeros(p), "high": np.zeros(p), "curvature": 1 / np.diag(every.inverse), "df": every.df.copy(),
             "unfinished": np.zeros(p)}  # fmt: skip
    if len(inner):
        covariance[np.ix_(inner, inner)] = loose.covariance
        drawn = None if refits is None else refits[:, inner] - point[inner]
        found["low"][inner], found["high"][inner] = _two_sided(score, clusters, loose, level, drawn)
        found["curvature"][inner], found["df"][inner] = 1 / np.diag(loose.inverse), loose.df
        found["unfinished"][inner] = np.abs(loose.move) / loose.error
    reach = stdtrit(every.df, level) * every.error
    found["high"][lowest] = (every.move + reach)[lowest]
    found["low"][highest] = (every.move - reach)[highest]
    sides = [_side(*flags) for flags in zip(lowest, highest, found["low"], found["high"], strict=True)]
    return BlockLimits(covariance=covariance, sides=tuple(sides), rank=loose.rank, **found)


def _side(lowest: bool, highest: bool, low: float, high: float) -> str:
    if lowest:
        return "at most" if high > 0 else "past"
    if highest:
        return "at least" if low < 0 else "past"
    return ""


def _spread(score: Scores, sd: Array, clusters: Clusters, columns: NDArray[np.intp]) -> _Spread:
    """Sandwich or bootstrap covariance of the columns that may move, and the Newton step that is left."""
    curvatures, gradients = score.by_cluster(clusters.labels)
    curvatures, gradients = curvatures[:, columns][:, :, columns], gradients[:, columns]
    penalty, drawn = score.penalty[np.ix_(columns, columns)], score.drawn[columns]
    inverse = np.linalg.inv(curvatures.sum(axis=0) + penalty)
    told = bias_reduced_sandwich(curvatures, gradients, penalty)
    shrunk = inverse @ (penalty**2 * sd[columns] ** 2) @ inverse
    own = np.diag(told.covariance)
    total = own + np.diag(shrunk)
    return _Spread(
        columns=columns,
        covariance=told.covariance + shrunk,
        shrunk=shrunk,
        df=told.df * np.divide(total, own, out=np.full_like(total, 1e6), where=own > 0) ** 2,  # the prior's are many
        move=-inverse @ (gradients.sum(axis=0) + drawn),
        inverse=inverse,
        rank=told.rank,
    )


def _two_sided(
    score: Scores, clusters: Clusters, spread: _Spread, level: float, refits: Array | None
) -> tuple[Array, Array]:
    """Offsets of the limits: by t quantiles, or by bootstrap where clusters are few or data were drawn again."""
    if refits is None and not clusters.few:
        reach = stdtrit(spread.df, (1 + level) / 2) * spread.error
        return -reach, reach
    draws = refits
    if draws is None:
        curvatures, gradients = score.by_cluster(clusters.labels)
        columns = spread.columns
        draws = score_bootstrap(
            curvatures[:, columns][:, :, columns],
            gradients[:, columns],
            score.penalty[np.ix_(columns, columns)],
            score.drawn[columns],
            draws=DRAWS,
        )
    low, high = stretched_percentile(draws, clusters.count, spread.df, level=level)
    shrunk = stdtrit(spread.df, (1 + level) / 2) ** 2 * np.diag(spread.shrunk)
    return -np.sqrt(np.maximum(-low, 0.0) ** 2 + shrunk), np.sqrt(np.maximum(high, 0.0) ** 2 + shrunk)
