"""Energy distance: 2 E‖X − Y‖ − E‖X − X′‖ − E‖Y − Y′‖, zero only between equal distributions.

Székely & Rizzo, "Energy statistics: a class of statistics based on distances", Journal of Statistical Planning and
Inference 143 (2013). It needs no width to be chosen, and has the unit of the rows: columns of different units must be
scaled first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.stats.kernel_distance import Kernel, KernelDistance, kernel_distance, squared_distances
from twinloop.stats.two_sample import two_samples


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
    """Unbiased energy distance of rows ``(n, d)`` and ``(m, d)``, with episodes as the unit.

    Args:
        real: ``(n, d)``.
        sim: ``(m, d)``.
        real_clusters: number of each real row's episode.
        sim_clusters: of each simulated row's.
        paired: equal numbers name the same trial, see `two_samples`.
        level: of the interval; the test is at 1 − ``level``.
        draws: relabellings of episodes; 0 for no test.
        resamples: of the bootstrap over episodes.
        seed: of relabellings and resamples.

    Raises:
        InputError: rows that cannot be compared, too few episodes for the test.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    return kernel_distance(samples, _MINUS_DISTANCE, level=level, draws=draws, resamples=resamples, seed=seed)


def _minus_distance(dots: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    squares = squared_distances(dots, left, right)
    return np.negative(np.sqrt(squares, out=squares), out=squares)


_MINUS_DISTANCE = Kernel(name="energy distance", values=_minus_distance, shifts=True)
