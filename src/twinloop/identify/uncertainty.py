"""What the data tell about each parameter, and what they cannot tell.

The estimate minimizes a robust loss plus a weak prior. Its covariance is M (Σ_c s_c s_cᵀ + P Σ P) M: with the inverse
curvature M of the loss, the scores s_c of what is independent (episodes, or blocks of time) and the prior's curvature P
and covariance Σ. The first part is what other data would have given; the second is how far the prior may have pulled
the estimate from a truth that the prior allows, which fades where the data speak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.identify.directions import Determination, determination
from twinloop.identify.problem import Linearization, Problem
from twinloop.identify.uncertainty_clusters import Clusters, FrameTimes, choose_clusters
from twinloop.identify.uncertainty_limits import DRAWS, BlockLimits, block_limits
from twinloop.identify.uncertainty_scores import Scores, frame_scores

Array = NDArray[np.float64]
Method = Literal["sandwich", "score bootstrap", "refit bootstrap", "none"]

# A parameter is not determined when its standard error is not well below what was known beforehand.
LEAST_GAIN = 0.5
_OPEN = "the data leave it open"
_ALONE = "one episode gives no interval"
_PAST = "ends on its bound"
_VAGUE = "no better known than before"


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """What is known of each parameter, in the coordinates where the solver walks.

    ``covariance`` ``(p, p)``: between blocks it is not estimated (0), and parameters that are not determined keep their
    prior variance. ``low`` and ``high`` are the limits at ``level``, NaN where ``reasons`` says why a parameter is not
    determined. One that ends on its bound has a one-sided interval from there: ``sides`` says "at most", "at least" or
    "". ``curvature`` ``(p,)`` is that of the loss along each parameter with the others following. ``df`` are degrees
    of freedom of the t quantiles. ``directions`` names combinations that the data leave open; ``condition`` is
    cond(ĴᵀĴ) of each block with unit columns. ``unfinished`` is how many standard errors the walk ended short of its
    optimum. ``rank`` is that of the clusters' scores; ``clusters`` is None where nothing can be compared; ``draws`` are
    those of the bootstrap.
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
    clusters: Clusters | None
    method: Method
    draws: int


def uncertainty(
    problem: Problem,
    here: Linearization,
    names: Sequence[str],
    *,
    times: FrameTimes | None = None,
    level: float = 0.95,
    refits: Array | None = None,
) -> Uncertainty:
    """Covariance and intervals, clustered, and the directions and parameters that the data do not determine.

    Args:
        problem: the fit.
        here: where it ended, every parameter perturbed alone.
        names: of the parameters.
        times: when windows begin; None for windows that follow nothing.
        level: of the intervals.
        refits: estimates from data drawn again over `fit_clusters`, ``(draws, p)``; None for the linearization.
    """
    scores = [frame_scores(problem, here, number) for number in range(len(problem.blocks))]
    clusters = fit_clusters(problem, here, scores, times)
    covariance = np.diag(problem.sd**2)
    vectors = {key: np.full(len(names), np.nan) for key in ("low", "high", "curvature", "df", "unfinished")}
    sides, reasons, told, rank = [""] * len(names), [""] * len(names), [], 0
    for block, score in zip(problem.blocks, scores, strict=True):
        known = [names[int(column)] for column in block.columns]
        told.append(determination(score.curvature, problem.sd[block.columns], known, least=problem.prior_weight))
        if clusters is None:
            _put(reasons, block.columns, [_OPEN if is_open else _ALONE for is_open in told[-1].open])
            continue
        drawn = None if refits is None else refits[:, block.columns]
        found = block_limits(problem, here, block, score, clusters, level=level, refits=drawn)
        for key, vector in vectors.items():
            vector[block.columns] = getattr(found, key)
        rank += found.rank
        why = _reasons(found, told[-1], problem.sd[block.columns])
        _put(reasons, block.columns, why)
        _put(sides, block.columns, ["" if reason else side for reason, side in zip(why, found.sides, strict=True)])
        keep = np.flatnonzero([not reason for reason in why])
        covariance[np.ix_(block.columns[keep], block.columns[keep])] = found.covariance[np.ix_(keep, keep)]
    unknown = np.array([bool(reason) for reason in reasons])
    vectors["low"], vectors["high"] = (np.where(unknown, np.nan, here.point + vectors[k]) for k in ("low", "high"))
    method = _method(clusters, refits)
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


def fit_clusters(
    problem: Problem, here: Linearization, scores: Sequence[Scores] | None = None, times: FrameTimes | None = None
) -> Clusters | None:
    """What counts as independent in a fit (see `choose_clusters`)."""
    scores = scores or [frame_scores(problem, here, number) for number in range(len(problem.blocks))]
    influences = [s.per_frame @ np.linalg.inv(s.curvature + s.penalty) for s in scores]
    present = np.any(~np.isnan(problem.measured), axis=-1, keepdims=True)[..., 0]
    nwindow, nframe = problem.measured.shape[:2]
    times = times or FrameTimes(begins=nframe * np.arange(nwindow, dtype=np.float64), dt=1.0)
    return choose_clusters(influences, present, problem.clusters, times)


def _method(clusters: Clusters | None, refits: Array | None) -> Method:
    if clusters is None:
        return "none"
    if refits is not None:
        return "refit bootstrap"
    return "score bootstrap" if clusters.few else "sandwich"


def _reasons(found: BlockLimits, told: Determination, sd: Array) -> list[str]:
    """Why each parameter of a block is not determined, "" where it is."""
    reasons = []
    for side, is_open, variance, spread in zip(found.sides, told.open, np.diag(found.covariance), sd, strict=True):
        if is_open:
            reasons.append(_OPEN)
        elif side == "past":
            reasons.append(_PAST)
        else:
            reasons.append(_VAGUE if np.sqrt(variance) > LEAST_GAIN * spread else "")
    return reasons


def _put(where: list[str], columns: NDArray[np.intp], values: Sequence[str]) -> None:
    for column, value in zip(columns, values, strict=True):
        where[int(column)] = value
