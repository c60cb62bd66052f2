"""What simulation-based inference says: draws, their intervals, whether they are calibrated, and whether data fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.stats import Interval

Array = NDArray[np.float64]

# Chance of a false alarm in each of the two checks; our choice.
ALARM = 0.01
LEVELS = (0.5, 0.9)
FORM = "normal with the mean and covariance of the draws, in transformed coordinates"


@dataclass(frozen=True, kw_only=True)
class RankCheck:
    """Simulation-based calibration over ``simulations`` with known parameters.

    ``ranks`` ``(n, p)`` are those of the truths among the ``draws`` of their posteriors, ``p_values`` ``(p,)`` of their
    uniformity, Holm-adjusted, ``coverage`` the parts of truths within the central intervals at `LEVELS`, each ``(p,)``.
    """

    ranks: NDArray[np.intp]
    draws: int
    p_values: Array
    coverage: tuple[Interval, ...]

    @property
    def calibrated(self) -> bool:
        """Whether nothing speaks against the posterior's calibration."""
        return bool((self.p_values >= ALARM).all())


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """How far the data lie from what the twin makes at draws of the posterior.

    ``distance`` is Mahalanobis', ``p_value`` its rank among simulations, ``deviations`` those of single figures in
    standard deviations, by name, the largest first.
    """

    distance: float
    p_value: float
    deviations: tuple[tuple[str, float], ...]

    @property
    def found(self) -> bool:
        """Whether the data look like nothing that the twin makes."""
        return self.p_value < ALARM

    def text(self) -> str:
        """A sentence for a terminal."""
        if not self.found:
            return f"Data and simulations look alike (p = {self.p_value:.2g})."
        worst = ", ".join(f"{name} {value:+.1f} sd" for name, value in self.deviations[:3])
        return (
            f"MISSPECIFIED: these data look like nothing that the twin makes (p = {self.p_value:.2g}; {worst}). "
            "The posterior holds for the wrong twin: see what physics is missing (--compare)."
        )


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Draws from a posterior.

    ``samples`` ``(n, p)`` are in the transformed coordinates of ``names``; ``distribution`` is the fit's with their
    mean and covariance (`FORM`). ``low``, ``median`` and ``high`` are SI, at ``level``. ``crowded`` names
    parameters whose draws still crowd at the sides of the last box. ``simulations`` were run, ``lost`` of them had
    no finite readings and count as impossible.
    """

    names: tuple[str, ...]
    samples: Array
    distribution: ParamDistribution
    low: Array
    median: Array
    high: Array
    level: float
    ranks: RankCheck
    misfit: Misfit
    crowded: tuple[str, ...]
    simulations: int
    lost: int

    def to_json(self) -> dict[str, Any]:
        """A plain form for files, without the draws."""
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
            "misfit": {"distance": self.misfit.distance, "p_value": self.misfit.p_value, "found": self.misfit.found},
            "deviations": dict(self.misfit.deviations),
            "crowded": list(self.crowded),
            "simulations": self.simulations,
            "lost": self.lost,
        }

    def text(self) -> str:
        """Intervals and both checks, for a terminal."""
        lines = [
            f"Posterior by simulation-based inference, {self.simulations} simulations, {self.lost} without numbers:"
        ]
        heads = "".join(f"{f'in {level:.0%}':>12}" for level in LEVELS)
        lines.append(f"{'parameter':<36}{'median':>12}  {f'{self.level:.0%} of draws':<26}{heads}   ranks p")
        for i, name in enumerate(self.names):
            covered = "".join(f"{interval.estimate[i]:>12.0%}" for interval in self.ranks.coverage)
            span = f"[{self.low[i]:.4g}, {self.high[i]:.4g}]"
            lines.append(f"{name:<36}{self.median[i]:>12.4g}  {span:<26}{covered}{self.ranks.p_values[i]:>10.2g}")
        if not self.ranks.calibrated:
            lines.append("NOT CALIBRATED: truths of simulations rank unevenly among the draws. Give more simulations.")
        if self.crowded:
            lines.append(f"CUT OFF: draws of {', '.join(self.crowded)} crowd at the limits of what was simulated.")
        return "\n".join([*lines, self.misfit.text()])
