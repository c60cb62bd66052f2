"""Run worlds that restart one by one, each with its next episode."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.core.seeds import MOST_EPISODES
from twinloop.randomize import Plan
from twinloop.rollout import EpisodeStart
from twinloop.simulate import Backend, InitialState
from twinloop.simulate.rollout import DivergenceMonitor
from twinloop.tasks import Task
from twinloop.twin import Twin

_KEPT_ROUNDS = 8  # rounds of episodes in memory, for slower environments; an older round is drawn again (our choice)
_INITIAL = ("qpos", "qvel", "mocap_pos", "mocap_quat", "command")


class EpisodeSource(Protocol):
    """Episodes of a batch of environments, in the order in which each environment plays them."""

    def next(self, envs: NDArray[np.intp]) -> EpisodeStart:
        """Return the next episode of each of these environments."""
        ...


class PlannedEpisodes:
    """Episodes in worlds of a plan: environment i plays ``first[i]``, then ``first[i] + num_envs``, and so on.

    An episode depends only on the run seed and its number, not on the environment: it is the one that `generate` makes
    from that seed and number. Worlds are drawn for all environments at once (a draw of 256 costs little more than a
    draw of 1). A few such rounds are kept in memory for environments that reach them later.
    """

    def __init__(self, plan: Plan, task: Task, *, run_seed: int, first: NDArray[np.int64]) -> None:
        self._plan, self._task, self._first = dataclasses.replace(plan, run_seed=run_seed), task, first
        self._round = np.zeros(len(first), dtype=np.int64)
        self._drawn: dict[int, EpisodeStart] = {}

    def next(self, envs: NDArray[np.intp]) -> EpisodeStart:
        """Return the next episode of each environment; draw its round of worlds if it is not in memory."""
        rounds = self._round[envs]
        self._round[envs] += 1
        parts = [(int(r), np.flatnonzero(rounds == r)) for r in np.unique(rounds)]
        worlds = [_take(self._draw(number), envs[rows]) for number, rows in parts]
        if len(worlds) == 1:
            return worlds[0]
        order = np.argsort(np.concatenate([rows for _, rows in parts]))
        return _take(_join(worlds), order)

    def _draw(self, number: int) -> EpisodeStart:
        if number not in self._drawn:
            while len(self._drawn) >= _KEPT_ROUNDS:
                del self._drawn[next(iter(self._drawn))]
            numbers = self._first + number * len(self._first)
            if numbers.max() >= MOST_EPISODES:
                raise InputError(f"Episode {numbers.max()} is beyond the last of a run, {MOST_EPISODES - 1}.")
            params = self._plan.draw(numbers.tolist(), nstep=self._task.nstep)
            initial = self._task.reset(params, run_seed=self._plan.run_seed, episodes=numbers.tolist())
            seed = self._plan.run_seed
            self._drawn[number] = EpisodeStart(numbers=numbers, params=params, initial=initial, run_seed=seed)
        return self._drawn[number]


def _take(worlds: EpisodeStart, rows: NDArray[np.intp]) -> EpisodeStart:
    return dataclasses.replace(
        worlds,
        numbers=worlds.numbers[rows],
        params=worlds.params.take(rows),
        initial=worlds.initial.take(rows),
    )


def _join(worlds: list[EpisodeStart]) -> EpisodeStart:
    first = worlds[0].params
    params = first.take(np.zeros(sum(part.params.nworld for part in worlds), dtype=np.intp))
    at = 0
    for part in worlds:
        params = params.put(np.arange(at, at + part.params.nworld), part.params)
        at += part.params.nworld
    initial: dict[str, Any] = {
        name: np.concatenate([getattr(part.initial, name) for part in worlds]) for name in _INITIAL
    }
    if any(part.initial.refused for part in worlds):
        refused = [part.initial.refused or ("",) * part.initial.nworld for part in worlds]
        initial["refused"] = tuple(itertools.chain.from_iterable(refused))
    numbers = np.concatenate([part.numbers for part in worlds])
    return dataclasses.replace(worlds[0], numbers=numbers, params=params, initial=InitialState(**initial))


class WorldBatch:
    """One world per environment, all stepped together.

    Arrays are new at every step, except ``numbers`` and ``steps``, which are changed in place.

    Attributes:
        state: current state of every world as recorded, ``(num_envs, nstate)``.
        command: last command, or the initial one before the first step, ``(num_envs, nu)``.
        numbers: episode number of each world, ``(num_envs,)``.
        steps: control steps since each world began, ``(num_envs,)``.
        params: drawn parameters, one row per world.
    """

    def __init__(self, twin: Twin, backend: Backend, source: EpisodeSource, num_envs: int, nstep: int) -> None:
        self._source, self._all = source, np.arange(num_envs)
        worlds = source.next(self._all)
        self._simulation = backend.start(twin, worlds.params, worlds.initial, nstep)
        self._monitor = DivergenceMonitor(self._simulation)
        self.params, self.numbers = worlds.params, worlds.numbers.copy()
        self.command, self.steps = worlds.initial.command.copy(), np.zeros(num_envs, dtype=np.int64)
        self._refused = np.array(worlds.initial.refused or [""] * num_envs, dtype=object)
        self.state = self._simulation.state

    def restart(self, envs: NDArray[np.intp]) -> None:
        """Begin the next episode in some worlds; the others are unchanged."""
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
        """Advance every world by one control step under commands ``(num_envs, nu)``."""
        self._simulation.advance(command)
        self.command = command
        self.steps += 1
        self.state = self._simulation.state
        self._monitor.check_worlds(self._simulation, self.state)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Mask of valid worlds, ``(num_envs,)``: the initial state fits the parameters, and no simulation warning."""
        return self._monitor.valid & (self._refused == "")

    @property
    def invalid_reasons(self) -> NDArray[np.object_]:
        """Reason why each world is invalid, empty if it is valid, ``(num_envs,)``."""
        return np.where(self._refused == "", np.array(self._monitor.reason, dtype=object), self._refused)

    @property
    def current_params(self) -> ParamTable:
        """The parameters of each world at its next step."""
        return self.params.at(self.steps)
