"""Compute bootstrap intervals over clusters (whole episodes, never frames) and cluster-robust covariances.

Percentile and BCa intervals after Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapters 13 and 14,
with tail probabilities widened for few clusters after Hesterberg, "What teachers should know about the bootstrap", The
American Statistician 69 (2015), section 5.3 ("expanded percentile interval"). SciPy's bootstrap has no clusters, no
widening for few of them, and no seed per stream.

For the sandwich, a cluster is described by its curvature ``G_c`` (its part of the loss's second derivative) and its
score ``s_c`` (its part of the gradient). Residuals of a fit are smaller than the errors, most in clusters with high
leverage; CR2 corrects for it (Bell & McCaffrey, Survey Methodology 28, 2002). The t quantile has their Satterthwaite
degrees of freedom, computed for independent errors (Pustejovsky & Tipton, Journal of Business & Economic Statistics 36,
2018). Everything is computed in the parameter space: Xᵀ (I − X M Xᵀ)^(−½) = (I − G M)^(−½) Xᵀ for any cluster's rows X
with G = XᵀX.
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
    """Return the bootstrap interval of any statistic of clusters.

    Args:
        statistic: maps cluster indices ``(k, nclusters)``, one resample per row, to values ``(k, …)``. The jackknife of
            BCa also calls it with rows of ``nclusters - 1`` indices.
        nclusters: number of clusters.
        level: confidence level.
        draws: number of resamples.
        method: ``percentile``, or ``bca`` (bias-corrected and accelerated, second-order accurate).
        seed: run seed of the resamples.

    Raises:
        InputError: fewer than two clusters, from which their spread cannot be estimated.
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
    """Return the interval of the mean of cluster values ``(nclusters, …)``; ``weights`` has shape ``(nclusters,)``."""
    table = np.asarray(values, dtype=np.float64)
    weight = np.ones(len(table)) if weights is None else np.asarray(weights, dtype=np.float64)
    columns = table.reshape(len(table), -1)

    def weighted_mean(rows: NDArray[np.intp]) -> NDArray[np.float64]:
        chosen = weight[rows]
        sums = np.einsum("kc,kcd->kd", chosen, columns[rows])
        return (sums / chosen.sum(axis=1, keepdims=True)).reshape(len(rows), *table.shape[1:])

    return bootstrap(weighted_mean, len(table), level=level, draws=draws, method=method, seed=seed)


