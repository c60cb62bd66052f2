"""Define the protocols of tasks and goals, which the user's own tasks must follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.simulate import Controller, InitialState, Simulation


@runtime_checkable
class Task(Protocol):
    """Task of a robot: initial states of worlds, and success.

    A task is made for one twin, as ``Task(twin)``. Most tasks also have a scripted expert, see `ScriptedTask`.

    Attributes:
        name: name of the task.
        version: version of `reset`; changes whenever initial states may change.
        success_version: version of `success`; changes whenever its results may change.
        instruction: text for language-conditioned policies.
        nstep: control steps of an episode.
    """

    name: str
    version: str
    success_version: str
    instruction: str
    nstep: int

    def reset(self, params: ParamTable, *, run_seed: int, episodes: Sequence[int], attempt: int = 0) -> InitialState:
        """Return the initial states of worlds.

        A world depends only on its parameters, run seed, episode number and attempt.

        Args:
            params: parameter values of the worlds.
            run_seed: seed of the run.
            episodes: episode number of each world.
            attempt: how often these episodes were simulated before, from 0; each attempt must have other random
                numbers.
        """
        ...

    def success(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return success at each recorded state, ``(nworld, nstep + 1)``, for states ``(nworld, nstep + 1, nstate)``.

        It depends only on the states, so that a stored episode can be evaluated again.
        """
        ...


class ScriptedTask(Task, Protocol):
    """Task with a scripted expert.

    ``expert_version`` is the version of `expert`; it changes whenever the expert's commands may change.
    """

    expert_version: str

    def expert(self, initial: InitialState) -> Controller:
        """Return the scripted expert for worlds that start in ``initial``; worlds do not affect each other."""
        ...


def has_expert(task: Task) -> TypeGuard[ScriptedTask]:
    """Return whether a task has a scripted expert, which is optional."""
    return hasattr(task, "expert")


def require_expert(task: Task) -> ScriptedTask:
    """Return a task that has a scripted expert.

    Raises:
        InputError: If the task has none.
    """
    if not has_expert(task):
        raise InputError(
            f"The task {task.name} has no scripted expert. Train a policy in its worlds: twinloop reinforce FILE "
            "--output POLICY, then twinloop evaluate POLICY."
        )
    return task


class TrackedTask(Task, Protocol):
    """Task with tracked values of its scene, which datasets store as LeRobot's ``observation.environment_state``.

    ``environment_names`` are the names of the values.
    """

    environment_names: tuple[str, ...]

    def environment(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the true tracked values ``(…, n)`` in recorded states ``(…, nstate)``, one per name."""
        ...


def has_tracked_values(task: Task) -> TypeGuard[TrackedTask]:
    """Return whether a task has tracked values, which are optional."""
    return hasattr(task, "environment_names") and hasattr(task, "environment")


class StateExpert(Protocol):
    """Expert whose commands depend on the present state of a world alone, see `tasks.reactive`."""

    def label(
        self, simulation: Simulation, held: NDArray[np.float64], earlier: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the commands ``(nworld, nu)`` that the expert issues in the present states.

        Args:
            simulation: the worlds.
            held: the commands that were issued last, ``(nworld, nu)``.
            earlier: the commands before these.
        """
        ...


class LabellingTask(TrackedTask, ScriptedTask, Protocol):
    """Task with an expert that can label every state that a policy visits."""

    def memoryless_expert(
        self, initial: InitialState, params: ParamTable, *, believed: ParamTable | None = None
    ) -> StateExpert:
        """Return this expert for worlds that start in ``initial``.

        Args:
            initial: initial states of the worlds.
            params: parameters of the worlds.
            believed: parameters that the expert takes for true, while it reads the joints as a policy does; None for
                an expert that knows the true ones. An expert that teaches must not know them: a policy that cannot see
                why its teacher decides learns the mean of the decisions.
        """
        ...


def has_labels(task: Task) -> TypeGuard[LabellingTask]:
    """Return whether a task has an expert that can label states, which is optional."""
    return hasattr(task, "memoryless_expert") and has_tracked_values(task)


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
        """Return each phase's name and the index of the state at which it begins, or None if it does not.

        A phase ends where the next one begins, the last one with the episode.

        Args:
            states: recorded states of one episode, ``(T + 1, nstate)`` for T control steps.
            fps: control steps per second.
        """
        ...

    def failure(self, states: NDArray[np.float64], fps: float) -> tuple[str, str] | None:
        """Return the failure class of an episode and its reason; None for a success.

        Args:
            states: recorded states of one episode, ``(T + 1, nstate)`` for T control steps.
            fps: control steps per second.
        """
        ...


def has_phases(task: Task | None) -> TypeGuard[PhasedTask]:
    """Return whether a task has phases and failure classes, which are optional."""
    return hasattr(task, "phases") and hasattr(task, "failure")


@dataclass(frozen=True, kw_only=True)
class GoalState:
    """Evaluation of one state of k worlds.

    Attributes:
        success: whether the goal is reached, ``(k,)``.
        potential: potential for reward shaping, ``(k,)``.
        truth: privileged state of the scene, ``(k, n)``: true values that a policy cannot observe.
    """

    success: NDArray[np.bool_]
    potential: NDArray[np.float64]
    truth: NDArray[np.float64]


class Goal(Protocol):
    """Success and potential of running worlds of a task, from which rewards are made.

    The potential is one number per state that is larger closer to the goal; its change is added to dense rewards (see
    `goals`). The privileged state (`truth`) consists of true values of the scene that a policy cannot observe.

    Attributes:
        nstep: control steps of an episode.
        instruction: text for language-conditioned policies.
        truth_names: names of the values of `truth`.
    """

    @property
    def task(self) -> Task:
        """Task that defines the scene of the worlds."""
        ...

    nstep: int
    instruction: str
    truth_names: tuple[str, ...]

    def truth(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the privileged state of the scene ``(k, n)`` in states ``(k, nstate)`` of k worlds.

        ``truth_names`` are the names of its n values, for example positions of the tool and of objects.
        """
        ...

    def evaluate_states(
        self, states: NDArray[np.float64], envs: NDArray[np.intp], *, begin: ArrayLike = False
    ) -> GoalState:
        """Evaluate the next state of k worlds.

        A goal may remember earlier states of a world, for example to count how long an object has been at rest.
        Therefore every state of a world must be given, in order; ``begin`` makes the goal forget the earlier ones.

        Args:
            states: the next state of each world, ``(k, nstate)``.
            envs: indices of the worlds, ``(k,)``.
            begin: whether this is a world's first state, scalar or ``(k,)``.
        """
        ...
