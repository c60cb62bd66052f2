"""Which episode each environment plays next, and the worlds of those episodes."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import MOST_EPISODES
from twinloop.randomize import Plan
from twinloop.rollout import Beginning
from twinloop.simulate import InitialState
from twinloop.tasks import Task

_KEPT_ROUNDS = 8  # of episodes, for environments that are ahead of others; an older one is drawn again; our choice
_INITIAL = ("qpos", "qvel", "mocap_pos", "mocap_quat", "command")


class EpisodeSource(Protocol):
    """Episodes of a batch of environments, in the order in which each plays them."""

    def next(self, envs: NDArray[np.intp]) -> Beginning:
        """The next episode of each of these environments."""
        ...


class PlannedEpisodes:
    """Environment i plays ``first[i]``, then ``first[i] + num_envs``, and so on, in worlds of a plan.

    An episode is a function of run seed and number alone, whichever environment plays it: the one that `generate`
    makes of that seed and number. Worlds are drawn for all environments at once (a draw of 256 costs little more than
    one of 1) and a few such rounds are kept, for those that come later.
    """

    def __init__(self, plan: Plan, task: Task, *, run_seed: int, first: NDArray[np.int64]) -> None:
        self._plan, self._task, self._first = dataclasses.replace(plan, run_seed=run_seed), task, first
        self._round = np.zeros(len(first), dtype=np.int64)
        self._drawn: dict[int, Beginning] = {}

    def next(self, envs: NDArray[np.intp]) -> Beginning:
        """See `EpisodeSource`."""
        rounds = self._round[envs]
        self._round[envs] += 1
        parts = [(int(r), np.flatnonzero(rounds == r)) for r in np.unique(rounds)]
        worlds = [_take(self._draw(number), envs[rows]) for number, rows in parts]
        if len(worlds) == 1:
            return worlds[0]
        order = np.argsort(np.concatenate([rows for _, rows in parts]))
        return _take(_join(worlds), order)

    def _draw(self, number: int) -> Beginning:
        if number not in self._drawn:
            while len(self._drawn) >= _KEPT_ROUNDS:
                del self._drawn[next(iter(self._drawn))]
            numbers = self._first + number * len(self._first)
            if numbers.max() >= MOST_EPISODES:
                raise InputError(f"Episode {numbers.max()} is beyond the last of a run, {MOST_EPISODES - 1}.")
            params = self._plan.draw(numbers.tolist(), nstep=self._task.nstep)
            initial = self._task.reset(params, run_seed=self._plan.run_seed, episodes=numbers.tolist())
            seed = self._plan.run_seed
            self._drawn[number] = Beginning(numbers=numbers, params=params, initial=initial, run_seed=seed)
        return self._drawn[number]


def _take(worlds: Beginning, rows: NDArray[np.intp]) -> Beginning:
    return dataclasses.replace(
        worlds,
        numbers=worlds.numbers[rows],
        params=worlds.params.take(rows),
        initial=worlds.initial.take(rows),
    )


def _join(worlds: list[Beginning]) -> Beginning:
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
