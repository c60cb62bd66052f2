"""From episode to episode: slow drift of every signal, and rates of success and intervention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.release.monitor.calibration import Calibration
from twinloop.release.monitor.signals import meaning
from twinloop.stats.betting import log_e_mean
from twinloop.stats.change_points import REFERENCE, cusum, cusum_threshold, self_starting

Array = NDArray[np.float64]
RUN_LENGTH = 1000.0  # episodes until a false alarm of drift, of all signals together (our choice)
ALPHA = 0.01  # chance that the test of a rate ever errs (our choice)
MARGIN = 0.1  # below the success rate at calibration (above that of interventions) that is tolerated (our choice)


class Course:
    """What one episode has shown so far."""

    def __init__(self) -> None:
        self.excess: dict[str, float] = {}
        self._rise: dict[str, int] = {}
        self._total: Array | None = None
        self._count: Array | None = None
        self._names: Sequence[str] = ()
        self.first: dict[str, int] = {}

    def add(self, names: Sequence[str], relative: Array, standard: Array, step: int, *, rising: float) -> None:
        """Scores of a step, in units of their limits and standardized."""
        if self._total is None or self._count is None:
            self._names, self._total, self._count = names, np.zeros(len(names)), np.zeros(len(names))
        known = np.isfinite(standard)
        self._total[known] += standard[known]
        self._count[known] += 1
        for name, value in zip(names, relative.tolist(), strict=True):
            if not value > rising:
                self._rise.pop(name, None)
            else:
                self._rise.setdefault(name, step)

    def since(self, name: str, step: int) -> int:
        """The step since which a signal has been rising."""
        return self._rise.get(name, step)

    def beyond(self, name: str, step: int, excess: float) -> None:
        """A signal is beyond its limit, so many times it."""
        self.first.setdefault(name, step)
        self.excess[name] = max(self.excess.get(name, 0.0), excess)

    def levels(self) -> dict[str, float]:
        """Mean standardized score of every signal that said something."""
        if self._total is None or self._count is None:
            return {}
        rows = zip(self._names, self._total.tolist(), self._count.tolist(), strict=True)
        return {name: total / count for name, total, count in rows if count}


class Between:
    """The episodes since a calibration, in their order.

    Drift: a self-starting CUSUM of every signal's mean level, from the calibration's episodes on (see `stats.cusum`);
    the threshold gives a false alarm in `RUN_LENGTH` episodes of all signals together, by Bonferroni, for normal
    levels.

    Rates: a wealth that bets on fewer successes than at calibration less `MARGIN`, or on more interventions; it ever
    reaches 1/`ALPHA` with a chance of at most `ALPHA` where that is not so (`stats.betting`).
    """

    def __init__(self, calibration: Calibration) -> None:
        self._origin, self._known = calibration.origin, calibration.levels
        names = [name for name, values in calibration.levels.items() if len(values) > 2 and np.ptp(values) > 0]
        self.threshold = cusum_threshold(RUN_LENGTH * max(1, len(names)))
        self._levels: dict[str, list[float]] = {name: [] for name in names}
        self._success: list[float] = []
        self._intervened: list[float] = []

    def add(
        self, levels: Mapping[str, float], *, success: bool | None = None, intervened: bool | None = None
    ) -> list[str]:
        """Add an episode; what is beyond its limit now, a sentence each."""
        for name, series in self._levels.items():
            if name in levels:
                series.append(levels[name])
        if success is not None:
            self._success.append(float(success))
        if intervened is not None:
            self._intervened.append(float(intervened))
        return [*self._drifting(), *self._rates()]

    def paths(self) -> dict[str, Array]:
        """The CUSUM of every signal after each episode."""
        return {
            name: cusum(self_starting(self._known[name], series)) if series else np.empty(0)
            for name, series in self._levels.items()
        }

    def _drifting(self) -> list[str]:
        said = []
        for name, path in self.paths().items():
            if len(path) and path[-1] >= self.threshold:
                start = int(np.flatnonzero(np.concatenate([[0.0], path[:-1]]) <= 0.0)[-1])
                said.append(
                    f"{name} has drifted since episode {start + 1} of {len(path)} (CUSUM {path[-1]:.1f}, limit "
                    f"{self.threshold:.1f}, k = {REFERENCE:g}): {meaning(name).words}. Points to: "
                    f"{meaning(name).cause}."
                )
        return said

    def _rates(self) -> list[str]:
        said = []
        for what, series, usual, side in (
            ("success", self._success, self._origin.success_rate, -1),
            ("intervention", self._intervened, self._origin.intervention_rate, 1),
        ):
            if usual is None or not series:
                continue
            limit = usual + side * MARGIN
            if not 0.0 < limit < 1.0:
                continue
            wealth = log_e_mean(series, limit, alternative="greater" if side > 0 else "less")
            if wealth.max() >= -np.log(ALPHA):
                at = int(np.argmax(wealth >= -np.log(ALPHA))) + 1
                said.append(
                    f"The {what} rate is {'above' if side > 0 else 'below'} {limit:.2f}, decided after {at} episodes "
                    f"at an error of {100 * ALPHA:g} %: {sum(series):.0f} of {len(series)}."
                )
        return said


__all__ = ["ALPHA", "MARGIN", "RUN_LENGTH", "Between", "Course"]
