"""What every task offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

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
        """Whether the task is done at each recorded state: ``(nworld, nstep + 1, nstate)`` to ``(nworld, nstep + 1)``.

        A function of the states alone, so that anybody can check a stored episode again.
        """
        ...

    def expert(self, initial: InitialState) -> Controller:
        """A script for worlds that begin there; its commands in a world depend on that world alone."""
        ...


class Tracked(Task, Protocol):
    """A task that says what a tracker of its scene sees: LeRobot's ``observation.environment_state``."""

    environment_names: tuple[str, ...]

    def environment(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """What a tracker without faults sees in recorded states: ``(…, nstate)`` to ``(…, n)``, as the names say."""
        ...


def is_tracked(task: Task) -> TypeGuard[Tracked]:
    """Whether a task offers what a tracker sees, which is no duty of a task."""
    return hasattr(task, "environment_names") and hasattr(task, "environment")


class Staged(Task, Protocol):
    """A task that says how far it has come, beside whether it is done."""

    def progress(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far the task has come at each recorded state: ``(nworld, nstep + 1, nstate)`` to [0, 1], 1 when done."""
        ...


def is_staged(task: Task) -> TypeGuard[Staged]:
    """Whether a task offers its progress, which is no duty of a task."""
    return hasattr(task, "progress")
