"""Compute the uncertainty of a fit: covariance, intervals, and the parameters that the data do not determine.

The estimate minimizes a robust loss plus a weak prior. Its covariance is M (Σ_c s_c s_cᵀ + P Σ P) M. M is the inverse
curvature of the loss; s_c are the scores of independent clusters (episodes, or blocks of time); P and Σ are curvature
and covariance of the prior. The first term is the variation over other data sets. The second is the possible bias from
the prior; it vanishes where the data are informative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from twinloop.identify.fisher import Determination, assess_determination
from twinloop.identify.problem import FitProblem, Linearization, ParameterBlock
from twinloop.identify.uncertainty_scores import FrameClusters, FrameScores, FrameTimes, choose_clusters, frame_scores
from twinloop.stats import bias_reduced_sandwich, score_bootstrap, stretched_percentile

Array = NDArray[np.float64]

_NEAR_BOUND = 1e-3  # prior standard deviations
DRAWS = 2000  # of the one-step bootstrap, which needs no replay; 50 are beyond each 95 % limit


@dataclass(frozen=True, kw_only=True)
class BlockLimits:
    """Uncertainty of one block's parameters, ``(p,)`` each; ``low`` and ``high`` are offsets from the estimate.

    ``sides`` is "at most" or "at least" for a parameter on its bound, and "past" if the data exclude the bound.
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
class _ConditionalErrors:
    """Errors of some parameters with the others fixed: from the data, and (``shrunk``) from the prior."""

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
    problem: FitProblem,
    here: Linearization,
    block: ParameterBlock,
    score: FrameScores,
    clusters: FrameClusters,
    *,
    level: float,
    refits: Array | None = None,
) -> BlockLimits:
    """Return the limits of one block's parameters; parameters on a bound are fixed for the others' limits.

    Args:
        problem: the fit.
        here: linearization at its solution.
        block: the block.
        score: scores of that block.
        clusters: the independent clusters of frames.
        level: confidence level of the intervals, also of one-sided ones.
        refits: estimates from resampled data, ``(draws, p)``.
    """
    point, sd, p = here.point[block.columns], problem.sd[block.columns], len(block.columns)
    low, high = problem.low[block.columns] - point, problem.high[block.columns] - point
    lowest, highest = low > -_NEAR_BOUND * sd, high < _NEAR_BOUND * sd
    every = _estimate_errors(score, sd, clusters, np.arange(p))
    inner = np.flatnonzero(~(lowest | highest))
    loose = every if len(inner) in (0, p) else _estimate_errors(score, sd, clusters, inner)
    covariance = np.diag(np.diag(every.covariance))
    found = {"low": np.zeros(p), "high": np.zeros(p), "curvature": 1 / np.diag(every.inverse), "df": every.df.copy(),
             "unfinished": np.zeros(p)}  # fmt: skip
    if len(inner):
        covariance[np.ix_(inner, inner)] = loose.covariance
        drawn = None if refits is None else refits[:, inner] - point[inner]
        found["low"][inner], found["high"][inner] = _two_sided_limits(score, clusters, loose, level, drawn)
        found["curvature"][inner], found["df"][inner] = 1 / np.diag(loose.inverse), loose.df
        found["unfinished"][inner] = np.abs(loose.move) / loose.error
    reach = stdtrit(every.df, level) * every.error
    found["high"][lowest] = (every.move + reach)[lowest]
    found["low"][highest] = (every.move - reach)[highest]
    sides = [_bound_side(*flags) for flags in zip(lowest, highest, found["low"], found["high"], strict=True)]
    return BlockLimits(covariance=covariance, sides=tuple(sides), rank=loose.rank, **found)


def _bound_side(lowest: bool, highest: bool, low: float, high: float) -> str:
    if lowest:
        return "at most" if high > 0 else "past"
    if highest:
        return "at least" if low < 0 else "past"
    return ""


