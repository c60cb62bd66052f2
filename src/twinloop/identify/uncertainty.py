"""What the data tell about each parameter, and what they cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.identify.directions import determination
from twinloop.identify.problem import Block, Linearization, Problem, eliminated
from twinloop.stats import cluster_covariance

# A parameter is not determined when its standard error is not well below what was known beforehand.
_LEAST_GAIN = 0.5
_NEAR_BOUND = 1e-3


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Covariance in transformed coordinates, and per parameter why it is not determined ("" where it is).

    ``directions`` names combinations that the data leave open; ``condition`` is cond(ĴᵀĴ) of each block with unit
    columns. Covariance between blocks is not estimated (0), and undetermined parameters keep their prior variance.
    """

    covariance: NDArray[np.float64]
    reasons: tuple[str, ...]
    directions: tuple[str, ...]
    condition: tuple[float, ...]


def uncertainty(problem: Problem, here: Linearization, names: Sequence[str]) -> Uncertainty:
    """Cluster-robust covariance by episode, and the directions and parameters that the data do not determine."""
    covariance = np.diag(problem.sd**2)
    reasons = [""] * len(names)
    directions: list[str] = []
    conditions = []
    for number, block in enumerate(problem.blocks):
        jacobian = eliminated(problem, here, number)
        curvature, each = _curvature_and_scores(here.residual[..., block.channels], jacobian)
        scores = np.zeros((problem.clusters.max() + 1, each.shape[1]))
        np.add.at(scores, problem.clusters, each)
        local = _block_covariance(problem, block, curvature, scores)
        known = [names[int(column)] for column in block.columns]
        found = determination(curvature, problem.sd[block.columns], known, least=problem.prior_weight)
        directions += [str(direction) for direction in found.directions]
        conditions.append(found.condition)
        for i, column in enumerate(block.columns):
            error = None if local is None else float(np.sqrt(local[i, i]))
            reasons[column] = _reason(problem, here.point, int(column), bool(found.open[i]), error)
        told = np.flatnonzero([not reasons[column] for column in block.columns])
        if local is not None:
            covariance[np.ix_(block.columns[told], block.columns[told])] = local[np.ix_(told, told)]
    return Uncertainty(
        covariance=covariance, reasons=tuple(reasons), directions=tuple(directions), condition=tuple(conditions)
    )


def _curvature_and_scores(
    residual: NDArray[np.float64], jacobian: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Second derivative ``(p, p)`` of the mean Huber loss, and its gradient per window ``(nwindow, p)``."""
    present = ~np.isnan(residual)
    error, slopes = np.where(present, residual, 0.0), np.where(present[..., None], jacobian, 0.0)
    share = 1.0 / present.sum(axis=(0, 1))
    square = np.where(present & (np.abs(error) <= 1.0), share, 0.0)
    curvature = np.einsum("efc,efcp,efcq->pq", square, slopes, slopes)
    scores = np.einsum("efc,efcp->ep", np.clip(error, -1.0, 1.0) * share, slopes)
    return curvature, scores


def _block_covariance(
    problem: Problem, block: Block, curvature: NDArray[np.float64], scores: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """Sandwich of one block; None where a single episode cannot tell how episodes differ."""
    if len(scores) == 1:
        return None
    return cluster_covariance(curvature + np.diag(problem.prior_weight / problem.sd[block.columns] ** 2), scores)


def _reason(problem: Problem, point: NDArray[np.float64], column: int, left_open: bool, error: float | None) -> str:
    low, high, sd = problem.low[column], problem.high[column], problem.sd[column]
    if left_open:
        return "the data leave it open"
    if min(point[column] - low, high - point[column]) < _NEAR_BOUND * sd:
        return "ends on its bound"
    if error is None:
        return "one episode gives no interval"
    if error > _LEAST_GAIN * sd:
        return "no better known than before"
    return ""