def bootstrap_paired(before: ArrayLike, after: ArrayLike, *, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the interval of mean(``after`` − ``before``); row ``c`` of both ``(nclusters, …)`` is the same cluster.

    Raises:
        InputError: the shapes differ.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if first.shape != second.shape:
        raise InputError(f"Paired values have shapes {first.shape} and {second.shape}; give the same clusters to both.")
    return bootstrap_mean(second - first, level=level, seed=seed)


def _expanded_tails(level: float, nclusters: int) -> NDArray[np.float64]:
    """Return normal quantiles that widen a normal bootstrap distribution to Student's t of C − 1 degrees of freedom."""
    quantile = stdtrit(nclusters - 1, (1 + level) / 2) * np.sqrt(nclusters / (nclusters - 1))
    return np.array([-quantile, quantile])


def _bca(
    estimate: NDArray[np.float64],
    values: NDArray[np.float64],
    jackknife: NDArray[np.float64],
    tails: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return BCa limits (Efron & Tibshirani 1993, eq. 14.9–14.15), elementwise over the trailing axes."""
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
    """Return quantiles of ``values`` over axis 0 at one probability per element, linearly interpolated."""
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
    penalty: ArrayLike,
    pull: ArrayLike,
    *,
    draws: int = 2000,
) -> NDArray[np.float64]:
    """Return bootstrap errors of an M-estimate over resampled clusters, one Newton step each: ``(draws, p)``.

    Curvature and gradient are resampled together, which accounts for unequal clusters (Hu & Kalbfleisch, "The
    estimating function bootstrap", Canadian Journal of Statistics 28, 2000). Unlike a sandwich it has full rank with
    few clusters.

    Args:
        curvatures: curvature ``(C, p, p)`` of each cluster's loss.
        scores: gradient ``(C, p)`` of each cluster's loss.
        penalty: curvature ``(p, p)`` of a prior.
        pull: gradient ``(p,)`` of a prior.
        draws: number of resamples.
    """
    gradient = np.asarray(scores, dtype=np.float64)
    weights = cluster_weights(len(gradient), draws)
    matrix = np.tensordot(weights, np.asarray(curvatures, dtype=np.float64), axes=1) + np.asarray(penalty)
    slope = weights @ gradient + np.asarray(pull)
    return -np.asarray(np.linalg.solve(matrix, slope[..., None])[..., 0], dtype=np.float64)


def cluster_weights(nclusters: int, draws: int, *, seed: int = 0) -> NDArray[np.float64]:
    """Return the number of times that each cluster is drawn in each resample, ``(draws, nclusters)``.

    Raises:
        InputError: fewer than two clusters.
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
    """Return percentile limits of bootstrap values ``(draws, …)``, widened about their median for few clusters.

    The factors are √(C / (C − 1)) and the ratio of Student's quantile to the normal one, as in `bootstrap`. Unlike
    there, no extreme percentile is needed, so a hundred draws suffice instead of ten thousand.

    Args:
        values: values of the statistic in each resample.
        nclusters: number C of clusters.
        df: degrees of freedom ``(…)``: C − 1, or fewer for unequal clusters.
        level: confidence level.
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
    """Covariance ``(p, p)`` of an estimate, and degrees of freedom ``(p,)`` of each parameter's t quantile.

    ``rank`` is the number of directions whose spread C clusters can estimate: at most C − 1. ``influence`` ``(C, p)``
    is each cluster's contribution to the estimate's error; the covariance is the sum of their outer products.
    """

    covariance: Array
    df: Array
    rank: int
    influence: Array


def bias_reduced_sandwich(
    curvatures: ArrayLike, scores: ArrayLike, penalty: ArrayLike | None = None
) -> SandwichCovariance:
    """Return the CR2 sandwich with Bell–McCaffrey degrees of freedom.

    Args:
        curvatures: ``(C, p, p)`` second derivative of the summed loss of each cluster at the estimate.
        scores: ``(C, p)`` gradient of the loss summed over each cluster.
        penalty: ``(p, p)`` second derivative of the other terms of the loss, for example a prior.

    Raises:
        InputError: fewer than two clusters, or a direction that neither clusters nor penalty determine.
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
    """Return a root of the inverse of a positive definite matrix: the inverse is root @ root.T."""
    size = np.sqrt(np.maximum(np.diag(matrix), 0.0))  # unit columns: parameters have different units
    undetermined = InputError("A direction is determined neither by the clusters nor by a prior. Fix a parameter.")
    if not size.all():
        raise undetermined
    try:
        lower = np.linalg.cholesky(matrix / np.outer(size, size))
    except np.linalg.LinAlgError as error:
        raise undetermined from error
    return np.asarray(np.linalg.solve(lower, np.diag(1.0 / size)).T, dtype=np.float64)


def _satterthwaite(weights: Array, leverage: Array, inner: Array) -> float:
    """Return tr(Ω)² / tr(Ω²) for the covariance Ω ``(C, C)`` of cluster contributions under independent errors."""
    through = np.einsum("cij,cj->ci", leverage, weights)
    own = np.einsum("ci,ci->c", weights, through)
    common = through @ inner @ through.T
    trace = float(np.sum(own) - np.trace(common))
    square = float(np.sum(own**2) - 2.0 * np.sum(own * np.diag(common)) + np.sum(common**2))
    return max(1.0, trace**2 / square) if square > 0 else 1.0
