"""Whether ranks are uniform, and whether one observation could be a draw of the same kind as others."""

from __future__ import annotations

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator


def rank_uniformity(ranks: ArrayLike, most: int, *, seed: int = 0) -> float:
    """P-value of Kolmogorov and Smirnov's test that ranks ``(n,)`` from 0 to ``most`` are uniform.

    Ranks of true values among draws of a posterior are, if it is right (simulation-based calibration: Talts et al.,
    arXiv:1804.06788). A uniform number is added within each rank, so that the test is exact.
    """
    given = np.asarray(ranks, dtype=np.float64)
    if given.ndim != 1 or not len(given) or (given < 0).any() or (given > most).any():
        raise InputError(f"Ranks are a list of whole numbers from 0 to {most}; given shape {given.shape}.")
    within = generator(seed, "stats/ranks").uniform(size=len(given))
    return float(scipy.stats.kstest((given + within) / (most + 1), "uniform").pvalue)


def novelty(draws: ArrayLike, observed: ArrayLike) -> tuple[float, float, NDArray[np.float64]]:
    """How far an observation ``(k,)`` lies from draws ``(n, k)``: Mahalanobis distance, p-value, deviations ``(k,)``.

    Centre and covariance come from the first half of the draws; the p-value is one plus the number of draws of the
    other half that lie as far, over one plus their number, so that it is valid whatever their distribution. Deviations
    are of each coordinate alone, in standard deviations.

    Raises:
        InputError: fewer draws than four per coordinate.
    """
    known, seen = np.asarray(draws, dtype=np.float64), np.asarray(observed, dtype=np.float64)
    if len(known) < 4 * len(seen):
        raise InputError(f"{len(known)} draws of {len(seen)} figures are too few; give at least {4 * len(seen)}.")
    learned, held = known[: len(known) // 2], known[len(known) // 2 :]
    centre = learned.mean(axis=0)
    spread = np.maximum(learned.std(axis=0), 1e-12 * (1.0 + np.abs(centre)))
    inverse = np.linalg.pinv(np.cov((learned - centre) / spread, rowvar=False).reshape(len(seen), -1), hermitian=True)

    def distance(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        off = (rows - centre) / spread
        return np.sqrt(np.maximum(np.einsum("...i,ij,...j->...", off, inverse, off), 0.0))

    far = float(distance(seen))
    p_value = (1.0 + float(np.sum(distance(held) >= far))) / (1.0 + len(held))
    return far, p_value, (seen - centre) / spread
