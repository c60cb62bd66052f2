"""Define the source of commands in a batch: a task's expert, a policy, or another actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate import Controller, InitialState
from twinloop.tasks import Task


@dataclass(frozen=True, kw_only=True)
class EpisodeStart:
    """Start of some worlds: their episode numbers ``(k,)``, drawn parameters and initial states.

    ``run_seed``, ``attempt`` and the numbers determine the random effects in the worlds.
    """

    numbers: NDArray[np.int64]
    params: ParamTable
    initial: InitialState
    run_seed: int = 0
    attempt: int = 0


class Actor(Protocol):
    """Source of commands; ``name`` is stored in the provenance and changes whenever its commands may change."""

    @property
    def name(self) -> str:
        """Name of the actor in the provenance."""
        ...

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return a new controller for these worlds; it keeps nothing of earlier batches.

        A policy must not use the parameters, which a real robot does not have; they are given because the robot's
        readings depend on them.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ExpertActor:
    """The scripted expert of a task."""

    task: Task

    @property
    def name(self) -> str:
        """Version of the script."""
        return self.task.expert_version

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return the task's expert for the initial states of these worlds."""
        return self.task.expert(worlds.initial)
