"""Compute distances between the distributions of two samples: MMD, KID, energy distance, Wasserstein-1 per column.

Gretton et al., "A kernel two-sample test", Journal of Machine Learning Research 13 (2012): the unbiased estimate of
MMD² (Lemma 6), the width of the kernel at the median distance (section 8), and the permutation test.

Bińkowski, Sutherland, Arbel & Gretton, "Demystifying MMD GANs", ICLR 2018: the unbiased MMD² under (x·y / d + 1)³. The
Fréchet distance of the same embeddings is biased upwards by an amount that depends on the encoder and falls as 1/n;
with fewer than ten thousand images the bias is most of the distance (same paper, section 4).

Székely & Rizzo, "Energy statistics: a class of statistics based on distances", Journal of Statistical Planning and
Inference 143 (2013). It has no width to choose, and has the unit of the rows: columns of different units must be
scaled first.

W₁ = ∫ |F − G|, in the column's own unit. F and G are means of the episodes' distribution functions, so that every
episode has equal weight regardless of its length.
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
    """Return the unbiased MMD² of rows ``(n, d)`` and ``(m, d)`` under exp(−‖x − y‖² / (2 σ²)), with episodes as units.

    If both come from one source it is zero on average, and may be negative. With a kernel of at most 1 it is at most 2.

    Args:
        real: real rows ``(n, d)``.
        sim: simulated rows ``(m, d)``.
        real_clusters: episode number of each real row.
        sim_clusters: episode number of each simulated row.
        paired: equal episode numbers denote the same trial, see `two_samples`.
        bandwidth: σ, in the rows' units; by default the median distance between rows of both samples.
        multiples: multiples of σ; the kernel is the mean over them. Several detect differences of several sizes.
        level: confidence level of the interval; the test is at 1 − ``level``.
        draws: number of relabellings of episodes; 0 for no test.
        resamples: number of bootstrap resamples of episodes.
        seed: seed of relabellings, resamples and the median's subsample.

    Raises:
        InputError: the rows cannot be compared, a width is not positive, or there are too few episodes for the test.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    sigma = median_distance(samples, seed=seed) if bandwidth is None else float(bandwidth)
    widths = sigma * np.asarray(multiples, dtype=np.float64)
    if not len(widths) or not (np.isfinite(widths) & (widths > 0)).all():
        raise InputError(
            f"Kernel widths are positive numbers, not {widths.tolist()}. Omit the width to use the median."
        )
    found = kernel_distance(samples, gaussian_kernel(widths), level=level, draws=draws, resamples=resamples, seed=seed)
    return replace(found, scale=sigma)


def gaussian_kernel(widths: ArrayLike) -> Kernel:
    """Return the mean of Gaussian kernels of several widths."""
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

    return Kernel(name="MMD²", values=values, shifts=True)


def median_distance(samples: TwoSampleRows, *, seed: int = 0) -> float:
    """Return the median distance between rows of both samples together; 1 if all rows are equal.

    It uses at most 1000 rows drawn at random. If more than half of the distances are zero, it is the mean of the
    others.
    """
    rows = samples.rows
    if len(rows) > _MEDIAN_ROWS:
        rows = rows[generator(seed, "stats/mmd/median").choice(len(rows), _MEDIAN_ROWS, replace=False)]
    distances = scipy.spatial.distance.pdist(rows)
    middle = float(np.median(distances))
    if middle > 0:
        return middle
    apart = distances[distances > 0]
    return float(apart.mean()) if len(apart) else 1.0


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
    """Return the KID of embeddings ``(n, d)`` and ``(m, d)``, with episodes as units.

    The estimate uses all pairs at once. ``subsets_sd`` is the usually published spread over subsets, here of whole
    episodes. The interval is that of the estimate, not that spread.

    Other arguments and errors are those of `mmd`.

    Args:
        subset_rows: number of rows per side in a subset.
        subsets: number of subsets; 0 for none.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    kernel = cubic_kernel(samples.rows.shape[1])
    return kernel_distance(
        samples, kernel, level=level, draws=draws, resamples=resamples, seed=seed, subsets=(subset_rows, subsets)
    )


def cubic_kernel(dimension: int) -> Kernel:
    """Return the kernel (x·y / d + 1)³."""

    def values(dots: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG001
        dots /= dimension
        dots += 1
        squares = dots * dots
        dots *= squares
        return dots

    return Kernel(name="KID", values=values, shifts=False)


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
    """Return the unbiased energy distance of rows ``(n, d)`` and ``(m, d)``, with episodes as units.

    Arguments and errors are those of `mmd`.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    return kernel_distance(samples, _MINUS_DISTANCE, level=level, draws=draws, resamples=resamples, seed=seed)


