"""Compute the success and the potential of running worlds at every step, from which rewards are computed.

``sparse`` rewards are 1 at the step that reaches success, else 0. ``dense`` rewards add the change of a potential Φ, F
= Φ(next state) − Φ(state), which does not change the optimal policy. The sum of F over an episode is Φ(last state) −
Φ(first state), so waiting gives no reward (potential-based shaping, Ng, Harada and Russell, ICML 1999, here
undiscounted). A potential is a sum of terms in [0, 1] with equal weights, which is a choice of this package. A term for
a distance d in m is ``1 − tanh(5 d)``, as in robosuite and ManiSkill.
"""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.records import POSE_COLUMNS
from twinloop.simulate.protocol import state_columns
from twinloop.tasks.pick_and_place import PickAndPlace, SceneFeatures
from twinloop.tasks.protocol import Goal, GoalState, Task, has_progress, has_tracked_values
from twinloop.tasks.reach_moving import TOLERANCE_M, ReachMoving
from twinloop.tasks.registry import open_task, task_names
from twinloop.twin import Twin

_NEAR = 5.0  # 1/m: half of the potential is gained within the last 11 cm
_REACHED = 0.02  # m from the point above the object; our choice, about the object's half width
_REACH_SECONDS = 3.0  # half of the duration of pick and place; our choice


_TRUTH = (
    *(f"tool/{axis}" for axis in "xyz"),
    *(f"object/{part}" for part in POSE_COLUMNS),
    *(f"object/{kind}/{axis}" for kind in ("velocity", "spin") for axis in "xyz"),
    *(f"{pair}/{axis}" for pair in ("object_from_tool", "target_from_object") for axis in "xyz"),
)


class TaskGoal:
    """Goal of any task, for ``num_envs`` worlds; see `protocol.Goal`.

    The potential is the task's progress (0 if the task has none). The privileged state consists of the task's tracked
    values. Each evaluation reads all states of the episode again, so its cost is proportional to the episode's length.
    """

    _past: NDArray[np.float64]

    def __init__(self, task: Task, num_envs: int) -> None:
        if not has_tracked_values(task):
            raise InputError(f"The task {task.name} has no method environment(states), which observations need.")
        self.task, self.nstep, self.instruction = task, task.nstep, task.instruction
        self.truth_names = tuple(name.replace(".", "/") for name in task.environment_names)
        self.truth = task.environment
        self._past = np.empty((num_envs, 0, 0))
        self._length = np.zeros(num_envs, dtype=np.int64)

    def evaluate_states(
        self, states: NDArray[np.float64], envs: NDArray[np.intp], *, begin: ArrayLike = False
    ) -> GoalState:
        """Return success, potential and privileged state of k worlds at their next state.

        Every state of an episode must be given, in order, because the goal remembers earlier states.

        Args:
            states: next state of each world, ``(k, nstate)``.
            envs: indices of the worlds, ``(k,)``.
            begin: whether this is the first state of an episode, scalar or ``(k,)``.
        """
        self._length[envs] = np.where(begin, 0, self._length[envs]) + 1
        success, potential, lengths = np.zeros(len(envs), dtype=bool), np.zeros(len(envs)), self._length[envs]
        if lengths.max(initial=0) > self._past.shape[1]:
            longer = np.empty((len(self._length), 2 * int(lengths.max()), states.shape[1]))
            longer[:, : self._past.shape[1]] = self._past if self._past.size else 0.0
            self._past = longer
        self._past[envs, lengths - 1] = states
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            past = self._past[envs[rows], :length]
            success[rows] = self.task.success(past)[:, -1]
            potential[rows] = self.task.progress(past)[:, -1] if has_progress(self.task) else 0.0
        return GoalState(success=success, potential=potential, truth=self.truth(states))


