"""Compute distances between distributions from the mean of a kernel over pairs of rows (MMD, KID, energy distance).

D = E k(x, x′) + E k(y, y′) − 2 E k(x, y), for a kernel k, real rows x and simulated rows y. The kernel is summed once
over all pairs of rows, one block of rows at a time, which gives a matrix of sums by pair of episodes. The distance,
also under relabelling and resampling, is a weighted sum of the entries of that matrix.

An episode is one observation of any length: its rows are a sample of one distribution. The mean over pairs of different
episodes (a U-statistic) is an unbiased estimate of the distance between the rows of a new real and a new simulated
episode. Rows of one episode are not compared with each other, because they are similar and would increase the distance.
If every row is a separate episode, the result is the usual unbiased estimate over all pairs of different rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.seeds import generator
from twinloop.stats.bootstrap import stretched_percentile
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.two_sample import (
    Array,
    TwoSampleRows,
    observed_labels,
    relabel_episodes,
    require_episodes,
    resample_episodes,
)

# From here on blocks are float32, twice as fast; a kernel value then has an error of 1e-6 of the largest, and the error
# of its mean over 10⁷ pairs and more is far below the spread between episodes.
_MANY_ROWS = 4096
_BLOCK_BYTES = 64e6


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A symmetric kernel function of two rows (feature vectors).

    Attributes:
        name: Name of the distance that is computed with the kernel: ``MMD²``, ``KID`` or ``energy distance``.
        values: Function that returns the kernel between b rows and n rows, shape ``(b, n)``, from their dot products
            ``(b, n)`` and squared norms ``(b, 1)`` and ``(n,)``. It may overwrite the dot products.
        shift_invariant: Whether the kernel is unchanged if a constant vector is added to all rows. Rows are then
            centred, for numerical accuracy.
    """

    name: str
    values: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[Any]]
    shift_invariant: bool


