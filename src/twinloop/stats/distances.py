"""Compute distances between the distributions of two samples: MMD, KID, energy distance, Wasserstein-1 per column.

MMD (maximum mean discrepancy): Gretton et al., "A kernel two-sample test", Journal of Machine Learning Research 13
(2012): the unbiased estimate of MMD² (Lemma 6), the width of the kernel at the median distance (section 8), and the
permutation test.

KID (kernel inception distance): Bińkowski, Sutherland, Arbel & Gretton, "Demystifying MMD GANs", ICLR 2018: the
unbiased MMD² under the kernel (x·y / d + 1)³ of embeddings with d numbers. The Fréchet distance (FID) of the same
embeddings is biased upwards. Its bias depends on the encoder and decreases as 1/n. With fewer than ten thousand images,
the bias is larger than the true distance (same paper, section 4).

Energy distance: Székely & Rizzo, "Energy statistics: a class of statistics based on distances", Journal of Statistical
Planning and Inference 143 (2013). Unlike MMD it needs no kernel width. It has the unit of the rows, so columns of
different units must be scaled first.

Wasserstein-1: W₁ = ∫ |F − G|, in the column's own unit, with the distribution functions F and G of both samples. F and
G are means of the episodes' distribution functions, so that every episode has equal weight regardless of its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord
from twinloop.core.seeds import generator
from twinloop.stats.bootstrap import stretched_percentile
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.kernel_distance import Kernel, KernelDistance, kernel_distance, squared_distances
from twinloop.stats.two_sample import (
    Array,
    TwoSampleRows,
    column_names,
    observed_labels,
    relabel_episodes,
    require_episodes,
    resample_episodes,
    two_samples,
)

_MEDIAN_ROWS = 1000  # half a million distances give their median within 0.2 %


def mmd(
    real: ArrayLike,
    sim: ArrayLike,
    *,
    real_clusters: ArrayLike,
    sim_clusters: ArrayLike,
    paired: bool = False,
    bandwidth: float | None = None,
    multiples: Sequence[float] = (1.0,),
    level: float = 0.95,
    draws: int = 4999,
    resamples: int = 2000,
    seed: int = 0,
) -> KernelDistance:
    """Return the unbiased squared maximum mean discrepancy (MMD²) of two samples under a Gaussian kernel.

    The kernel is exp(−‖x − y‖² / (2 σ²)). Episodes, not rows, are the independent units of intervals and test. If both
    samples come from one source MMD² is zero on average, and may be negative. It is at most 2, because the kernel is at
    most 1.

    Args:
        real: Real rows (feature vectors), shape ``(n, d)``.
        sim: Simulated rows, shape ``(m, d)``.
        real_clusters: Episode number of each real row, shape ``(n,)``.
        sim_clusters: Episode number of each simulated row, shape ``(m,)``.
        paired: Whether equal episode numbers denote the same trial, see `two_samples`.
        bandwidth: Width σ in the rows' units; by default the median distance between rows of both samples.
        multiples: Factors on σ; the kernel is the mean over all widths. Several widths detect differences of several
            sizes.
        level: Confidence level of the interval. The permutation test must be able to reach a p-value of 1 − ``level``.
        draws: Number of relabellings of episodes for the permutation test; 0 for no test.
        resamples: Number of bootstrap resamples of episodes.
        seed: Seed of relabellings, resamples and the random rows for the median distance.

    Raises:
        InputError: If the rows cannot be compared, a width is not positive, or there are too few episodes for the test.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    sigma = median_distance(samples, seed=seed) if bandwidth is None else float(bandwidth)
    widths = sigma * np.asarray(multiples, dtype=np.float64)
    if not len(widths) or not (np.isfinite(widths) & (widths > 0)).all():
        raise InputError(
            f"Kernel widths are positive numbers, not {widths.tolist()}. Omit the width to use the median."
        )
    result = kernel_distance(samples, gaussian_kernel(widths), level=level, draws=draws, resamples=resamples, seed=seed)
    return replace(result, scale=sigma)


