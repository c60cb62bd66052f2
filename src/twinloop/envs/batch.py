"""Step one world per environment, and restart single worlds with their next episode while the others continue."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.core.seeds import MAX_EPISODES
from twinloop.randomize import Plan
from twinloop.rollout import EpisodeStart
from twinloop.simulate import Backend, InitialState
from twinloop.simulate.rollout import DivergenceMonitor
from twinloop.tasks import Task
from twinloop.twin import Twin

_KEPT_ROUNDS = 8  # rounds of episodes in memory, for slower environments; an older round is drawn again (our choice)
_INITIAL = ("qpos", "qvel", "mocap_pos", "mocap_quat", "command")


class EpisodeSource(Protocol):
    """Source of the episodes that the environments of a batch run; each environment has its own series of episodes."""

    def next_episodes(self, envs: NDArray[np.intp]) -> EpisodeStart:
        """Return the next episode of each environment in ``envs`` (indices of environments)."""
        ...


class PlannedEpisodes:
    """Source of episodes in randomized worlds: environment i runs episodes ``first[i]``, ``first[i] + num_envs``, ….

    An episode depends only on the run seed and its number, not on the environment: `generate` makes the same episode
    from that seed and number. The worlds of one round (one episode of every environment) are drawn at once, because a
    draw of 256 worlds costs little more than a draw of one. The last 8 rounds are kept in memory, because an
    environment with longer episodes may need a round later than the others.

    Args:
        plan: distributions from which the parameters are drawn.
        task: task that draws the initial states.
        run_seed: seed of all draws.
        first: number of the first episode of each environment, ``(num_envs,)``.
        repeat: whether environments run their first episode again and again.
    """

    def __init__(
        self, plan: Plan, task: Task, *, run_seed: int, first: NDArray[np.int64], repeat: bool = False
    ) -> None:
        self._stride = 0 if repeat else len(first)
        self._plan, self._task, self._first = dataclasses.replace(plan, run_seed=run_seed), task, first
        self._round = np.zeros(len(first), dtype=np.int64)
        self._drawn: dict[int, EpisodeStart] = {}

    def next_episodes(self, envs: NDArray[np.intp]) -> EpisodeStart:
        """Return the next episode of each environment in ``envs``, and advance these environments by one episode.

        Raises:
            InputError: If an episode number is too large.
        """
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
            numbers = self._first + number * self._stride
            if numbers.max() >= MAX_EPISODES:
                raise InputError(
                    f"The episode number {numbers.max()} is too large; the last one of a run is {MAX_EPISODES - 1}. "
                    "Reset with another seed."
                )
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
        params = params.replace_worlds(np.arange(at, at + part.params.nworld), part.params)
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
    """One running world per environment; all worlds are stepped together, and each can restart alone.

    Every step creates new arrays, except ``numbers`` and ``steps``, which are changed in place.

    Attributes:
        state: current simulator state of every world, ``(num_envs, nstate)``.
        command: last command, or the initial command before the first step, ``(num_envs, nu)`` for nu actuators, in rad
            or m (N·m or N under torque control).
        numbers: episode number of each world, ``(num_envs,)``.
        steps: control steps since the start of each episode, ``(num_envs,)``.
        params: drawn parameters, one row per world.
    """

    def __init__(self, twin: Twin, backend: Backend, source: EpisodeSource, num_envs: int, nstep: int) -> None:
        self._source, self._all = source, np.arange(num_envs)
        worlds = source.next_episodes(self._all)
        self._simulation = backend.start(twin, worlds.params, worlds.initial, nstep)
        self._monitor = DivergenceMonitor(self._simulation)
        self.params, self.numbers = worlds.params, worlds.numbers.copy()
        self.command, self.steps = worlds.initial.command.copy(), np.zeros(num_envs, dtype=np.int64)
        self._refused = np.array(worlds.initial.refused or [""] * num_envs, dtype=object)
        self.state = self._simulation.state

    def restart(self, envs: NDArray[np.intp]) -> None:
        """Start the next episode in the worlds of the environments ``envs`` (indices); other worlds are unchanged."""
        worlds = self._source.next_episodes(envs)
        self._simulation.restart(envs, worlds.params, worlds.initial)
        self._monitor.restart(self._simulation, envs)
        self.params = worlds.params if len(envs) == len(self._all) else self.params.replace_worlds(envs, worlds.params)
        self.numbers[envs], self.steps[envs] = worlds.numbers, 0
        self.command = self.command.copy()
        self.command[envs] = worlds.initial.command
        self._refused[envs] = worlds.initial.refused or ""
        self.state = self._simulation.state

    def advance(self, command: NDArray[np.float64]) -> None:
        """Advance every world by one control step.

        Args:
            command: commands of the actuators, ``(num_envs, nu)`` for nu actuators, in rad or m (N·m or N under torque
                control).
        """
        self._simulation.advance(command)
        self.command = command
        self.steps += 1
        self.state = self._simulation.state
        self._monitor.check_worlds(self._simulation, self.state)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Mask of valid worlds, ``(num_envs,)``.

        A world is valid if the task could create its initial state with its parameters (for example place all objects),
        and its simulation has not diverged.
        """
        return self._monitor.valid & (self._refused == "")

    @property
    def invalid_reasons(self) -> NDArray[np.object_]:
        """Reason why each world is invalid, ``(num_envs,)``; an empty text for a valid world."""
        return np.where(self._refused == "", np.array(self._monitor.reason, dtype=object), self._refused)

    @property
    def current_params(self) -> ParamTable:
        """Parameter values of each world at its next control step, because parameters may change during an episode."""
        return self.params.at(self.steps)
