"""Maximum mean discrepancy with a Gaussian kernel.

Gretton et al., "A kernel two-sample test", Journal of Machine Learning Research 13 (2012): the unbiased estimate of
MMD² (Lemma 6), the width of the kernel at the median distance (section 8), and the test by permutation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.kernel_distance import Kernel, KernelDistance, kernel_distance, squared_distances
from twinloop.stats.two_sample import TwoSample, two_samples

_MEDIAN_ROWS = 1000  # half a million distances tell their median to 0.2 %


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
    """Unbiased MMD² of rows ``(n, d)`` and ``(m, d)`` under exp(−‖x − y‖² / (2 σ²)), with episodes as the unit.

    Zero on average where both come from one source, and then as often below zero as above; at most 2 by kernel.

    Args:
        real: ``(n, d)``.
        sim: ``(m, d)``.
        real_clusters: number of each real row's episode.
        sim_clusters: of each simulated row's.
        paired: equal numbers name the same trial, see `two_samples`.
        bandwidth: σ, in the rows' units; by default the median distance between rows of both samples.
        multiples: of σ over whose kernels the mean is taken; several see differences of several sizes.
        level: of the interval; the test is at 1 − ``level``.
        draws: relabellings of episodes; 0 for no test.
        resamples: of the bootstrap over episodes.
        seed: of relabellings, resamples and the median's subsample.

    Raises:
        InputError: rows that cannot be compared, a width that is not positive, too few episodes for the test.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    sigma = median_distance(samples, seed=seed) if bandwidth is None else float(bandwidth)
    widths = sigma * np.asarray(multiples, dtype=np.float64)
    if not len(widths) or not (np.isfinite(widths) & (widths > 0)).all():
        raise InputError(f"Kernel widths are positive numbers; asked for {widths.tolist()}. Leave out for the median.")
    found = kernel_distance(samples, gaussian(widths), level=level, draws=draws, resamples=resamples, seed=seed)
    return replace(found, scale=sigma)


def gaussian(widths: ArrayLike) -> Kernel:
    """The mean of Gaussian kernels of several widths."""
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


def median_distance(samples: TwoSample, *, seed: int = 0) -> float:
    """The median distance between rows, whichever sample they are of; 1 where all rows are equal.

    Of at most 1000 rows drawn at random. Where more than half of the distances are zero, the mean of the others.
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
