"""Bringing an arm slowly to where episodes begin: something that decides, so that it goes through the envelope."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import STATE, Contract
from twinloop.hardware.teleop_motion import minimum_jerk
from twinloop.release.envelope import Envelope
from twinloop.release.running_policy import Observation

Array = NDArray[np.float64]
# A sixth of the envelope's speed: 0.5 rad/s of the SO-101, at which one can step back (as `hardware.excite_drive`).
_SLOWLY = 1.0 / 6.0
_PEAK = 1.875  # peak over mean speed of a minimum-jerk move
_SHORTEST_S, _REST_S = 0.5, 0.5


class Homing:
    """See `running_policy.Decider`: a minimum-jerk move from where the joints read to be to ``home`` ``(n,)``."""

    name, hash = "home", ""

    def __init__(self, envelope: Envelope, home: Array, contract: Contract) -> None:
        self._envelope, self._home, self.contract = envelope, home, contract
        self._path: Array | None = None
        self._at = 0

    def steps(self, reading: Array) -> int:
        """Control steps that the move from a reading takes."""
        return len(self._planned(reading))

    def restart(self, episode: int) -> None:  # noqa: ARG002  # the way depends on where it is alone
        """See `Decider`."""
        self._path, self._at = None, 0

    def act(self, observation: Observation) -> Array:
        """See `Decider`."""
        if self._path is None:
            self._path = self._planned(np.asarray(observation[STATE], dtype=np.float64))
        row = self._path[min(self._at, len(self._path) - 1)]
        self._at += 1
        return row

    def sent(self, command: Array) -> None:
        """Nothing depends on it."""

    def close(self) -> None:
        """Nothing is held."""

    def _planned(self, reading: Array) -> Array:
        units, limits = self._envelope.units, self._envelope.limits
        start, home = units.to_si(reading), units.to_si(self._home)
        seconds = max(_SHORTEST_S, float(np.max(_PEAK * np.abs(home - start) / (_SLOWLY * limits.speed))))
        time = np.arange(1, round((seconds + _REST_S) / limits.dt) + 1, dtype=np.float64) * limits.dt
        return units.from_si(minimum_jerk([0.0, seconds, seconds + 2 * _REST_S], [start, home, home], time))
