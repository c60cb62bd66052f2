"""Running worlds that begin anew one by one: what every environment is made of, without Gymnasium."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.envs.episodes import EpisodeSource
from twinloop.simulate import Backend
from twinloop.simulate.rollout import Monitor
from twinloop.twin import Twin


class WorldBatch:
    """One world per environment, all stepped together.

    Arrays are new at every step, except ``numbers`` and ``steps``, which are counted in place.

    Attributes:
        state: recorded state of every world now, ``(num_envs, nstate)``.
        command: issued last, or held before the first, ``(num_envs, nu)``.
        numbers: episode played in each world, ``(num_envs,)``.
        steps: control steps since each world began, ``(num_envs,)``.
        params: drawn parameters, one row per world.
    """

    def __init__(self, twin: Twin, backend: Backend, source: EpisodeSource, num_envs: int, nstep: int) -> None:
        self._source, self._all = source, np.arange(num_envs)
        worlds = source.next(self._all)
        self._simulation = backend.start(twin, worlds.params, worlds.initial, nstep)
        self._monitor = Monitor(self._simulation)
        self.params, self.numbers = worlds.params, worlds.numbers.copy()
        self.command, self.steps = worlds.initial.command.copy(), np.zeros(num_envs, dtype=np.int64)
        self._refused = np.array(worlds.initial.refused or [""] * num_envs, dtype=object)
        self.state = self._simulation.state

    def restart(self, envs: NDArray[np.intp]) -> None:
        """Begin the next episode in some worlds; the rest stay where they are."""
        worlds = self._source.next(envs)
        self._simulation.restart(envs, worlds.params, worlds.initial)
        self._monitor.restart(self._simulation, envs)
        self.params = worlds.params if len(envs) == len(self._all) else self.params.put(envs, worlds.params)
        self.numbers[envs], self.steps[envs] = worlds.numbers, 0
        self.command = self.command.copy()
        self.command[envs] = worlds.initial.command
        self._refused[envs] = worlds.initial.refused or ""
        self.state = self._simulation.state

    def advance(self, command: NDArray[np.float64]) -> None:
        """One control step of every world under commands ``(num_envs, nu)``."""
        self._simulation.advance(command)
        self.command = command
        self.steps += 1
        self.state = self._simulation.state
        self._monitor.look(self._simulation, self.state)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Worlds that can be trusted, ``(num_envs,)``: they began as their parameters ask, and ran without warning."""
        return self._monitor.valid & (self._refused == "")

    @property
    def reasons(self) -> NDArray[np.object_]:
        """Why each world cannot be trusted, empty where it can, ``(num_envs,)``."""
        return np.where(self._refused == "", np.array(self._monitor.reason, dtype=object), self._refused)

    @property
    def params_now(self) -> ParamTable:
        """The parameters in force at the coming step of each world."""
        return self.params.at(self.steps)
