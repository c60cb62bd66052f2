"""Define the task to follow a moving goal with the tool; it has no object and no contact.

The goal moves around a circle in 4 s. The circle is stored as the pose of the twin's mocap body ``target`` (centre,
plane and starting direction). The position of the goal can therefore be computed from each recorded state, which holds
this pose and the time. The scripted expert uses differential inverse kinematics.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import mujoco
import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.simulate import Controller, InitialState, Simulation
from twinloop.simulate.arrays import HOST, ArrayLibrary
from twinloop.simulate.protocol import state_columns
from twinloop.tasks.arm import Arm, ServoTracker, column_order, mocap_row
from twinloop.tasks.predicates import count_streak, held_for, running_maximum
from twinloop.tasks.reaching import joint_step, position_error
from twinloop.twin import Twin

_ARRIVAL_S = 1.5  # from home to the goal's path, along a minimum-jerk profile
_JOINT_SPEED = 2.5  # rad/s, as the scripted pick and place

GoalPosition = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


class ReachMovingExpert:
    """Scripted controller that follows the goal; see `ReachMoving.expert`.

    Args:
        arm: the arm.
        initial: initial states of the worlds.
        target: row of the goal's mocap body.
        goal: function that computes goal positions, see `goal_position`.
        arrays: array library to compute with, for example NumPy.
    """

    def __init__(
        self, arm: Arm, initial: InitialState, target: int, goal: GoalPosition, arrays: ArrayLibrary = HOST
    ) -> None:
        self._arguments = arm, initial, target, goal
        self._arm, self._arrays, self._goal = arm, arrays, goal
        chain, there, hz = arm.chain, arrays.asarray, arm.twin.control_hz
        self._centre, self._turn = there(initial.mocap_pos[:, target]), there(initial.mocap_quat[:, target])
        self._posture, self._limits = there(arm.home[chain.qpos]), there(chain.limits)
        self._columns, self._command = there(chain.qpos), there(initial.command)
        self._reference = there(initial.qpos[:, chain.qpos])
        self._planned = chain.pose(self._reference)
        self._start = self._planned.position
        self._step_limit, self._elapsed = _JOINT_SPEED / hz, 0
        self._order = there(column_order(initial.command.shape[1], arm.servo.actuators))
        self._tracker = ServoTracker(
            arm.servo,
            command=there(initial.command[:, arm.servo.actuators]),
            reference=self._reference,
            gravity=chain.gravity_torques(self._planned),
            max_step=self._step_limit,
        )

    def to_library(self, arrays: ArrayLibrary) -> ReachMovingExpert:
        """Return the same controller for arrays of another library, for example on a device."""
        return ReachMovingExpert(*self._arguments, arrays)

    def __call__(self, simulation: Simulation) -> NDArray[np.float64]:
        """Return the commands of the next control step, ``(nworld, nu)``."""
        xp, chain = self._arrays.xp, self._arm.chain
        qpos = xp.where(xp.isfinite(simulation.qpos), simulation.qpos, 0.0)  # a diverged world is marked elsewhere
        self._elapsed += 1
        time_s = self._elapsed / self._arm.twin.control_hz
        goal = self._goal(self._centre, self._turn, 0.0 * self._centre[:, 0] + time_s)
        f = min(time_s / _ARRIVAL_S, 1.0)
        position = self._start + f**3 * (10.0 + f * (6.0 * f - 15.0)) * (goal - self._start)
        error = position_error(self._planned, position)
        before = self._reference
        step = joint_step(chain.jacobian(self._planned), error, self._posture - before)
        wanted = before + xp.clip(step, -self._step_limit, self._step_limit)
        self._reference = xp.clip(wanted, self._limits[:, 0], self._limits[:, 1])
        self._planned = chain.pose(self._reference)
        arm = self._tracker.command(
            reference=before,
            step=self._reference - before,
            measured=qpos[:, self._columns],
            target=self._reference,
            gravity=chain.gravity_torques(self._planned),
        )
        self._command = xp.take(xp.concat([arm, self._command], axis=1), self._order, axis=1)
        return self._command


NAME = "reach_moving"
# A tool that does not move is within the tolerance of the goal for at most 60 deg of the circle (a chord of 2 x 15 mm
# at a radius of 30 mm), which is 0.67 s: it cannot succeed. The goal moves at 47 mm/s, a tenth of the pace of the
# scripted pick and place. Radius, period and times are our choice, no published range.
RADIUS_M = 0.03
PERIOD_S = 4.0
TOLERANCE_M = 0.015
HOLD_S = 1.0
DURATION_S = 6.0  # one and a half turns: 2 s to arrive and a whole turn to follow
JOINT_NOISE = 0.02  # rad, uniform, as in pick and place
# Centres lie in a box around the tool at home, of these half sides in reaches (the horizontal distance of the tool at
# home from the base). The expert finds the goal in every part of it, see tests/tasks/test_tasks_family.py.
BOX = np.array([0.10, 0.25, 0.10])
TILT = np.pi / 4  # rad, of the circle's plane from the horizontal at most


class ReachMoving:
    """Task to follow a goal that moves around a circle with the tool.

    See the module for the goal.
    """

    name = NAME
    version = "reach_moving/1"
    success_version = "reach_moving.followed/1"
    expert_version = "reach_moving.expert/1"
    instruction = "Follow the moving goal with the tool."
    environment_names = tuple(f"{owner}.{axis}" for owner in ("tool", "goal") for axis in "xyz")

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin.

        Raises:
            InputError: If the twin does not fit the task.
            UnknownNameError: If the twin has no mocap body ``target``.
        """
        self.twin, self._arm = twin, Arm(twin)
        self._target = mocap_row(twin, "target")
        self.nstep = round(DURATION_S * twin.control_hz)
        self.hold_steps = round(HOLD_S * twin.control_hz)
        kinds = mujoco.mjtState.mjSTATE_TIME, mujoco.mjtState.mjSTATE_QPOS
        poses = mujoco.mjtState.mjSTATE_MOCAP_POS, mujoco.mjtState.mjSTATE_MOCAP_QUAT
        self._time, self._qpos, self._centre, self._turn = (
            state_columns(twin.model, int(kind)) for kind in (*kinds, *poses)
        )

    def reset(self, params: ParamTable, *, run_seed: int, episodes: Sequence[int], attempt: int = 0) -> InitialState:
        """Return initial states with the arm held still near home, and with a random circle near its tool."""
        draws = {"run_seed": run_seed, "episodes": episodes, "attempt": attempt}
        initial = self._arm.make_initial_state(params, JOINT_NOISE, stream=f"{NAME}/reset/joints", **draws)
        u = uniforms(run_seed, f"{NAME}/reset/goal", episodes, size=5, attempt=attempt)
        chain = self._arm.chain
        pose = chain.pose(self._arm.home[None, chain.qpos])
        reach = float(np.hypot(*(pose.position - pose.anchors[:, 0])[0, :2]))
        position, quaternion = initial.mocap_pos.copy(), initial.mocap_quat.copy()
        position[:, self._target] = pose.position + reach * BOX * (2.0 * u[:, :3] - 1.0)
        yaw, tilt = np.pi * u[:, 3], TILT * (u[:, 4] - 0.5)  # half angles
        quaternion[:, self._target] = np.stack(
            [
                np.cos(yaw) * np.cos(tilt),
                np.cos(yaw) * np.sin(tilt),
                np.sin(yaw) * np.sin(tilt),
                np.sin(yaw) * np.cos(tilt),
            ],
            axis=1,
        )
        return dataclasses.replace(initial, mocap_pos=position, mocap_quat=quaternion)

    def success(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return a mask ``(nworld, nstep + 1)``, true where the tool was within 15 mm of the goal for the last 1 s."""
        return held_for(self.is_near_goal(states), self.hold_steps + 1)

    def progress(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the progress at each recorded state, ``(nworld, nstep + 1)`` in [0, 1]; 1 is success.

        It is the mean of two fractions: the covered part of the initial distance to the goal, and the longest time near
        the goal divided by the required time.
        """
        gap, near = self.goal_distance(states), self.is_near_goal(states)
        reach = running_maximum(1.0 - np.maximum(gap - TOLERANCE_M, 0.0) / np.maximum(gap[:, :1], TOLERANCE_M))
        return np.where(
            self.success(states), 1.0, (reach + running_maximum(count_streak(near) / (self.hold_steps + 1))) / 2.0
        )

    def environment(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return positions of tool and goal ``(…, 6)`` in recorded states ``(…, nstate)``, in m in the world frame."""
        sound = np.nan_to_num(states, nan=0.0, posinf=0.0, neginf=0.0)
        tool = self._arm.chain.tool_position(sound[..., self._qpos])
        centre = sound[..., self._centre][..., 3 * self._target : 3 * self._target + 3]
        turn = sound[..., self._turn][..., 4 * self._target : 4 * self._target + 4]
        return np.concatenate([tool, goal_position(centre, turn, sound[..., self._time[0]])], axis=-1)

    def phases(self, states: NDArray[np.float64], fps: float) -> Sequence[tuple[str, int | None]]:  # noqa: ARG002
        """Return each phase's name and the index of the state at which it begins, or None if it does not."""
        near = self.is_near_goal(states)
        return [("approach", 0), ("follow", int(np.argmax(near)) if near.any() else None)]

    def failure(self, states: NDArray[np.float64], fps: float) -> tuple[str, str] | None:
        """Return the failure class of an episode ``(T + 1, nstate)`` and its reason; None if it ends in success."""
        if self.success(states[None])[0, -1]:
            return None
        gap, near = self.goal_distance(states), self.is_near_goal(states)
        if not near.any():
            return "never_reached", f"the tool came within {1000 * np.nanmin(gap):.0f} mm of the goal"
        return "lost", f"last near the goal at {np.flatnonzero(near)[-1] / fps:.2f} s, not for {HOLD_S:g} s"

    def expert(self, initial: InitialState) -> Controller:
        """Return the scripted expert for worlds that start in ``initial``."""
        return ReachMovingExpert(self._arm, initial, self._target, goal_position)

    def goal_distance(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the distance of tool and goal in m, ``(…)``, in states ``(…, nstate)``."""
        tool, goal = np.split(self.environment(states), 2, axis=-1)
        return np.sqrt(((tool - goal) ** 2).sum(axis=-1))

    def is_near_goal(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return whether the tool is within the tolerance of the goal, ``(…)``, in states ``(…, nstate)``."""
        return np.isfinite(states).all(axis=-1) & (self.goal_distance(states) <= TOLERANCE_M)


def goal_position(
    centre: NDArray[np.float64], turn: NDArray[np.float64], time_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the positions ``(…, 3)`` of the goal on its circle, in m.

    Args:
        centre: centre of the circle, ``(…, 3)`` in m.
        turn: orientation of the circle (wxyz), ``(…, 4)``; the goal starts in the direction of its x axis.
        time_s: time since the start of the episode, ``(…)`` in s.
    """
    xp = array_namespace(centre)
    w, x, y, z = (turn[..., i] for i in range(4))
    first = xp.stack([1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z), 2.0 * (x * z - w * y)], axis=-1)
    second = xp.stack([2.0 * (x * y - w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z + w * x)], axis=-1)
    angle = (2.0 * np.pi / PERIOD_S) * time_s[..., None]
    return centre + RADIUS_M * (xp.cos(angle) * first + xp.sin(angle) * second)
