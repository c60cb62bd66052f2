"""Store results of simulation-based inference: draws, their intervals, the calibration check, the misfit check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats import Interval

Array = NDArray[np.float64]

# Chance of a false alarm in each of the two checks; our choice.
ALARM = 0.01
LEVELS = (0.5, 0.9)
FORM = "normal with the mean and covariance of the draws, in transformed coordinates"


@dataclass(frozen=True, kw_only=True)
class RankCheck:
    """Simulation-based calibration over simulations with known parameters.

    ``ranks`` ``(n, p)`` are the ranks of true values among ``draws`` posterior draws. ``p_values`` ``(p,)`` test their
    uniformity, adjusted by Holm's method. ``coverage`` are the parts of true values within the central intervals at
    `LEVELS`, each ``(p,)``.
    """

    ranks: NDArray[np.intp]
    draws: int
    p_values: Array
    coverage: tuple[Interval, ...]

    @property
    def is_calibrated(self) -> bool:
        """Whether no rank test rejects the posterior's calibration."""
        return bool((self.p_values >= ALARM).all())


@dataclass(frozen=True, kw_only=True)
class PosteriorMisfit:
    """Distance of the data from simulations at posterior draws.

    ``distance`` is the Mahalanobis distance; ``p_value`` comes from its rank among simulations. ``deviations`` are
    those of single summaries in standard deviations, by name, the largest first.
    """

    distance: float
    p_value: float
    deviations: tuple[tuple[str, float], ...]

    @property
    def is_misspecified(self) -> bool:
        """Whether the data differ from the simulations, p < `ALARM`."""
        return self.p_value < ALARM

    def text(self) -> str:
        """Return a sentence for a terminal."""
        if not self.is_misspecified:
            return f"Data and simulations agree (p = {self.p_value:.2g})."
        worst = ", ".join(f"{name} {value:+.1f} sd" for name, value in self.deviations[:3])
        return (
            f"MISSPECIFIED: the twin does not produce such data (p = {self.p_value:.2g}; {worst}). "
            "The posterior is not valid: find the missing physics with --compare."
        )


@dataclass(frozen=True, kw_only=True)
class PosteriorDraws:
    """Draws from a posterior, with their checks.

    ``samples`` ``(n, p)`` are in the transformed coordinates of ``names``. ``distribution`` is the fit's with the
    draws' mean and covariance (`FORM`). ``low``, ``median`` and ``high`` are SI, at ``level``. ``crowded`` names
    parameters whose draws still accumulate at the sides of the last box. ``lost`` of the ``simulations`` had no finite
    readings; they are excluded, and thus count as impossible.
    """

    names: tuple[str, ...]
    samples: Array
    distribution: ParamDistribution
    low: Array
    median: Array
    high: Array
    level: float
    ranks: RankCheck
    misfit: PosteriorMisfit
    crowded: tuple[str, ...]
    simulations: int
    lost: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary without the draws."""
        return {
            "names": list(self.names),
            "low": self.low.tolist(),
            "median": self.median.tolist(),
            "high": self.high.tolist(),
            "level": self.level,
            "form": FORM,
            "distribution": self.distribution.to_json(),
            "rank_p_values": self.ranks.p_values.tolist(),
            "coverage": [interval.to_json() for interval in self.ranks.coverage],
            "misfit": {
                "distance": self.misfit.distance,
                "p_value": self.misfit.p_value,
                "found": self.misfit.is_misspecified,
            },
            "deviations": dict(self.misfit.deviations),
            "crowded": list(self.crowded),
            "simulations": self.simulations,
            "lost": self.lost,
        }

    def text(self) -> str:
        """Return intervals and both checks for a terminal."""
        lines = [
            f"Posterior by simulation-based inference: {self.simulations} simulations, {self.lost} without readings."
        ]
        heads = "".join(f"{f'in {level:.0%}':>12}" for level in LEVELS)
        lines.append(f"{'parameter':<36}{'median':>12}  {f'{self.level:.0%} of draws':<26}{heads}   ranks p")
        for i, name in enumerate(self.names):
            covered = "".join(f"{interval.estimate[i]:>12.0%}" for interval in self.ranks.coverage)
            span = f"[{self.low[i]:.4g}, {self.high[i]:.4g}]"
            lines.append(f"{name:<36}{self.median[i]:>12.4g}  {span:<26}{covered}{self.ranks.p_values[i]:>10.2g}")
        if not self.ranks.is_calibrated:
            lines.append("NOT CALIBRATED: true values rank unevenly among the draws. Run more simulations.")
        if self.crowded:
            lines.append(f"CUT OFF: draws of {', '.join(self.crowded)} accumulate at the limits of the simulated box.")
        return "\n".join([*lines, self.misfit.text()])


def rank_uniformity(ranks: ArrayLike, most: int) -> float:
    """Return the p-value of a Kolmogorov-Smirnov test that ranks ``(n,)`` from 0 to ``most`` are uniform.

    True values have uniform ranks among draws of a correct posterior (simulation-based calibration: Talts et al.,
    arXiv:1804.06788). A uniform number is added within each rank, so that the test is exact.
    """
    given = np.asarray(ranks, dtype=np.float64)
    if given.ndim != 1 or not len(given) or (given < 0).any() or (given > most).any():
        raise InputError(f"Ranks must be a list of integers from 0 to {most}; given shape {given.shape}.")
    within = generator(0, "stats/ranks").uniform(size=len(given))
    return float(scipy.stats.kstest((given + within) / (most + 1), "uniform").pvalue)


def measure_novelty(draws: ArrayLike, observed: ArrayLike) -> tuple[float, float, NDArray[np.float64]]:
    """Compare an observation ``(k,)`` with draws ``(n, k)``: Mahalanobis distance, p-value, deviations ``(k,)``.

    Centre and covariance are estimated from the first half of the draws. The p-value is one plus the number of draws of
    the other half with at least the same distance, divided by one plus their number; it is valid for any distribution.
    Deviations are of each coordinate alone, in standard deviations.

    Raises:
        InputError: fewer than four draws per coordinate.
    """
    known, seen = np.asarray(draws, dtype=np.float64), np.asarray(observed, dtype=np.float64)
    if len(known) < 4 * len(seen):
        raise InputError(f"{len(known)} draws of {len(seen)} values are too few. Give at least {4 * len(seen)}.")
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