@dataclass(frozen=True, kw_only=True)
class KernelDistance:
    """Distance between a real and a simulated sample, with its interval and a permutation test over episodes.

    Attributes:
        name: Name of the distance.
        distance: Distance over pairs of different episodes, with its interval.
        pooled: Usual estimate over all pairs of different rows, for comparison with other programs. It is too large if
            rows of an episode are similar.
        p_value: P-value of the hypothesis that both samples come from one source; NaN without a test.
        exact: Whether the test used all possible relabellings.
        relabelled: Distances under random relabelling of episodes, that is, without a sim-to-real gap, shape
            ``(ndraw,)``.
        nreal: Number of real episodes.
        nsim: Number of simulated episodes.
        scale: Width σ of the kernel, if it has one; else NaN.
        subsets_sd: Standard deviation of the distance over random subsets of episodes; NaN if not requested.
    """

    name: str
    distance: Interval
    pooled: float
    p_value: float
    exact: bool
    relabelled: Array
    nreal: int
    nsim: int
    scale: float = float("nan")
    subsets_sd: float = float("nan")

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that can be written as JSON."""
        return {
            "name": self.name,
            "distance": self.distance.to_json(),
            "pooled": self.pooled,
            "p_value": self.p_value,
            "exact": self.exact,
            "null_q95": float(np.quantile(self.relabelled, 0.95)) if len(self.relabelled) else float("nan"),
            "episodes": {"real": self.nreal, "sim": self.nsim},
            "scale": self.scale,
            "subsets_sd": self.subsets_sd,
        }


def kernel_distance(
    samples: TwoSampleRows,
    kernel: Kernel,
    *,
    level: float,
    draws: int,
    resamples: int,
    seed: int,
    subsets: tuple[int, int] = (0, 0),
) -> KernelDistance:
    """Return the distance of two samples under a kernel, with its interval and permutation test over episodes.

    Args:
        samples: The rows of both samples.
        kernel: The kernel of two rows.
        level: Confidence level of the interval; the test is at 1 − ``level``.
        draws: Number of relabellings of episodes; 0 for no test.
        resamples: Number of bootstrap resamples of episodes.
        seed: Seed of relabellings and resamples.
        subsets: Number of rows per side, and number of subsets, for the standard deviation of the distance over random
            subsets (``subsets_sd``), which is usually published with KID. If the number of subsets is 0, it is NaN.

    Raises:
        InputError: If there are too few episodes for the test.
    """
    check_level(level)
    if draws:
        require_episodes(samples, level)
    few = samples.bundle_episodes(seed=seed)
    sums = episode_sums(few, kernel)
    real, sim = observed_labels(few)
    distance = float(_distances(few, sums, real, sim)[0])
    drawn = _distances(few, sums, *resample_episodes(few, resamples, seed=seed))
    low, high = stretched_percentile(drawn, min(few.nreal, few.nsim), min(few.nreal, few.nsim) - 1, level=level)
    p_value, exact, relabelled = float("nan"), False, np.empty(0)
    if draws:
        labels = relabel_episodes(few, draws, seed=seed)
        relabelled = _distances(few, sums, labels.real.astype(np.float64), (~labels.real).astype(np.float64))
        p_value, exact = float(labels.p_value(distance, relabelled, rounding=sums.rounding)), labels.exact
    return KernelDistance(
        name=kernel.name,
        distance=Interval.of(
            distance,
            np.minimum(low, distance),
            np.maximum(high, distance),
            level=level,
            method="percentile bootstrap over episodes, stretched for few",
        ),
        pooled=_pooled_estimate(few, sums),
        p_value=p_value,
        exact=exact,
        relabelled=relabelled,
        nreal=samples.nreal,
        nsim=samples.nsim,
        subsets_sd=subsets_sd(few, sums, rows=subsets[0], count=subsets[1], seed=seed) if subsets[1] else float("nan"),
    )


@dataclass(frozen=True, kw_only=True)
class EpisodeSums:
    """Sums of a kernel over pairs of rows, by episode.

    Attributes:
        pairs: Sum over all pairs of a row of one and a row of another episode, shape ``(nepisode, nepisode)``.
        own: Sum of the kernel of each row with itself, shape ``(nepisode,)``.
        rounding: Bound on the rounding error of a mean of kernel values. Smaller differences of means count as 0.
    """

    pairs: Array
    own: Array
    rounding: float

    def means(self, sizes: NDArray[np.intp]) -> Array:
        """Return the mean kernel between the rows of two episodes, shape ``(nepisode, nepisode)``.

        Args:
            sizes: Number of rows of each episode, shape ``(nepisode,)``.
        """
        return self.pairs / np.outer(sizes, sizes)


def episode_sums(samples: TwoSampleRows, kernel: Kernel) -> EpisodeSums:
    """Sum a symmetric kernel over all pairs of rows, by episode, one block of rows at a time.

    It needs memory for one block of rows against all rows, at most 64 MB, and for the matrix of episodes.
    """
    kind = np.float32 if len(samples.rows) >= _MANY_ROWS else np.float64
    rows = samples.rows - samples.rows.mean(axis=0) if kernel.shift_invariant else samples.rows
    rows = rows.astype(kind)
    norms = np.einsum("nd,nd->n", rows, rows)
    n, c = len(rows), samples.nepisode
    height = int(np.clip(_BLOCK_BYTES / (rows.itemsize * n), 1, n))
    pairs, own = np.zeros((c, c)), np.zeros(c)
    for begin in range(0, n, height):
        end = min(begin + height, n)
        values = kernel.values(rows[begin:end] @ rows[begin:].T, norms[begin:end, None], norms[begin:])
        label = samples.episode[begin:end]
        np.add.at(own, label, np.diagonal(values).astype(np.float64))
        _add_sums(pairs, values[:, : end - begin], label, label)
        if end < n:
            _add_sums(pairs, values[:, end - begin :], label, samples.episode[end:], both=True)
    largest = float(np.abs(pairs / np.outer(samples.sizes, samples.sizes)).max())
    return EpisodeSums(pairs=pairs, own=own, rounding=8 * float(np.finfo(kind).eps) * largest)


def squared_distances(dots: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Return the squared distances ‖x − y‖² of rows; they overwrite the dot products, and are never negative.

    Args:
        dots: Dot products x·y, shape ``(b, n)``.
        left: Squared norms of the rows x, shape ``(b, 1)``.
        right: Squared norms of the rows y, shape ``(n,)``.
    """
    dots *= -2
    dots += left
    dots += right
    return np.maximum(dots, 0, out=dots)