def _minus_distance(dots: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    squares = squared_distances(dots, left, right)
    return np.negative(np.sqrt(squares, out=squares), out=squares)


_MINUS_DISTANCE = Kernel(name="energy distance", values=_minus_distance, shifts=True)


_GRID = 512  # most grid points of distribution functions: a resolution of 1/512 of the rows


@dataclass(frozen=True, kw_only=True)
class ColumnDistances(JsonRecord):
    """W₁ of columns ``(d,)`` with intervals and p-values.

    ``floor`` ``(d,)`` is the mean under relabelling: W₁ is never negative, and chance alone gives this value.
    ``p_value`` is for each column alone, ``p_adjusted`` for all together (see `Relabellings.adjusted`). Without a test
    these three are NaN. ``shift`` ``(d,)`` is mean(sim) − mean(real); ``spread`` is the ratio of standard deviations,
    sim / real (NaN if the real column is constant).
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
    """Return W₁ of each column of ``(n, d)`` and ``(m, d)``, with episodes as units.

    Intervals are percentiles of a bootstrap over episodes, minus its bias. If the permutation test does not reject
    equality, the interval starts at 0, which no resample can reach.

    Args:
        real: real rows ``(n, d)``.
        sim: simulated rows ``(m, d)``.
        real_clusters: episode number of each real row.
        sim_clusters: episode number of each simulated row.
        columns: names of the columns; by default numbers.
        paired: equal episode numbers denote the same trial, see `two_samples`.
        level: confidence level of the intervals; tests are at 1 − ``level``.
        draws: number of relabellings of episodes; 0 for no test.
        resamples: number of bootstrap resamples.
        seed: seed of relabellings and resamples.

    Raises:
        InputError: the rows cannot be compared, the names do not match, or there are too few episodes for the test.
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
    found, drawn = np.empty(ncolumn), np.empty((len(boot[0]), ncolumn))
    relabelled = np.empty((0 if labels is None else len(labels.real), ncolumn))
    for column in range(ncolumn):
        grid, functions = distribution_functions(few, column)
        found[column] = _wasserstein_distances(grid, functions, *weights)[0]
        drawn[:, column] = _wasserstein_distances(grid, functions, *boot)
        if labels is not None:
            relabelled[:, column] = _wasserstein_distances(grid, functions, labels.real, ~labels.real)
    unknown = np.full(ncolumn, np.nan)
    p_value = unknown if labels is None else labels.p_value(found, relabelled)
    means, spreads = _moments(few)
    return ColumnDistances(
        columns=names,
        distance=_interval(few, found, drawn, p_value, level),
        floor=unknown if labels is None else relabelled.mean(axis=0),
        p_value=p_value,
        p_adjusted=unknown if labels is None else labels.adjust_p_values(found, relabelled),
        shift=means[1] - means[0],
        spread=np.divide(spreads[1], spreads[0], out=np.full(ncolumn, np.nan), where=spreads[0] > 0),
    )


def distribution_functions(samples: TwoSampleRows, column: int) -> tuple[Array, Array]:
    """Return grid values ``(T,)`` and each episode's share of rows up to each of them ``(C, T)``."""
    values = samples.rows[:, column]
    grid = np.unique(values)
    if len(grid) > _GRID:
        grid = np.unique(np.quantile(values, np.linspace(0, 1, _GRID)))
    place = np.searchsorted(grid, values, side="left")
    counts = np.bincount(samples.episode * len(grid) + place, minlength=samples.nepisode * len(grid))
    shares = np.cumsum(counts.reshape(samples.nepisode, len(grid)), axis=1) / samples.sizes[:, None]
    return grid, shares


def _wasserstein_distances(grid: Array, functions: Array, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return W₁ ``(k,)`` of weighted episodes ``(k, C)``."""
    left, right = np.asarray(real, dtype=np.float64), np.asarray(sim, dtype=np.float64)
    weight = left / left.sum(axis=1, keepdims=True) - right / right.sum(axis=1, keepdims=True)
    return np.abs(weight @ functions[:, :-1]) @ np.diff(grid)


def _interval(samples: TwoSampleRows, found: Array, drawn: Array, p_value: Array, level: float) -> Interval:
    fewer = min(samples.nreal, samples.nsim)
    low, high = stretched_percentile(drawn, fewer, fewer - 1, level=level)
    bias = np.maximum(drawn.mean(axis=0) - found, 0.0)
    reaches = np.isnan(p_value) | (p_value > 1 - level)
    return Interval.of(
        found,
        np.where(reaches, 0.0, np.clip(low - bias, 0.0, found)),
        np.maximum(high - bias, found),
        level=level,
        method="percentile bootstrap over episodes less its bias; 0 where the permutation test does not exclude it",
    )


def _moments(samples: TwoSampleRows) -> tuple[Array, Array]:
    """Return mean and standard deviation of each side's columns ``(2, d)``, with equal weight per episode."""
    weight = 1.0 / samples.sizes[samples.episode]
    split = samples.real_rows
    sides = [(samples.rows[:split], weight[:split]), (samples.rows[split:], weight[split:])]
    means = np.stack([np.average(rows, axis=0, weights=w) for rows, w in sides])
    spreads = [np.average((rows - mean) ** 2, axis=0, weights=w) for (rows, w), mean in zip(sides, means, strict=True)]
    return means, np.sqrt(spreads)
