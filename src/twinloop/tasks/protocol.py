"""What every task offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate import Controller, InitialState


@runtime_checkable
class Task(Protocol):
    """What a robot should do: where worlds begin, when it is done, and a script that does it.

    A task is built for one twin, as ``Task(twin)``. ``nstep`` control steps make an episode, the same in every world;
    ``instruction`` is the sentence a language-conditioned policy is given. ``version`` names the reset,
    ``success_version`` the predicate and ``expert_version`` the script: each changes when its outcome may.
    """

    name: str
    version: str
    success_version: str
    expert_version: str
    instruction: str
    nstep: int

    def reset(self, params: ParamTable, *, run_seed: int, episodes: Sequence[int], attempt: int = 0) -> InitialState:
        """Where episodes begin; world ``i`` is a function of its parameters, run seed, episode and attempt alone."""
        ...

    def success(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return success at each recorded state: ``(nworld, nstep + 1, nstate)`` to ``(nworld, nstep + 1)``.

        It is a function of the states alone, so that a stored episode can be checked again.
        """
        ...

    def expert(self, initial: InitialState) -> Controller:
        """A script for worlds that begin there; its commands in a world depend on that world alone."""
        ...


class TrackedTask(Task, Protocol):
    """A task with tracked values of its scene: LeRobot's ``observation.environment_state``."""

    environment_names: tuple[str, ...]

    def environment(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the true tracked values in recorded states: ``(…, nstate)`` to ``(…, n)``, named by the names."""
        ...


def is_tracked(task: Task) -> TypeGuard[TrackedTask]:
    """Whether a task offers what a tracker sees, which is no duty of a task."""
    return hasattr(task, "environment_names") and hasattr(task, "environment")


class ProgressTask(Task, Protocol):
    """A task with a measure of progress in addition to success."""

    def progress(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far the task has come at each recorded state: ``(nworld, nstep + 1, nstate)`` to [0, 1], 1 when done."""
        ...


def is_staged(task: Task) -> TypeGuard[ProgressTask]:
    """Whether a task offers its progress, which is no duty of a task."""
    return hasattr(task, "progress")


class PhasedTask(Task, Protocol):
    """A task that names the phases of an episode, and the stage at which an episode without success failed."""

    def phases(self, states: NDArray[np.float64], fps: float) -> Sequence[tuple[str, int | None]]:
        """Return names of phases and the state at which each begins (None: it did not), of states ``(T + 1, nstate)``.

        A phase ends where the next one begins, the last one with the episode.
        """
        ...

    def failure(self, states: NDArray[np.float64], fps: float) -> tuple[str, str] | None:
        """Return the class of failure of an episode ``(T + 1, nstate)`` and why; None where it ended in success."""
        ...


def is_explained(task: Task | None) -> TypeGuard[PhasedTask]:
    """Return whether a task offers phases and failures, which is no duty of a task."""
    return hasattr(task, "phases") and hasattr(task, "failure")


@dataclass(frozen=True, kw_only=True)
class GoalState:
    """Evaluation of one state of k worlds: success and potential ``(k,)``, and the privileged state ``(k, n)``."""

    success: NDArray[np.bool_]
    potential: NDArray[np.float64]
    truth: NDArray[np.float64]


class Goal(Protocol):
    """Success and potential of running worlds of ``task``; ``truth_names`` names the numbers of `truth`."""

    @property
    def task(self) -> Task:
        """The task whose worlds these are."""
        ...

    nstep: int
    instruction: str
    truth_names: tuple[str, ...]

    def truth(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the privileged state of the scene in states ``(k, nstate)``: ``(k, n)``."""
        ...

    def look(self, states: NDArray[np.float64], envs: NDArray[np.intp], *, begin: ArrayLike = False) -> GoalState:
        """Judge the next state of some worlds, one row of ``states`` each.

        Args:
            begin: whether this is a world's first state, for all or for each.
        """
        ...
