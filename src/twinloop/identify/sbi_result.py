"""Define results of simulation-based inference: posterior draws, intervals, calibration test and test of misfit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray

from twinloop.core.console import fit_column
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
    """Simulation-based calibration: test of the posterior on n simulations with known parameters.

    Attributes:
        ranks: Rank of each true value among posterior draws, ``(n, p)`` for p parameters.
        draws: Number of posterior draws per simulation.
        p_values: P-values of the test that ranks are uniform, adjusted by Holm's method, ``(p,)``.
        coverage: Per level in `LEVELS` (0.5 and 0.9), fraction of true values in the central interval, ``(p,)``.
    """

    ranks: NDArray[np.intp]
    draws: int
    p_values: Array
    coverage: tuple[Interval, ...]

    @property
    def is_calibrated(self) -> bool:
        """Whether no rank test rejects the posterior's calibration: all p-values are at least `ALARM` (0.01)."""
        return bool((self.p_values >= ALARM).all())


@dataclass(frozen=True, kw_only=True)
class PosteriorMisfit:
    """Comparison of the data with simulations at posterior draws.

    Attributes:
        distance: Mahalanobis distance of the data's summaries from those of the simulations.
        p_value: P-value from the rank of this distance among the simulations.
        deviations: Deviation of each summary alone, in standard deviations, by name, the largest first.
    """

    distance: float
    p_value: float
    deviations: tuple[tuple[str, float], ...]

    @property
    def is_misspecified(self) -> bool:
        """Whether the data differ significantly from the simulations: the p-value is below `ALARM` (0.01)."""
        return self.p_value < ALARM

    def text(self) -> str:
        """Return the conclusion as a sentence for a terminal."""
        if not self.is_misspecified:
            return f"Data and simulations agree (p = {self.p_value:.2g})."
        worst = ", ".join(f"{name} {value:+.1f} sd" for name, value in self.deviations[:3])
        return (
            f"MISSPECIFIED: the twin does not produce such data (p = {self.p_value:.2g}; {worst}). "
            "The posterior is not valid: find the missing physics with --compare."
        )


@dataclass(frozen=True, kw_only=True)
class PosteriorDraws:
    """Draws from a posterior of p parameters, with calibration test and test of misfit.

    Attributes:
        names: Names of the parameters.
        samples: Draws in solver coordinates (natural logarithms of positive parameters), ``(n, p)``.
        distribution: The fit's distribution with mean and covariance of the draws.
        low: Lower limits of the central intervals, SI, ``(p,)``.
        median: Medians, SI, ``(p,)``.
        high: Upper limits of the central intervals, SI, ``(p,)``.
        level: Probability of the intervals.
        ranks: Calibration test.
        misfit: Comparison of the data with simulations.
        cut_off: Parameters whose draws accumulate at a limit of the range simulated in the last round, so that the
            posterior may extend beyond this range.
        simulations: Number of simulations in all rounds.
        failed_simulations: Number of simulations with infinite or NaN readings. They are left out of the training, so
            that their parameters count as impossible.
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
    cut_off: tuple[str, ...]
    simulations: int
    failed_simulations: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary, excluding the draws."""
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
                "is_misspecified": self.misfit.is_misspecified,
            },
            "deviations": dict(self.misfit.deviations),
            "cut_off": list(self.cut_off),
            "simulations": self.simulations,
            "failed_simulations": self.failed_simulations,
        }

    def text(self) -> str:
        """Return the intervals, the calibration test and the misfit test as text for a terminal."""
        failed = f"{self.failed_simulations} without readings"
        lines = [f"Posterior by simulation-based inference: {self.simulations} simulations, {failed}."]
        heads = "".join(f"{f'in {level:.0%}':>12}" for level in LEVELS)
        wide = fit_column(36, self.names)
        lines.append(f"{'parameter':<{wide}}{'median':>12}  {f'{self.level:.0%} of draws':<26}{heads}   ranks p")
        for i, name in enumerate(self.names):
            covered = "".join(f"{interval.estimate[i]:>12.0%}" for interval in self.ranks.coverage)
            span = f"[{self.low[i]:.4g}, {self.high[i]:.4g}]"
            lines.append(f"{name:<{wide}}{self.median[i]:>12.4g}  {span:<26}{covered}{self.ranks.p_values[i]:>10.2g}")
        if not self.ranks.is_calibrated:
            lines.append("NOT CALIBRATED: true values rank unevenly among the draws. Run more simulations.")
        if self.cut_off:
            lines.append(
                f"CUT OFF: draws of {', '.join(self.cut_off)} accumulate at the limits of the simulated "
                "ranges. Run more rounds."
            )
        return "\n".join([*lines, self.misfit.text()])


def rank_uniformity(ranks: ArrayLike, most: int) -> float:
    """Return the p-value of a Kolmogorov-Smirnov test that ranks are uniform.

    True values have uniform ranks among draws of a correct posterior (simulation-based calibration: Talts et al.,
    arXiv:1804.06788). A uniform random number is added within each rank, so that the test is exact.

    Args:
        ranks: Integer ranks, ``(n,)``.
        most: The largest possible rank; the smallest is 0.

    Raises:
        InputError: If ``ranks`` is empty, not one-dimensional, or has a value outside this range.
    """
    given = np.asarray(ranks, dtype=np.float64)
    if given.ndim != 1 or not len(given) or (given < 0).any() or (given > most).any():
        raise InputError(f"Ranks must be a list of integers from 0 to {most}; given shape {given.shape}.")
    within = generator(0, "stats/ranks").uniform(size=len(given))
    return float(scipy.stats.kstest((given + within) / (most + 1), "uniform").pvalue)


def compute_mahalanobis_test(draws: ArrayLike, observed: ArrayLike) -> tuple[float, float, NDArray[np.float64]]:
    """Test whether an observation of k values differs from draws of a distribution.

    Centre and covariance are estimated from the first half of the draws. The p-value is one plus the number of draws of
    the other half with at least the same distance, divided by one plus their number; it is valid for any distribution.

    Args:
        draws: The draws, ``(n, k)``.
        observed: The observation, ``(k,)``.

    Returns:
        The Mahalanobis distance, its p-value, and the deviation of each value alone in standard deviations ``(k,)``.

    Raises:
        InputError: If there are fewer than four draws per value.
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

    observed_distance = float(distance(seen))
    p_value = (1.0 + float(np.sum(distance(held) >= observed_distance))) / (1.0 + len(held))
    return observed_distance, p_value, (seen - centre) / spread