def _add_sums(
    pairs: Array, values: NDArray[Any], left: NDArray[np.intp], right: NDArray[np.intp], *, both: bool = False
) -> None:
    """Add the kernel values of a block of row pairs to the sums by episode, in place.

    Args:
        pairs: The sums, shape ``(nepisode, nepisode)``.
        values: Kernel values of the block, shape ``(b, n)``.
        left: Episode of each of the b rows, ascending.
        right: Episode of each of the n rows, ascending.
        both: Whether to add the values to the transposed entries too.
    """
    columns = np.flatnonzero(np.diff(right, prepend=-1))
    lines = np.flatnonzero(np.diff(left, prepend=-1))
    by_column = np.add.reduceat(values, columns, axis=1).astype(np.float64)
    sums = np.add.reduceat(by_column, lines, axis=0)
    place = np.ix_(left[lines], right[columns])
    pairs[place] += sums
    if both:
        pairs[place[1].T, place[0].T] += sums.T


def _distances(samples: TwoSampleRows, sums: EpisodeSums, real: Array, sim: Array) -> Array:
    """Return the kernel distances (MMD², KID or energy distance) for k sets of episode weights, shape ``(k,)``.

    The weights are 0 or 1 for an assignment of labels, and the number of draws for a bootstrap resample.

    The distances are means over the pairs of different episodes, excluding the two episodes of a paired trial
    (`TwoSampleRows.comparable_pairs`).

    Args:
        samples: Rows of both samples.
        sums: Sums of the kernel by episode.
        real: Weights of the episodes in the real sample, shape ``(k, nepisode)``.
        sim: Weights of the episodes in the simulated sample, same shape.
    """
    kernel = sums.means(samples.sizes) * samples.comparable_pairs
    of_real, of_sim = real @ kernel, sim @ kernel
    within_real = np.einsum("kc,kc->k", of_real, real) / samples.count_pairs(real, real)
    within_sim = np.einsum("kc,kc->k", of_sim, sim) / samples.count_pairs(sim, sim)
    across = np.einsum("kc,kc->k", of_real, sim) / samples.count_pairs(real, sim)
    return within_real + within_sim - 2 * across


def _pooled_estimate(samples: TwoSampleRows, sums: EpisodeSums) -> float:
    """Return the usual unbiased estimate of the kernel distance, the mean over all pairs of different rows.

    It ignores episodes (Gretton et al. 2012, eq. 3, for the squared maximum mean discrepancy MMD²). It is NaN if a
    sample has fewer than two rows.
    """
    r, n = samples.nreal, samples.real_rows
    m = len(samples.rows) - n
    if min(n, m) <= 1:
        return float("nan")
    within_real = (sums.pairs[:r, :r].sum() - sums.own[:r].sum()) / (n * (n - 1))
    within_sim = (sums.pairs[r:, r:].sum() - sums.own[r:].sum()) / (m * (m - 1))
    return float(within_real + within_sim - 2 * sums.pairs[:r, r:].sum() / (n * m))


def subsets_sd(samples: TwoSampleRows, sums: EpisodeSums, *, rows: int, count: int, seed: int = 0) -> float:
    """Return the standard deviation of the kernel distance over random subsets of whole episodes.

    It is usually published with KID (Bińkowski et al. 2018: 100 subsets of 1000 images); here episodes stay whole.

    Args:
        samples: Rows of both samples.
        sums: Sums of the kernel by episode.
        rows: Approximate number of rows per side in a subset.
        count: Number of subsets.
        seed: Run seed.
    """
    rng = generator(seed, "stats/two-sample/subsets")
    n, r = samples.real_rows, samples.nreal
    sides = []
    for first, number, total in ((0, r, n), (r, samples.nsim, len(samples.rows) - n)):
        size = int(np.clip(round(number * rows / total), 2, number))
        weights = np.zeros((count, samples.nepisode))
        chosen = first + np.argsort(rng.random((count, number)), axis=1)[:, :size]
        np.put_along_axis(weights, chosen, 1.0, axis=1)
        sides.append(weights)
    return float(_distances(samples, sums, *sides).std(ddof=1))
