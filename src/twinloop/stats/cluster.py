"""Covariance of an estimate whose residuals are correlated within clusters (episodes) and independent between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from twinloop.core.errors import InputError
from twinloop.stats.interval import check_level

_LEAST_CLUSTERS = 2


def cluster_covariance(hessian: ArrayLike, scores: ArrayLike) -> NDArray[np.float64]:
    """Sandwich V = H⁻¹ [Σ_c s_c s_cᵀ · C/(C−1)] H⁻¹ of an M-estimator.

    Liang & Zeger, "Longitudinal data analysis using generalized linear models", Biometrika 73 (1986).

    Args:
        hessian: ``(p, p)`` second derivative of the summed loss at the estimate.
        scores: ``(C, p)`` gradient of the loss summed over each cluster, a row per cluster.

    Returns:
        ``(p, p)``, of rank C − 1 at most: with fewer clusters than parameters some combinations seem exactly known.

    Raises:
        InputError: fewer than two clusters.
    """
    gradient = np.asarray(scores, dtype=np.float64)
    count = len(gradient)
    if count < _LEAST_CLUSTERS:
        raise InputError(f"{count} cluster says nothing about how clusters differ; give at least {_LEAST_CLUSTERS}.")
    bread = np.linalg.inv(np.asarray(hessian, dtype=np.float64))
    meat = gradient.T @ gradient * (count / (count - 1))
    return bread @ meat @ bread.T


def least_squares_covariance(jacobian: ArrayLike, residual: ArrayLike, clusters: ArrayLike) -> NDArray[np.float64]:
    """The same for least squares: H = JᵀJ and s_c = J_cᵀ r_c.

    Args:
        jacobian: ``(n, p)``.
        residual: ``(n,)``.
        clusters: ``(n,)`` cluster label of each row.
    """
    matrix, error = np.asarray(jacobian, dtype=np.float64), np.asarray(residual, dtype=np.float64)
    labels = np.unique(np.asarray(clusters), return_inverse=True)[1]
    scores = np.zeros((labels.max() + 1, matrix.shape[1]))
    np.add.at(scores, labels, matrix * error[:, None])
    return cluster_covariance(matrix.T @ matrix, scores)


def t_halfwidth(covariance: ArrayLike, nclusters: int, *, level: float = 0.95) -> NDArray[np.float64]:
    """Half widths of the intervals of each parameter: t-quantile with C − 1 degrees of freedom × standard error."""
    check_level(level)
    variance = np.clip(np.diag(np.asarray(covariance, dtype=np.float64)), 0.0, None)
    return stdtrit(nclusters - 1, (1 + level) / 2) * np.sqrt(variance)
