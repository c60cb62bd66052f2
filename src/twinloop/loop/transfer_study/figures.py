"""From trials to figures: success per condition and robot, differences paired by robot, intervals over robots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from twinloop.loop.transfer_study.conditions import NUMBERS

DIFFERENCES = ((4, 1), (5, 6), (2, 1), (3, 1), (4, 2), (4, 3), (5, 4))
WANTED = {(4, 1): 0.25, (5, 6): 0.25}  # what was asked for before anything was measured


@dataclass(frozen=True, kw_only=True)
class OverRobots:
    """A mean over robots, with Student's interval: robots are the units, drawn alike and apart.

    Attributes:
        each: of every robot, the mean of its training runs and trials, ``(nrobot,)``.
        between_seeds: standard deviation between training runs on one robot, root mean square over robots.
        level: of the interval.
    """

    each: NDArray[np.float64]
    between_seeds: float
    level: float = 0.95

    @property
    def mean(self) -> float:
        """Over robots."""
        return float(self.each.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """Of the mean over all robots of this kind; not a number with a single one."""
        n = len(self.each)
        if n < 2:
            return float("nan"), float("nan")
        half = float(distributions.t.ppf((1 + self.level) / 2, n - 1) * self.each.std(ddof=1) / np.sqrt(n))
        return self.mean - half, self.mean + half

    def to_json(self) -> dict[str, Any]:
        """Plain figures."""
        return {
            "mean": self.mean,
            "interval": list(self.interval),
            "level": self.level,
            "each": self.each.tolist(),
            "between_seeds": self.between_seeds,
        }


def over_robots(success: NDArray[np.float64]) -> OverRobots:
    """The figures of shares ``(nrobot, nseed)``."""
    spread = success.var(axis=1, ddof=1).mean() if success.shape[1] > 1 else np.nan
    return OverRobots(each=success.mean(axis=1), between_seeds=float(np.sqrt(spread)))


@dataclass(frozen=True, kw_only=True)
class TransferResult:
    """What a study came to.

    ``success`` ``(nrobot, nseed)`` is the share of trials by condition, ``script`` ``(nrobot,)`` that of the script.
    ``seconds`` are what parts of each kind took, ``wall_s`` and ``processor_s``, added up.
    """

    robots: tuple[int, ...]
    trials: int
    success: Mapping[int, NDArray[np.float64]]
    script: NDArray[np.float64]
    seconds: Mapping[str, Mapping[str, float]]
    made_of: Mapping[str, Any]

    def condition(self, number: int) -> OverRobots:
        """One condition's success."""
        return over_robots(self.success[number])

    def differences(self) -> dict[tuple[int, int], OverRobots]:
        """Those of `DIFFERENCES` whose conditions there are: same robots, same places, training runs in pairs."""
        there = [pair for pair in DIFFERENCES if pair[0] in self.success and pair[1] in self.success]
        return {(one, other): over_robots(self.success[one] - self.success[other]) for one, other in there}

    def to_json(self) -> dict[str, Any]:
        """Plain figures."""
        conditions = [
            {"number": n, "name": NUMBERS[n].name, "words": NUMBERS[n].words, **self.condition(n).to_json()}
            | {"success": self.success[n].tolist()}
            for n in self.success
        ]
        differences = [
            {"of": one, "over": other, "wanted": WANTED.get((one, other)), **found.to_json()}
            for (one, other), found in self.differences().items()
        ]
        return {
            "schema": 1,
            "verb": "bench transfer",
            "robots": list(self.robots),
            "trials": self.trials,
            "conditions": conditions,
            "differences": differences,
            "script": over_robots(self.script[:, None]).to_json(),
            "seconds": {kind: dict(took) for kind, took in self.seconds.items()},
            "made_of": dict(self.made_of),
        }