def gaussian_kernel(widths: ArrayLike) -> Kernel:
    """Return the mean of Gaussian kernels with several widths σ, as a kernel for `kernel_distance`."""
    rates = np.sort(0.5 / np.asarray(widths, dtype=np.float64) ** 2)

    def values(dots: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
        squares = squared_distances(dots, left, right)
        if len(rates) == 1:
            squares *= -rates[0]
            return np.exp(squares, out=squares)
        total = np.exp(-rates[0] * squares)
        for rate in rates[1:]:
            total += np.exp(-rate * squares)
        total /= len(rates)
        return total

    return Kernel(name="MMD²", values=values, shift_invariant=True)


def median_distance(samples: TwoSampleRows, *, seed: int = 0) -> float:
    """Return the median distance between rows of both samples together; 1 if all rows are equal.

    It uses at most 1000 rows drawn at random. If more than half of the distances are zero, it is the mean of the
    distances above zero.
    """
    rows = samples.rows
    if len(rows) > _MEDIAN_ROWS:
        rows = rows[generator(seed, "stats/mmd/median").choice(len(rows), _MEDIAN_ROWS, replace=False)]
    distances = scipy.spatial.distance.pdist(rows)
    middle = float(np.median(distances))
    if middle > 0:
        return middle
    positive = distances[distances > 0]
    return float(positive.mean()) if len(positive) else 1.0


def kid(
    real: ArrayLike,
    sim: ArrayLike,
    *,
    real_clusters: ArrayLike,
    sim_clusters: ArrayLike,
    paired: bool = False,
    subset_rows: int = 1000,
    subsets: int = 100,
    level: float = 0.95,
    draws: int = 4999,
    resamples: int = 2000,
    seed: int = 0,
) -> KernelDistance:
    """Return the kernel inception distance (KID) between real and simulated image embeddings.

    The estimate uses all pairs of embeddings at once. Publications usually report the standard deviation over random
    subsets. It is in the field ``subsets_sd`` of the result, computed from subsets of whole episodes. The interval is
    the confidence interval of the estimate.

    Args:
        real: Real embeddings, shape ``(n, d)``.
        sim: Simulated embeddings, shape ``(m, d)``.
        real_clusters: Episode number of each real embedding, shape ``(n,)``.
        sim_clusters: Episode number of each simulated embedding, shape ``(m,)``.
        paired: Whether equal episode numbers denote the same trial, see `two_samples`.
        subset_rows: Number of rows per side in a subset.
        subsets: Number of subsets; 0 for none.
        level: Confidence level of the interval. The permutation test must be able to reach a p-value of 1 − ``level``.
        draws: Number of relabellings of episodes for the permutation test; 0 for no test.
        resamples: Number of bootstrap resamples of episodes.
        seed: Seed of relabellings, resamples and subsets.

    Raises:
        InputError: If the embeddings cannot be compared, or there are too few episodes for the test.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    kernel = cubic_kernel(samples.rows.shape[1])
    return kernel_distance(
        samples, kernel, level=level, draws=draws, resamples=resamples, seed=seed, subsets=(subset_rows, subsets)
    )


def cubic_kernel(dimension: int) -> Kernel:
    """Return the kernel (x·y / d + 1)³ of the kernel inception distance (KID), for d = ``dimension`` columns."""

    def values(dots: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG001
        dots /= dimension
        dots += 1
        squares = dots * dots
        dots *= squares
        return dots

    return Kernel(name="KID", values=values, shift_invariant=False)


def energy_distance(
    real: ArrayLike,
    sim: ArrayLike,
    *,
    real_clusters: ArrayLike,
    sim_clusters: ArrayLike,
    paired: bool = False,
    level: float = 0.95,
    draws: int = 4999,
    resamples: int = 2000,
    seed: int = 0,
) -> KernelDistance:
    """Return the unbiased energy distance between real rows ``(n, d)`` and simulated rows ``(m, d)``, in their unit.

    Episodes, not rows, are the independent units of interval and test.

    Args:
    real: Real rows (feature vectors).
    sim: Simulated rows.
    real_clusters: Episode number of each real row, shape ``(n,)``.
    sim_clusters: Episode number of each simulated row, shape ``(m,)``.
    paired: Whether equal episode numbers denote the same trial, see `two_samples`.
    level: Confidence level of the interval. The permutation test must be able to reach a p-value of 1 − ``level``.
    draws: Number of relabellings of episodes for the permutation test; 0 for no test.
    resamples: Number of bootstrap resamples of episodes.
    seed: Seed of relabellings and resamples.

    Raises:
    InputError: If the rows cannot be compared, or there are too few episodes for the test.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    return kernel_distance(samples, _MINUS_DISTANCE, level=level, draws=draws, resamples=resamples, seed=seed)


def _minus_distance(dots: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    squares = squared_distances(dots, left, right)
    return np.negative(np.sqrt(squares, out=squares), out=squares)


_MINUS_DISTANCE = Kernel(name="energy distance", values=_minus_distance, shift_invariant=True)


_GRID = 512  # most grid points of distribution functions: a resolution of 1/512 of the rows


@dataclass(frozen=True, kw_only=True)
class ColumnDistances(JsonRecord):
    """Wasserstein-1 distance W₁ of each of d columns, with intervals and p-values.

    Attributes:
        columns: Names of the columns.
        distance: W₁ in the column's unit, with interval, shape ``(d,)``.
        floor: Value of W₁ that is expected without a difference of the samples, shape ``(d,)``; it is above 0, because
            W₁ is never negative. It is the mean over random relabellings of episodes; NaN without a test.
        p_value: P-value of each column alone; NaN without a test.
        p_adjusted: P-value of each column, adjusted for testing all columns together (see
            `EpisodeRelabellings.adjust_p_values`); NaN without a test.
        shift: Mean of the simulated minus mean of the real column, shape ``(d,)``.
        spread: Standard deviation of the simulated divided by that of the real column, shape ``(d,)``; NaN if the real
            column is constant.
    """

    columns: tuple[str, ...]
    distance: Interval
    floor: Array
    p_value: Array
    p_adjusted: Array
    shift: Array
    spread: Array


def wasserstein(
    real: ArrayLike,
    sim: ArrayLike,
    *,
    real_clusters: ArrayLike,
    sim_clusters: ArrayLike,
    columns: Sequence[str] | None = None,
    paired: bool = False,
    level: float = 0.95,
    draws: int = 1999,
    resamples: int = 1000,
    seed: int = 0,
) -> ColumnDistances:
    """Return the Wasserstein-1 distance W₁ of each column of two samples, with episodes as independent units.

    Intervals are percentiles of a bootstrap over episodes, minus its bias. If the permutation test does not reject
    equality, the lower limit is set to 0. Resamples always have a positive distance, so percentiles alone would exclude
    0.

    Args:
        real: Real rows, shape ``(n, d)``.
        sim: Simulated rows, shape ``(m, d)``.
        real_clusters: Episode number of each real row, shape ``(n,)``.
        sim_clusters: Episode number of each simulated row, shape ``(m,)``.
        columns: Names of the columns; by default numbers.
        paired: Whether equal episode numbers denote the same trial, see `two_samples`.
        level: Confidence level of the intervals; the significance level of the permutation tests is 1 − ``level``.
        draws: Number of relabellings of episodes for the permutation test; 0 for no test.
        resamples: Number of bootstrap resamples of episodes.
        seed: Seed of relabellings and resamples.

    Raises:
        InputError: If the rows cannot be compared, the names do not match, or there are too few episodes for the test.
    """
    check_level(level)
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    names = column_names(columns, samples.rows.shape[1])
    if draws:
        require_episodes(samples, level)
    few = samples.bundle_episodes(seed=seed)
    weights = observed_labels(few)
    boot = resample_episodes(few, resamples, seed=seed)
    labels = relabel_episodes(few, draws, seed=seed) if draws else None
    ncolumn = len(names)
    estimates, drawn = np.empty(ncolumn), np.empty((len(boot[0]), ncolumn))
    relabelled = np.empty((0 if labels is None else len(labels.real), ncolumn))
    for column in range(ncolumn):
        grid, functions = distribution_functions(few, column)
        estimates[column] = _wasserstein_distances(grid, functions, *weights)[0]
        drawn[:, column] = _wasserstein_distances(grid, functions, *boot)
        if labels is not None:
            relabelled[:, column] = _wasserstein_distances(grid, functions, labels.real, ~labels.real)
    unknown = np.full(ncolumn, np.nan)
    p_value = unknown if labels is None else labels.p_value(estimates, relabelled)
    means, spreads = _moments(few)
    return ColumnDistances(
        columns=names,
        distance=_interval(few, estimates, drawn, p_value, level),
        floor=unknown if labels is None else relabelled.mean(axis=0),
        p_value=p_value,
        p_adjusted=unknown if labels is None else labels.adjust_p_values(estimates, relabelled),
        shift=means[1] - means[0],
        spread=np.divide(spreads[1], spreads[0], out=np.full(ncolumn, np.nan), where=spreads[0] > 0),
    )


def distribution_functions(samples: TwoSampleRows, column: int) -> tuple[Array, Array]:
    """Return the empirical distribution function of one column in each episode.

    Args:
        samples: Rows of both samples.
        column: Index of the column.

    Returns:
        The grid, which consists of the different values of the column in both samples, or of quantiles of them if there
        are many, shape ``(ngrid,)``; and each episode's share of rows up to each grid value, shape ``(nepisode,
        ngrid)``.
    """
    values = samples.rows[:, column]
    grid = np.unique(values)
    if len(grid) > _GRID:
        grid = np.unique(np.quantile(values, np.linspace(0, 1, _GRID)))
    place = np.searchsorted(grid, values, side="left")
    counts = np.bincount(samples.episode * len(grid) + place, minlength=samples.nepisode * len(grid))
    shares = np.cumsum(counts.reshape(samples.nepisode, len(grid)), axis=1) / samples.sizes[:, None]
    return grid, shares


def _wasserstein_distances(grid: Array, functions: Array, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return W₁ for k weightings of the episodes, shape ``(k,)``.

    Args:
        grid: Grid values, shape ``(ngrid,)``.
        functions: Distribution function of each episode at the grid values, shape ``(nepisode, ngrid)``.
        real: Weights of the episodes in the real sample, shape ``(k, nepisode)``.
        sim: Weights of the episodes in the simulated sample, same shape.
    """
    left, right = np.asarray(real, dtype=np.float64), np.asarray(sim, dtype=np.float64)
    weight = left / left.sum(axis=1, keepdims=True) - right / right.sum(axis=1, keepdims=True)
    return np.abs(weight @ functions[:, :-1]) @ np.diff(grid)


def _interval(samples: TwoSampleRows, estimate: Array, drawn: Array, p_value: Array, level: float) -> Interval:
    fewer = min(samples.nreal, samples.nsim)
    low, high = stretched_percentile(drawn, fewer, fewer - 1, level=level)
    bias = np.maximum(drawn.mean(axis=0) - estimate, 0.0)
    reaches = np.isnan(p_value) | (p_value > 1 - level)
    return Interval.of(
        estimate,
        np.where(reaches, 0.0, np.clip(low - bias, 0.0, estimate)),
        np.maximum(high - bias, estimate),
        level=level,
        method="percentile bootstrap over episodes less its bias; 0 where the permutation test does not exclude it",
    )


def _moments(samples: TwoSampleRows) -> tuple[Array, Array]:
    """Return means and standard deviations of the columns of both samples, with equal weight per episode.

    Returns:
        Two arrays of shape ``(2, d)``: row 0 is the real sample, row 1 the simulated one.
    """
    weight = 1.0 / samples.sizes[samples.episode]
    split = samples.real_rows
    sides = [(samples.rows[:split], weight[:split]), (samples.rows[split:], weight[split:])]
    means = np.stack([np.average(rows, axis=0, weights=w) for rows, w in sides])
    spreads = [np.average((rows - mean) ** 2, axis=0, weights=w) for (rows, w), mean in zip(sides, means, strict=True)]
    return means, np.sqrt(spreads)
