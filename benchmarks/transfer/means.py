"""Average success rates over robots, with an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from twinloop.stats.proportion import clopper_pearson


@dataclass(frozen=True, kw_only=True)
class RobotMean:
    """A mean over robots with Student's t interval; the robots are independent, identically distributed samples.

    Attributes:
        each: mean over the training runs and trials of every robot, ``(nrobot,)``.
        between_seeds: standard deviation between training runs on one robot, root mean square over robots; NaN for a
            single run.
        level: confidence level of the interval.
        trials: number of all trials of which the mean is the success rate; 0 if this is unknown or it is no rate.
    """

    each: NDArray[np.float64]
    between_seeds: float
    level: float = 0.95
    trials: int = 0

    @property
    def mean(self) -> float:
        """Mean success rate, or difference of rates, over robots."""
        return float(self.each.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """Confidence interval of the mean over all robots of this kind; NaN with a single robot.

        It contains the exact interval of the trials (Clopper–Pearson): if all of them succeed, Student's has no width.
        """
        n = len(self.each)
        if n < 2:
            return float("nan"), float("nan")
        half = float(distributions.t.ppf((1 + self.level) / 2, n - 1) * self.each.std(ddof=1) / np.sqrt(n))
        low, high = self.mean - half, self.mean + half
        if not self.trials:
            return low, high
        exact = clopper_pearson(round(self.mean * self.trials), self.trials, level=self.level)
        return min(low, float(exact.low)), max(high, float(exact.high))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "mean": self.mean,
            "interval": list(self.interval),
            "level": self.level,
            "each": self.each.tolist(),
            "between_seeds": self.between_seeds,
        }


def average_over_robots(success: NDArray[np.float64], *, episodes: int = 0) -> RobotMean:
    """Return the mean over robots of success rates, or of differences between success rates.

    Args:
        success: one value per robot and training run, ``(nrobot, nseed)``.
        episodes: number of trials of which each value is the success rate; 0 if this is unknown or it is no rate.
    """
    spread = success.var(axis=1, ddof=1).mean() if success.shape[1] > 1 else np.nan
    return RobotMean(each=success.mean(axis=1), between_seeds=float(np.sqrt(spread)), trials=success.size * episodes)