class ReachMovingGoal:
    """Goal of `ReachMoving`: success and progress as in the task, updated with each state instead of computed again."""

    def __init__(self, task: ReachMoving, num_envs: int) -> None:
        self.task, self.nstep, self.instruction = task, task.nstep, task.instruction
        self.truth_names = tuple(name.replace(".", "/") for name in task.environment_names)
        self.truth = task.environment
        self._gap, self._reach = np.ones(num_envs), np.zeros(num_envs)
        self._streak, self._longest = np.zeros((2, num_envs), dtype=np.int64)

    def evaluate_states(
        self, states: NDArray[np.float64], envs: NDArray[np.intp], *, begin: ArrayLike = False
    ) -> GoalState:
        """Return success, potential and privileged state of k worlds at their next state.

        Every state of an episode must be given, in order, because the goal remembers the longest time near it.

        Args:
            states: next state of each world, ``(k, nstate)``.
            envs: indices of the worlds, ``(k,)``.
            begin: whether this is the first state of an episode, scalar or ``(k,)``.
        """
        gap, near = self.task.goal_distance(states), self.task.is_near_goal(states)
        self._gap[envs] = np.where(begin, np.maximum(gap, TOLERANCE_M), self._gap[envs])
        covered = np.clip(1.0 - np.maximum(gap - TOLERANCE_M, 0.0) / self._gap[envs], 0.0, 1.0)
        self._reach[envs] = np.maximum(covered, np.where(begin, 0.0, self._reach[envs]))
        self._streak[envs] = np.where(near, np.where(begin, 0, self._streak[envs]) + 1, 0)
        self._longest[envs] = np.maximum(self._streak[envs], np.where(begin, 0, self._longest[envs]))
        required = self.task.hold_steps + 1
        success, followed = self._streak[envs] >= required, np.minimum(self._longest[envs] / required, 1.0)
        potential = np.where(success, 1.0, (self._reach[envs] + followed) / 2.0)
        return GoalState(success=success, potential=potential, truth=self.truth(states))


