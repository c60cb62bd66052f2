"""Which worlds can no longer be trusted, and why."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.simulate.protocol import Simulation


class Monitor:
    """Notices worlds whose warning counters rise or whose state is no longer finite.

    ``invalid_step`` ``(nworld,)`` is the control step of the simulation after which it was noticed (-1: never), with
    its ``reason``.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._before = simulation.warnings()
        self.invalid_step = np.full(simulation.nworld, -1, dtype=np.int64)
        self.reason = [""] * simulation.nworld

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Worlds in which nothing was noticed, ``(nworld,)``."""
        return self.invalid_step < 0

    def look(self, simulation: Simulation, state: NDArray[np.float64]) -> None:
        """Judge every world after a control step by its counters and its ``state`` ``(nworld, nstate)``."""
        risen = simulation.warnings() > self._before
        lost = ~np.isfinite(state).all(axis=1)
        for world in np.flatnonzero((risen.any(axis=1) | lost) & (self.invalid_step < 0)):
            self.invalid_step[world] = simulation.step_index - 1
            kinds = [mujoco.mjtWarning(int(kind)).name for kind in np.flatnonzero(risen[world])]
            self.reason[world] = ", ".join(kinds) or "state not finite"

    def restart(self, simulation: Simulation, worlds: ArrayLike) -> None:
        """Trust worlds again that the simulation has begun anew."""
        index = np.asarray(worlds)
        self._before[index] = simulation.warnings()[index]
        self.invalid_step[index] = -1
        for world in index:
            self.reason[world] = ""
