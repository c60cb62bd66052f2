"""Define actors, which choose the commands of simulated worlds: a task's expert, a policy, or a user's class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate import Controller, InitialState
from twinloop.tasks import Task
from twinloop.tasks.protocol import require_expert


@dataclass(frozen=True, kw_only=True)
class EpisodeStart:
    """Start of k episodes that are simulated together, one world per episode.

    Run seed, episode number and attempt determine the random effects in each world.

    Attributes:
        numbers: episode numbers, ``(k,)``.
        params: parameters of the worlds, one row each.
        initial: initial states of the worlds.
        run_seed: seed of the run.
        attempt: number of the attempt at these episodes, from 0.
    """

    numbers: NDArray[np.int64]
    params: ParamTable
    initial: InitialState
    run_seed: int = 0
    attempt: int = 0


class Actor(Protocol):
    """Source of the commands in simulated worlds."""

    @property
    def name(self) -> str:
        """Name of the actor, stored in the provenance of episodes.

        It must change whenever the actor's commands may change.
        """
        ...

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return a new controller for these worlds, independent of earlier worlds.

        The parameters are given because the robot's readings depend on them. A policy must not use them, because a real
        robot does not provide them.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ExpertActor:
    """Actor that runs a task's scripted expert; its members raise InputError if the task has none."""

    task: Task

    @property
    def name(self) -> str:
        """Name and version of the expert's script, such as ``pick_and_place.expert/2``."""
        return require_expert(self.task).expert_version

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return the task's expert for the initial states of these worlds."""
        return require_expert(self.task).expert(worlds.initial)