class _TabletopGoal:
    """Base class of the goals in the scene of pick and place."""

    truth_names = _TRUTH

    def __init__(self, task: PickAndPlace) -> None:
        self.task, self.nstep, self.instruction = task, task.nstep, task.instruction
        model = task.twin.model
        self._qpos = state_columns(model, int(mujoco.mjtState.mjSTATE_QPOS))
        self._qvel = state_columns(model, int(mujoco.mjtState.mjSTATE_QVEL))

    def truth(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the privileged state ``(k, n)`` of k worlds with states ``(k, nstate)``.

        ``truth_names`` are the names of its n values.
        """
        return self._make_truth(states, self.task.scene_features(states))

    def _make_truth(self, states: NDArray[np.float64], scene: SceneFeatures) -> NDArray[np.float64]:
        qpos, qvel, thing = states[:, self._qpos], states[:, self._qvel], self.task.object
        parts = [scene.tool, qpos[:, thing.qpos : thing.qpos + 7], qvel[:, thing.qvel : thing.qvel + 6]]
        return np.concatenate([*parts, scene.object - scene.tool, scene.target - scene.object], axis=1)


class PickAndPlaceGoal(_TabletopGoal):
    """Goal of pick and place; `PickAndPlaceConfig` defines success. The potential is the sum of three terms in [0, 1].

    - ``reach``: ``1 − tanh(5 d)`` for the distance d of tool and object in m, or 1 once the object has been lifted and
      is above the target.
    - ``lift``: the object's height divided by the height that counts as lifted, at most 1; 1 after the object was
      lifted.
    - ``carry``: ``1 − tanh(5 d)`` for the horizontal distance d of object and target in m, 0 until the object has been
      lifted.
    """

    def __init__(self, task: PickAndPlace, num_envs: int) -> None:
        super().__init__(task)
        self._watch = task.make_success_evaluation(num_envs)

    def evaluate_states(
        self, states: NDArray[np.float64], envs: NDArray[np.intp], *, begin: ArrayLike = False
    ) -> GoalState:
        """Return success, potential and privileged state of k worlds at their next state.

        Every state of an episode must be given, in order, because the goal remembers earlier states.

        Args:
            states: next state of each world, ``(k, nstate)``.
            envs: indices of the worlds, ``(k,)``.
            begin: whether this is the first state of an episode, scalar or ``(k,)``.
        """
        scene, config = self.task.scene_features(states), self.task.config
        success = self._watch.evaluate_states(scene, envs, begin=begin)
        lifted = self._watch.lifted[envs]
        away = _norm(scene.object[:, :2] - scene.target[:, :2])
        there = lifted & (away <= config.target_radius)
        reach = np.where(there, 1.0, _proximity(_norm(scene.tool - scene.object)))
        lift = np.where(lifted, 1.0, np.clip(self._watch.rise[envs] / config.lifted, 0.0, 1.0))
        carry = np.where(lifted, _proximity(away), 0.0)
        return GoalState(success=success, potential=reach + lift + carry, truth=self._make_truth(states, scene))


class ReachGoal(_TabletopGoal):
    """Goal to hold the tool within 2 cm of a point above the object.

    The point is at the height ``lift_height`` of the task's settings above the object. The tool must stay there for the
    time ``rest_time`` of the settings. The potential, whose change is added to dense rewards, is ``1 − tanh(5 d)`` for
    the distance d of tool and point in m.
    """

    def __init__(self, task: PickAndPlace, num_envs: int) -> None:
        super().__init__(task)
        self.nstep = round(_REACH_SECONDS * task.twin.control_hz)
        self.instruction = f"Move the gripper above the {task.config.object}."
        self._streak = np.zeros(num_envs, dtype=np.int64)

    def evaluate_states(
        self, states: NDArray[np.float64], envs: NDArray[np.intp], *, begin: ArrayLike = False
    ) -> GoalState:
        """Return success, potential and privileged state of k worlds at their next state.

        Every state of an episode must be given, in order, because the goal remembers earlier states.

        Args:
            states: next state of each world, ``(k, nstate)``.
            envs: indices of the worlds, ``(k,)``.
            begin: whether this is the first state of an episode, scalar or ``(k,)``.
        """
        scene = self.task.scene_features(states)
        distance = _norm(scene.object + np.array([0.0, 0.0, self.task.config.lift_height]) - scene.tool)
        self._streak[envs] = np.where(distance <= _REACHED, np.where(begin, 0, self._streak[envs]) + 1, 0)
        success = np.isfinite(states).all(axis=-1) & (self._streak[envs] >= self.task.rest_steps)
        return GoalState(success=success, potential=_proximity(distance), truth=self._make_truth(states, scene))


_REACH = "reach"  # additional goal in the worlds of pick and place
ARM_GOALS = (PickAndPlace.name, _REACH, ReachMoving.name)  # goals that every twin of `twin.robot_names.ARMS` has


def goal_names() -> list[str]:
    """Return the names of the built-in goals: one per task, and ``reach``."""
    return [*task_names(), _REACH]


def open_goal(name: str, twin: Twin, num_envs: int) -> Goal:
    """Return the goal with a name for ``num_envs`` worlds: the goal of a task (see `open_task`), or ``reach``.

    Raises:
        UnknownNameError: If the goal does not exist.
        InputError: If the twin does not fit the goal's task.
    """
    if name == _REACH:
        return ReachGoal(PickAndPlace(twin), num_envs)
    if name not in task_names() and ".py:" not in name:
        raise UnknownNameError("goal", name, goal_names())
    task = open_task(name, twin)
    if isinstance(task, PickAndPlace):
        return PickAndPlaceGoal(task, num_envs)
    return ReachMovingGoal(task, num_envs) if type(task) is ReachMoving else TaskGoal(task, num_envs)


def _norm(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sqrt((vectors**2).sum(axis=-1))


def _proximity(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.0 - np.tanh(_NEAR * distance)