def _estimate_errors(
    score: FrameScores, sd: Array, clusters: FrameClusters, columns: NDArray[np.intp]
) -> _ConditionalErrors:
    """Return the covariance of the free columns from a bias-reduced sandwich, and the remaining Newton step."""
    curvatures, gradients = score.sum_by_cluster(clusters.labels)
    curvatures, gradients = curvatures[:, columns][:, :, columns], gradients[:, columns]
    penalty, drawn = score.penalty[np.ix_(columns, columns)], score.drawn[columns]
    inverse = np.linalg.inv(curvatures.sum(axis=0) + penalty)
    told = bias_reduced_sandwich(curvatures, gradients, penalty)
    shrunk = inverse @ (penalty**2 * sd[columns] ** 2) @ inverse
    own = np.diag(told.covariance)
    total = own + np.diag(shrunk)
    return _ConditionalErrors(
        columns=columns,
        covariance=told.covariance + shrunk,
        shrunk=shrunk,
        df=told.df
        * np.divide(total, own, out=np.full_like(total, 1e6), where=own > 0)
        ** 2,  # the prior has many degrees of freedom
        move=-inverse @ (gradients.sum(axis=0) + drawn),
        inverse=inverse,
        rank=told.rank,
    )


def _two_sided_limits(
    score: FrameScores, clusters: FrameClusters, spread: _ConditionalErrors, level: float, refits: Array | None
) -> tuple[Array, Array]:
    """Return offsets of the limits: from t quantiles, or from a bootstrap if clusters are few or refits are given."""
    if refits is None and not clusters.few:
        reach = stdtrit(spread.df, (1 + level) / 2) * spread.error
        return -reach, reach
    draws = refits
    if draws is None:
        curvatures, gradients = score.sum_by_cluster(clusters.labels)
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


Method = Literal["sandwich", "score bootstrap", "refit bootstrap", "none"]

