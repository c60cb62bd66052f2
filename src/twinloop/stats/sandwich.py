"""Covariance of M-estimates from few, unequal clusters: bias-reduced scores and the degrees of freedom that they leave.

A cluster enters by its curvature ``G_c`` (its part of the loss's second derivative) and its score ``s_c`` (its part of
the gradient). Residuals of a fit are smaller than the errors, most in clusters with leverage; CR2 makes up for it
(Bell & McCaffrey, Survey Methodology 28, 2002), and the t quantile has their Satterthwaite degrees of freedom, computed
as if errors were independent (Pustejovsky & Tipton, Journal of Business & Economic Statistics 36, 2018). All of it is
done in the space of parameters: Xᵀ (I − X M Xᵀ)^(−½) = (I − G M)^(−½) Xᵀ for any cluster's rows X with G = XᵀX.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError

Array = NDArray[np.float64]
_LEAST_CLUSTERS = 2
# A cluster that alone determines a direction has leverage 1 there; its residual says nothing about it.
_MOST_LEVERAGE = 1 - 1e-9


@dataclass(frozen=True, kw_only=True)
class Sandwich:
    """``covariance`` ``(p, p)`` of an estimate, and degrees of freedom ``(p,)`` of each parameter's t quantile.

    ``rank`` is how many directions C clusters can tell the spread of: C − 1 at most. ``influence`` ``(C, p)`` is what
    each cluster adds to the estimate's error; the covariance is the sum of their squares.
    """

    covariance: Array
    df: Array
    rank: int
    influence: Array

    @property
    def nclusters(self) -> int:
        """How many clusters there are."""
        return len(self.influence)


def bias_reduced_sandwich(curvatures: ArrayLike, scores: ArrayLike, penalty: ArrayLike | None = None) -> Sandwich:
    """CR2 sandwich with Bell–McCaffrey degrees of freedom.

    Args:
        curvatures: ``(C, p, p)`` second derivative of the summed loss of each cluster at the estimate.
        scores: ``(C, p)`` gradient of the loss summed over each cluster.
        penalty: ``(p, p)`` second derivative of what is in the loss besides the clusters, such as a prior.

    Raises:
        InputError: fewer than two clusters, or a direction that neither clusters nor penalty determine.
    """
    parts, gradient = np.asarray(curvatures, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    count, p = gradient.shape
    if count < _LEAST_CLUSTERS:
        raise InputError(f"{count} cluster says nothing about how clusters differ; give at least {_LEAST_CLUSTERS}.")
    root = _inverse_root(parts.sum(axis=0) + (0.0 if penalty is None else np.asarray(penalty)))
    leverage = np.einsum("ji,cjk,kl->cil", root, parts, root)
    values, vectors = np.linalg.eigh(leverage)
    stretch = 1.0 / np.sqrt(1.0 - np.clip(values, 0.0, _MOST_LEVERAGE))
    stretch[values > _MOST_LEVERAGE] = 1.0
    adjust = np.einsum("cij,cj,ckj->cik", vectors, stretch, vectors)
    influence = np.einsum("cij,cj->ci", adjust, gradient @ root) @ root.T
    inner = 2.0 * np.eye(p) - root.T @ parts.sum(axis=0) @ root  # the identity where there is no penalty
    df = np.array([_satterthwaite(adjust @ row, leverage, inner) for row in root])
    return Sandwich(
        covariance=influence.T @ influence,
        df=df,
        rank=int(np.linalg.matrix_rank(influence)) if count > p else min(count - 1, p),
        influence=influence,
    )


def _inverse_root(matrix: Array) -> Array:
    """A root of the inverse of a positive definite matrix: the inverse is root @ root.T."""
    size = np.sqrt(np.maximum(np.diag(matrix), 0.0))  # unit columns: parameters have unlike units
    undetermined = InputError("A direction is determined neither by the clusters nor by a prior. Fix a parameter.")
    if not size.all():
        raise undetermined
    try:
        lower = np.linalg.cholesky(matrix / np.outer(size, size))
    except np.linalg.LinAlgError as error:
        raise undetermined from error
    return np.asarray(np.linalg.solve(lower, np.diag(1.0 / size)).T, dtype=np.float64)


def _satterthwaite(weights: Array, leverage: Array, inner: Array) -> float:
    """tr(Ω)² / tr(Ω²) of the covariance Ω ``(C, C)`` that clusters' contributions have under independent errors."""
    through = np.einsum("cij,cj->ci", leverage, weights)
    own = np.einsum("ci,ci->c", weights, through)
    common = through @ inner @ through.T
    trace = float(np.sum(own) - np.trace(common))
    square = float(np.sum(own**2) - 2.0 * np.sum(own * np.diag(common)) + np.sum(common**2))
    return max(1.0, trace**2 / square) if square > 0 else 1.0
