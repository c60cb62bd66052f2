"""Define the protocols of tasks and goals."""

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
    """Task of a robot: initial states of worlds, success, and a scripted expert.

    A task is made for one twin, as ``Task(twin)``. Every episode has ``nstep`` control steps. ``instruction`` is the
    text for language-conditioned policies. ``version`` identifies the reset, ``success_version`` the predicate and
    ``expert_version`` the expert: each changes whenever results may change.
    """

    name: str
    version: str
    success_version: str
    expert_version: str
    instruction: str
    nstep: int

    def reset(self, params: ParamTable, *, run_seed: int, episodes: Sequence[int], attempt: int = 0) -> InitialState:
        """Return the initial states; world ``i`` depends only on its parameters, run seed, episode and attempt."""
        ...

    def success(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return success at each recorded state: ``(nworld, nstep + 1, nstate)`` to ``(nworld, nstep + 1)``.

        It depends only on the states, so that a stored episode can be evaluated again.
        """
        ...

    def expert(self, initial: InitialState) -> Controller:
        """Return the scripted expert for worlds that start in ``initial``; worlds do not affect each other."""
        ...


class TrackedTask(Task, Protocol):
    """Task with tracked values of its scene: LeRobot's ``observation.environment_state``."""

    environment_names: tuple[str, ...]

    def environment(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the true tracked values in recorded states ``(…, nstate)``: ``(…, n)``, one per name."""
        ...


def has_tracked_values(task: Task) -> TypeGuard[TrackedTask]:
    """Return whether a task has tracked values, which are optional."""
    return hasattr(task, "environment_names") and hasattr(task, "environment")


class ProgressTask(Task, Protocol):
    """Task with a measure of progress in addition to success."""

    def progress(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the progress in [0, 1] at each recorded state ``(nworld, nstep + 1, nstate)``; 1 is success."""
        ...


def has_progress(task: Task) -> TypeGuard[ProgressTask]:
    """Return whether a task has a measure of progress, which is optional."""
    return hasattr(task, "progress")


class PhasedTask(Task, Protocol):
    """Task with named phases of an episode, and classes of failure."""

    def phases(self, states: NDArray[np.float64], fps: float) -> Sequence[tuple[str, int | None]]:
        """Return names of phases and the state at which each begins (None: it did not), of states ``(T + 1, nstate)``.

        A phase ends where the next one begins, the last one with the episode.
        """
        ...

    def failure(self, states: NDArray[np.float64], fps: float) -> tuple[str, str] | None:
        """Return the class of failure of an episode ``(T + 1, nstate)`` and its reason; None for a success."""
        ...


def has_phases(task: Task | None) -> TypeGuard[PhasedTask]:
    """Return whether a task has phases and failure classes, which are optional."""
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
        """Task of the worlds."""
        ...

    nstep: int
    instruction: str
    truth_names: tuple[str, ...]

    def truth(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the privileged state of the scene in states ``(k, nstate)``: ``(k, n)``."""
        ...

    def evaluate_states(
        self, states: NDArray[np.float64], envs: NDArray[np.intp], *, begin: ArrayLike = False
    ) -> GoalState:
        """Evaluate the next state of some worlds; ``states`` has one row per world.

        Args:
            begin: whether this is a world's first state, scalar or ``(k,)``.
        """
        ...
