"""Compute bootstrap intervals over clusters (whole episodes, never frames) and cluster-robust covariances.

Percentile and BCa intervals follow Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapters 13 and 14.
Tail probabilities are widened for few clusters after Hesterberg, "What teachers should know about the bootstrap", The
American Statistician 69 (2015), section 5.3 ("expanded percentile interval"). SciPy's bootstrap has no clusters, no
widening for few of them, and no seed per random stream.

The cluster-robust ("sandwich") covariance of a fitted parameter vector is valid if the errors within a cluster depend
on each other. It is computed from each cluster's part of the gradient and of the second derivative of the loss.
Residuals of a fit are smaller than the true errors, most in clusters that have much influence on the fit (high
leverage). The method CR2 corrects for it (Bell & McCaffrey, Survey Methodology 28, 2002). Intervals use Student's t
with the degrees of freedom of Bell & McCaffrey, a Satterthwaite approximation for independent errors (Pustejovsky &
Tipton, Journal of Business & Economic Statistics 36, 2018).

Everything is computed with matrices of the size of the parameter vector. For a cluster with regressors X, G = XᵀX, and
the inverse M of the loss's second derivative, the identity Xᵀ (I − X M Xᵀ)^(−½) = (I − G M)^(−½) Xᵀ makes this
possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri, stdtrit

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.interval import Interval, check_level

Array = NDArray[np.float64]

Method = Literal["percentile", "bca"]
Statistic = Callable[[NDArray[np.intp]], NDArray[np.float64]]
_STREAM = "stats/bootstrap"
_LEAST_CLUSTERS = 2


def bootstrap(
    statistic: Statistic,
    nclusters: int,
    *,
    level: float = 0.95,
    draws: int = 2000,
    method: Method = "bca",
    seed: int = 0,
) -> Interval:
    """Return the bootstrap interval of any statistic of clusters (episodes).

    Args:
        statistic: Function from cluster indices to values. It gets indices of shape ``(k, ncluster)``, one resample per
            row, and returns values of shape ``(k, …)``. With ``bca`` it is also called with rows of ``ncluster - 1``
            indices, because the acceleration is estimated by a jackknife (one cluster left out at a time).
        nclusters: Number of clusters.
        level: Confidence level.
        draws: Number of resamples.
        method: ``percentile``, or ``bca`` (bias-corrected and accelerated, second-order accurate).
        seed: Run seed of the resamples.

    Raises:
        InputError: If there are fewer than two clusters, from which their spread cannot be estimated.
    """
    check_level(level)
    resamples = _draw_resamples(nclusters, draws, seed)
    whole = np.arange(nclusters)[None]
    estimate, values = statistic(whole)[0], statistic(resamples)
    tails = _expanded_tails(level, nclusters)  # standard normal quantiles
    if method == "percentile":
        low, high = np.quantile(values, ndtr(tails), axis=0)
    else:
        left_out = np.array([np.delete(whole[0], i) for i in range(nclusters)])
        low, high = _bca(estimate, values, statistic(left_out), tails)
    return Interval.of(estimate, low, high, level=level, method=f"{method} bootstrap over clusters")


def bootstrap_mean(
    values: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    level: float = 0.95,
    draws: int = 2000,
    method: Method = "bca",
    seed: int = 0,
) -> Interval:
    """Return the bootstrap interval of the mean over clusters (episodes).

    Args:
        values: Value of each cluster, shape ``(ncluster, …)``.
        weights: Weight of each cluster, shape ``(ncluster,)``; equal by default.
        level: Confidence level.
        draws: Number of resamples.
        method: ``percentile`` or ``bca``, see `bootstrap`.
        seed: Run seed of the resamples.
    """
    table = np.asarray(values, dtype=np.float64)
    weight = np.ones(len(table)) if weights is None else np.asarray(weights, dtype=np.float64)
    columns = table.reshape(len(table), -1)

    def weighted_mean(rows: NDArray[np.intp]) -> NDArray[np.float64]:
        chosen = weight[rows]
        sums = np.einsum("kc,kcd->kd", chosen, columns[rows])
        return (sums / chosen.sum(axis=1, keepdims=True)).reshape(len(rows), *table.shape[1:])

    return bootstrap(weighted_mean, len(table), level=level, draws=draws, method=method, seed=seed)


def bootstrap_paired(before: ArrayLike, after: ArrayLike, *, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the bootstrap interval of the mean of ``after`` − ``before`` over clusters (episodes).

    Args:
        before: Value of each cluster, shape ``(ncluster, …)``.
        after: Value of the same clusters in the same order, same shape.
        level: Confidence level.
        seed: Run seed of the resamples.

    Raises:
        InputError: If the shapes differ.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if first.shape != second.shape:
        raise InputError(f"Paired values have shapes {first.shape} and {second.shape}; give the same clusters to both.")
    return bootstrap_mean(second - first, level=level, seed=seed)


def _expanded_tails(level: float, nclusters: int) -> NDArray[np.float64]:
    """Return the standard normal quantiles (z-values) of the lower and upper percentile, widened for few clusters.

    With these percentiles a normal bootstrap distribution gives the interval of Student's t with ``nclusters`` − 1
    degrees of freedom.
    """
    quantile = stdtrit(nclusters - 1, (1 + level) / 2) * np.sqrt(nclusters / (nclusters - 1))
    return np.array([-quantile, quantile])


def _bca(
    estimate: NDArray[np.float64],
    values: NDArray[np.float64],
    jackknife: NDArray[np.float64],
    tails: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return lower and upper BCa limits (Efron & Tibshirani 1993, eq. 14.9–14.15), elementwise over the trailing axes.

    Args:
        estimate: Statistic of all clusters, shape ``(…)``.
        values: Statistic of each resample, shape ``(ndraw, …)``.
        jackknife: Statistic without each cluster, shape ``(ncluster, …)``.
        tails: Normal quantiles of both limits, shape ``(2,)``.
    """
    draws = len(values)
    below = (np.sum(values < estimate, axis=0) + 0.5 * np.sum(values == estimate, axis=0)) / draws
    correction = ndtri(np.clip(below, 0.5 / draws, 1 - 0.5 / draws))
    distance = jackknife.mean(axis=0) - jackknife
    spread = np.sum(distance**2, axis=0) ** 1.5
    acceleration = np.divide(np.sum(distance**3, axis=0), 6 * spread, out=np.zeros_like(spread), where=spread > 0)
    shifted = [correction + tail for tail in tails]
    rooms = [np.maximum(1 - acceleration * shift, 1e-9) for shift in shifted]  # smaller: probability 0 or 1
    low, high = (
        _quantile_each(values, ndtr(correction + shift / room)) for shift, room in zip(shifted, rooms, strict=True)
    )
    return low, high