# A parameter is not determined if its standard error exceeds this part of its prior deviation.
LEAST_GAIN = 0.5
_OPEN = "the data do not constrain it"
_ALONE = "one episode gives no interval"
_PAST = "ends on its bound"
_VAGUE = f"its standard error exceeds {LEAST_GAIN:g} of its prior deviation"


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Uncertainty of each parameter, in the solver's coordinates.

    ``covariance`` ``(p, p)`` is 0 between blocks (not estimated there); undetermined parameters keep their prior
    variance. ``low`` and ``high`` are the limits at ``level``, NaN for undetermined parameters, for which ``reasons``
    has the reason. A parameter on its bound has a one-sided interval: ``sides`` is "at most", "at least" or "".
    ``curvature`` ``(p,)`` is that of the loss along each parameter with the others optimized. ``df`` are degrees of
    freedom of the t quantiles. ``directions`` are undetermined combinations; ``condition`` is cond(ĴᵀĴ) of each block
    with unit columns. ``unfinished`` is the distance of each estimate from the optimum in standard errors. ``rank`` is
    that of the clusters' scores; ``clusters`` is None if nothing can be compared; ``draws`` is the number of bootstrap
    draws.
    """

    covariance: Array
    low: Array
    high: Array
    level: float
    sides: tuple[str, ...]
    reasons: tuple[str, ...]
    directions: tuple[str, ...]
    condition: tuple[float, ...]
    curvature: Array
    df: Array
    unfinished: Array
    rank: int
    clusters: FrameClusters | None
    method: Method
    draws: int


def compute_uncertainty(
    problem: FitProblem,
    here: Linearization,
    names: Sequence[str],
    *,
    times: FrameTimes | None = None,
    level: float = 0.95,
    refits: Array | None = None,
) -> Uncertainty:
    """Return clustered covariance and intervals, and the directions and parameters that the data do not determine.

    Args:
        problem: the fit.
        here: linearization at its solution, every parameter perturbed alone.
        names: names of the parameters.
        times: begin times of the windows; by default no window continues another.
        level: confidence level of the intervals.
        refits: estimates from resampled clusters of `choose_fit_clusters`, ``(draws, p)``; by default the linearization
        is
            used.
    """
    scores = [frame_scores(problem, here, number) for number in range(len(problem.blocks))]
    clusters = choose_fit_clusters(problem, here, scores, times)
    covariance = np.diag(problem.sd**2)
    vectors = {key: np.full(len(names), np.nan) for key in ("low", "high", "curvature", "df", "unfinished")}
    sides, reasons, told, rank = [""] * len(names), [""] * len(names), [], 0
    for block, score in zip(problem.blocks, scores, strict=True):
        known = [names[int(column)] for column in block.columns]
        told.append(assess_determination(score.curvature, problem.sd[block.columns], known, least=problem.prior_weight))
        if clusters is None:
            undetermined = told[-1].undetermined_mask
            _set_entries(reasons, block.columns, [_OPEN if is_open else _ALONE for is_open in undetermined])
            continue
        drawn = None if refits is None else refits[:, block.columns]
        found = block_limits(problem, here, block, score, clusters, level=level, refits=drawn)
        for key, vector in vectors.items():
            vector[block.columns] = getattr(found, key)
        rank += found.rank
        why = _reasons_not_determined(found, told[-1], problem.sd[block.columns])
        _set_entries(reasons, block.columns, why)
        _set_entries(
            sides, block.columns, ["" if reason else side for reason, side in zip(why, found.sides, strict=True)]
        )
        keep = np.flatnonzero([not reason for reason in why])
        covariance[np.ix_(block.columns[keep], block.columns[keep])] = found.covariance[np.ix_(keep, keep)]
    unknown = np.array([bool(reason) for reason in reasons])
    vectors["low"], vectors["high"] = (np.where(unknown, np.nan, here.point + vectors[k]) for k in ("low", "high"))
    method = _interval_method(clusters, refits)
    return Uncertainty(
        covariance=covariance,
        **vectors,
        level=level,
        sides=tuple(sides),
        reasons=tuple(reasons),
        directions=tuple(str(direction) for each in told for direction in each.directions),
        condition=tuple(each.condition for each in told),
        rank=rank,
        clusters=clusters,
        method=method,
        draws={"score bootstrap": DRAWS, "refit bootstrap": 0 if refits is None else len(refits)}.get(method, 0),
    )


def choose_fit_clusters(
    problem: FitProblem,
    here: Linearization,
    scores: Sequence[FrameScores] | None = None,
    times: FrameTimes | None = None,
) -> FrameClusters | None:
    """Return the independent clusters of frames in a fit (see `choose_clusters`)."""
    scores = scores or [frame_scores(problem, here, number) for number in range(len(problem.blocks))]
    influences = [s.frame_gradients @ np.linalg.inv(s.curvature + s.penalty) for s in scores]
    present = np.any(~np.isnan(problem.measured), axis=-1, keepdims=True)[..., 0]
    nwindow, nframe = problem.measured.shape[:2]
    times = times or FrameTimes(begins=nframe * np.arange(nwindow, dtype=np.float64), dt=1.0)
    return choose_clusters(influences, present, problem.clusters, times)


def _interval_method(clusters: FrameClusters | None, refits: Array | None) -> Method:
    if clusters is None:
        return "none"
    if refits is not None:
        return "refit bootstrap"
    return "score bootstrap" if clusters.few else "sandwich"


def _reasons_not_determined(found: BlockLimits, told: Determination, sd: Array) -> list[str]:
    """Return the reason why each parameter of a block is not determined, "" if it is."""
    reasons = []
    for side, is_open, variance, spread in zip(
        found.sides, told.undetermined_mask, np.diag(found.covariance), sd, strict=True
    ):
        if is_open:
            reasons.append(_OPEN)
        elif side == "past":
            reasons.append(_PAST)
        else:
            reasons.append(_VAGUE if np.sqrt(variance) > LEAST_GAIN * spread else "")
    return reasons


def _set_entries(where: list[str], columns: NDArray[np.intp], values: Sequence[str]) -> None:
    for column, value in zip(columns, values, strict=True):
        where[int(column)] = value
