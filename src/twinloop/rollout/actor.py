"""Who decides the commands of a batch: a task's expert, a policy, or anything else that speaks this protocol."""

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
    """Where some worlds begin: their episode numbers ``(k,)``, drawn parameters and initial states.

    ``run_seed`` and ``attempt`` are, with the numbers, what chance within the worlds depends on.
    """

    numbers: NDArray[np.int64]
    params: ParamTable
    initial: InitialState
    run_seed: int = 0
    attempt: int = 0


class Actor(Protocol):
    """Something that acts; ``name`` goes into the provenance and changes whenever its commands may."""

    @property
    def name(self) -> str:
        """What the provenance calls it."""
        ...

    def begin(self, worlds: EpisodeStart) -> Controller:
        """A fresh controller for worlds that begin there; it keeps nothing of earlier batches.

        What acts as a policy does must not look at the parameters, which no robot knows: they are there because what a
        robot reports depends on them.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ExpertActor:
    """The script that comes with a task."""

    task: Task

    @property
    def name(self) -> str:
        """The version of the script."""
        return self.task.expert_version

    def begin(self, worlds: EpisodeStart) -> Controller:
        """See `Actor`."""
        return self.task.expert(worlds.initial)
