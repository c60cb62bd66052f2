"""Who decides the commands of a batch: a task's expert, or anything else that speaks this protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from twinloop.simulate import Controller, InitialState
from twinloop.tasks import Task


class Actor(Protocol):
    """Something that acts; ``name`` goes into the provenance and changes whenever its commands may."""

    @property
    def name(self) -> str:
        """What the provenance calls it."""
        ...

    def begin(self, initial: InitialState) -> Controller:
        """A fresh controller for worlds that begin there; it keeps nothing of earlier batches."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExpertActor:
    """The script that comes with a task."""

    task: Task

    @property
    def name(self) -> str:
        """The version of the script."""
        return self.task.expert_version

    def begin(self, initial: InitialState) -> Controller:
        """See `Actor`."""
        return self.task.expert(initial)
