"""Which worlds can no longer be trusted, and why."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray

from twinloop.simulate.arrays import Array, Arrays, to_host
from twinloop.simulate.protocol import WARNINGS, Simulation


class Monitor:
    """Notices worlds whose warning counters rise or whose state is no longer finite.

    It looks at a simulation's arrays where they are, on a device too, and brings nothing to the host until it is asked.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._before: Array = simulation.warnings()
        xp = array_namespace(self._before)
        self._step = xp.zeros_like(self._before[:, 0]) - 1
        self._kinds = self._before < 0

    @property
    def invalid_step(self) -> NDArray[np.int64]:
        """Control step of the simulation after which something was noticed (-1: never), ``(nworld,)``."""
        return to_host(self._step).copy()

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Worlds in which nothing was noticed, ``(nworld,)``."""
        return self.invalid_step < 0

    @property
    def reason(self) -> list[str]:
        """What was noticed in each world, empty where nothing was."""
        kinds, reasons = to_host(self._kinds), [""] * len(self.invalid_step)
        for world in np.flatnonzero(self.invalid_step >= 0):
            names = [WARNINGS[kind] for kind in np.flatnonzero(kinds[world])]
            reasons[world] = ", ".join(names) or "state not finite"
        return reasons

    def look(self, simulation: Simulation, state: Array) -> None:
        """Judge every world after a control step by its counters and its ``state`` ``(nworld, nstate)``."""
        xp = array_namespace(state)
        risen = simulation.warnings() > self._before
        lost = ~xp.all(xp.isfinite(state), axis=1)
        fresh = (xp.any(risen, axis=1) | lost) & (self._step < 0)
        self._step = xp.where(fresh, simulation.step_index - 1, self._step)
        self._kinds = xp.where(fresh[:, None], risen, self._kinds)

    def restart(self, simulation: Simulation, worlds: ArrayLike) -> None:
        """Trust worlds again that the simulation has begun anew."""
        index = Arrays.of(self._before).asarray(worlds)
        self._before[index] = simulation.warnings()[index]
        self._step[index] = -1
        self._kinds[index] = False
