"""Kernel Inception distance: the distance of embeddings that has no bias with few pictures.

Bińkowski, Sutherland, Arbel & Gretton, "Demystifying MMD GANs", ICLR 2018: the unbiased MMD² under (x·y / d + 1)³. The
Fréchet distance of the same embeddings is biased upwards by an amount that depends on the encoder and falls as 1/n,
which below ten thousand pictures is most of it (same paper, section 4).
"""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike, NDArray

from twinloop.stats.kernel_distance import Kernel, KernelDistance, kernel_distance
from twinloop.stats.two_sample import two_samples


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
    """KID of embeddings ``(n, d)`` and ``(m, d)``, with episodes as the unit.

    The estimate is of all pairs at once; ``subsets_sd`` is the spread over subsets that is usually published beside
    it, of whole episodes. The interval is of the estimate, and not that spread.

    Args:
        real: ``(n, d)``.
        sim: ``(m, d)``.
        real_clusters: number of each real row's episode.
        sim_clusters: of each simulated row's.
        paired: equal numbers name the same trial, see `two_samples`.
        subset_rows: rows a side of a subset.
        subsets: how many; 0 for none.
        level: of the interval; the test is at 1 − ``level``.
        draws: relabellings of episodes; 0 for no test.
        resamples: of the bootstrap over episodes.
        seed: of relabellings, resamples and subsets.

    Raises:
        InputError: rows that cannot be compared, too few episodes for the test.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    kernel = cubic(samples.rows.shape[1])
    return kernel_distance(
        samples, kernel, level=level, draws=draws, resamples=resamples, seed=seed, subsets=(subset_rows, subsets)
    )


def cubic(dimension: int) -> Kernel:
    """(x·y / d + 1)³."""

    def values(dots: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG001
        dots /= dimension
        dots += 1
        squares = dots * dots
        dots *= squares
        return dots

    return Kernel(name="KID", values=values, shifts=False)