def _quantile_each(values: NDArray[np.float64], probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one quantile per element of ``values`` over axis 0, linearly interpolated.

    Args:
        values: Shape ``(ndraw, …)``.
        probability: Probability of each element's quantile, shape ``(…)``.
    """
    ordered = np.sort(values, axis=0)
    position = np.asarray(probability) * (len(values) - 1)
    lower = np.floor(position).astype(np.intp)
    upper = np.minimum(lower + 1, len(values) - 1)
    fraction = position - lower
    at_lower = np.take_along_axis(ordered, lower[None], axis=0)[0]
    at_upper = np.take_along_axis(ordered, upper[None], axis=0)[0]
    return (1 - fraction) * at_lower + fraction * at_upper


def score_bootstrap(
    curvatures: ArrayLike,
    scores: ArrayLike,
    prior_curvature: ArrayLike,
    prior_gradient: ArrayLike,
    *,
    draws: int = 2000,
) -> NDArray[np.float64]:
    """Return bootstrap deviations of parameters that minimize a loss, without a new fit for each resample.

    The clusters' gradients (scores) and second derivatives of the loss are resampled together. One Newton step with
    their sums approximates the fit to the resample. This accounts for clusters of unequal size (Hu & Kalbfleisch, "The
    estimating function bootstrap", Canadian Journal of Statistics 28, 2000). Unlike the cluster-robust covariance of
    `bias_reduced_sandwich`, the covariance of the deviations has full rank even with few clusters.

    Args:
        curvatures: Second derivative of each of C clusters' loss with respect to the p parameters, shape ``(C, p, p)``.
        scores: Gradient of each cluster's loss, shape ``(C, p)``.
        prior_curvature: Second derivative of the prior's loss, shape ``(p, p)``.
        prior_gradient: Gradient of the prior's loss, shape ``(p,)``.
        draws: Number of resamples.

    Returns:
        Deviation of the parameters from the estimate in each resample, shape ``(ndraw, p)``.
    """
    gradient = np.asarray(scores, dtype=np.float64)
    weights = cluster_weights(len(gradient), draws)
    matrix = np.tensordot(weights, np.asarray(curvatures, dtype=np.float64), axes=1) + np.asarray(prior_curvature)
    slope = weights @ gradient + np.asarray(prior_gradient)
    return -np.asarray(np.linalg.solve(matrix, slope[..., None])[..., 0], dtype=np.float64)


def cluster_weights(nclusters: int, draws: int, *, seed: int = 0) -> NDArray[np.float64]:
    """Return the number of times that each cluster occurs in each bootstrap resample, shape ``(ndraw, ncluster)``.

    The numbers are the weights of the clusters in sums over a resample.

    Raises:
        InputError: If there are fewer than two clusters.
    """
    rows = _draw_resamples(nclusters, draws, seed)
    return np.stack([np.bincount(row, minlength=nclusters) for row in rows]).astype(np.float64)


def _draw_resamples(nclusters: int, draws: int, seed: int) -> NDArray[np.intp]:
    if nclusters < _LEAST_CLUSTERS:
        raise InputError(f"A bootstrap over {nclusters} cluster has no spread; it needs at least {_LEAST_CLUSTERS}.")
    return generator(seed, _STREAM).integers(0, nclusters, size=(draws, nclusters))


def stretched_percentile(
    values: ArrayLike, nclusters: int, df: ArrayLike, *, level: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return lower and upper percentile limits of bootstrap values, widened about their median for few clusters.

    The distances of both percentiles from the median are multiplied by √(C / (C − 1)) for C clusters, and by the ratio
    of Student's quantile to the normal quantile.

    A hundred draws suffice. `bootstrap` uses another method: it takes more extreme percentiles, such as 0.1 % for five
    clusters. They need thousands of draws.

    Args:
        values: Statistic of each resample, shape ``(ndraw, …)``.
        nclusters: Number C of clusters.
        df: Degrees of freedom, shape ``(…)``: C − 1, or fewer for unequal clusters.
        level: Confidence level.
    """
    check_level(level)
    tail = (1 + level) / 2
    low, middle, high = np.quantile(np.asarray(values, dtype=np.float64), [1 - tail, 0.5, tail], axis=0)
    stretch = stdtrit(np.asarray(df, dtype=np.float64), tail) / ndtri(tail) * np.sqrt(nclusters / (nclusters - 1))
    return middle - stretch * (middle - low), middle + stretch * (high - middle)


# A cluster that alone determines a direction has leverage 1 there; its residual contains no information about it.
_MOST_LEVERAGE = 1 - 1e-9


@dataclass(frozen=True, kw_only=True)
class SandwichCovariance:
    """Cluster-robust ("sandwich") covariance of an estimate of p parameters from C clusters.

    Attributes:
        covariance: Covariance of the estimate, shape ``(p, p)``.
        df: Degrees of freedom of each parameter's t quantile, shape ``(p,)``.
        rank: Rank of the covariance, at most C − 1: C clusters cannot estimate the variances of more combinations of
            parameters.
        influence: Contribution of each cluster to the error of the estimate, shape ``(C, p)``; the covariance is the
            sum of their outer products.
    """

    covariance: Array
    df: Array
    rank: int
    influence: Array


def bias_reduced_sandwich(
    curvatures: ArrayLike, scores: ArrayLike, penalty: ArrayLike | None = None
) -> SandwichCovariance:
    """Return the cluster-robust covariance of fitted parameters, with a correction for few clusters (CR2).

    Use it for confidence intervals of parameters if the errors within a cluster (episode) depend on each other. Its
    degrees of freedom for Student's t are those of Bell and McCaffrey; see the module.

    Args:
        curvatures: Second derivative of each of C clusters' loss at the estimate, shape ``(C, p, p)`` for p parameters.
        scores: Gradient of each cluster's loss, shape ``(C, p)``.
        penalty: Second derivative of the other terms of the loss, for example a prior, shape ``(p, p)``.

    Raises:
        InputError: If there are fewer than two clusters, or neither clusters nor penalty determine a direction.
    """
    parts, gradient = np.asarray(curvatures, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    count, p = gradient.shape
    if count < _LEAST_CLUSTERS:
        raise InputError(f"{count} cluster does not show how clusters differ; give at least {_LEAST_CLUSTERS}.")
    root = _inverse_root(parts.sum(axis=0) + (0.0 if penalty is None else np.asarray(penalty)))
    leverage = np.einsum("ji,cjk,kl->cil", root, parts, root)
    values, vectors = np.linalg.eigh(leverage)
    stretch = 1.0 / np.sqrt(1.0 - np.clip(values, 0.0, _MOST_LEVERAGE))
    stretch[values > _MOST_LEVERAGE] = 1.0
    adjust = np.einsum("cij,cj,ckj->cik", vectors, stretch, vectors)
    influence = np.einsum("cij,cj->ci", adjust, gradient @ root) @ root.T
    inner = 2.0 * np.eye(p) - root.T @ parts.sum(axis=0) @ root  # the identity where there is no penalty
    df = np.array([_satterthwaite(adjust @ row, leverage, inner) for row in root])
    return SandwichCovariance(
        covariance=influence.T @ influence,
        df=df,
        rank=int(np.linalg.matrix_rank(influence)) if count > p else min(count - 1, p),
        influence=influence,
    )


def _inverse_root(matrix: Array) -> Array:
    """Return a matrix R such that R Rᵀ is the inverse of a positive definite ``matrix``."""
    size = np.sqrt(np.maximum(np.diag(matrix), 0.0))  # unit columns: parameters have different units
    undetermined = InputError(
        "A combination of parameters is determined neither by the data nor by a prior. Fix one of the parameters."
    )
    if not size.all():
        raise undetermined
    try:
        lower = np.linalg.cholesky(matrix / np.outer(size, size))
    except np.linalg.LinAlgError as error:
        raise undetermined from error
    return np.asarray(np.linalg.solve(lower, np.diag(1.0 / size)).T, dtype=np.float64)


def _satterthwaite(weights: Array, leverage: Array, inner: Array) -> float:
    """Return the Satterthwaite degrees of freedom tr(Ω)² / tr(Ω²) of one parameter's variance.

    Ω is the covariance ``(C, C)`` of the contributions of C clusters to the parameter, if errors are independent. Its
    entries are Ω_ij = δ_ij w_iᵀ L_i w_i − w_iᵀ L_i B L_j w_j. The second term exists because all clusters share one
    fit. All arrays are in coordinates in which the second derivative of the total loss is the identity.

    Args:
        weights: Vectors w_i: the contribution of cluster i to the parameter is w_i · gradient of its loss, shape ``(C,
            p)`` for p parameters.
        leverage: Matrices L_i: second derivative of each cluster's loss, shape ``(C, p, p)``.
        inner: Matrix B, shape ``(p, p)``; the identity if the fit has no penalty.
    """
    through = np.einsum("cij,cj->ci", leverage, weights)
    own = np.einsum("ci,ci->c", weights, through)
    common = through @ inner @ through.T
    trace = float(np.sum(own) - np.trace(common))
    square = float(np.sum(own**2) - 2.0 * np.sum(own * np.diag(common)) + np.sum(common**2))
    return max(1.0, trace**2 / square) if square > 0 else 1.0
