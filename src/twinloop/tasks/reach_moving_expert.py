"""A script that follows a moving goal with the tool: differential inverse kinematics and closed joint loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from twinloop.simulate import InitialState, Simulation
from twinloop.simulate.arrays import HOST, Arrays
from twinloop.tasks.arm import Arm
from twinloop.tasks.reaching import joint_step
from twinloop.tasks.servo import ServoTracker, column_order

_ARRIVAL_S = 1.5  # from home to the goal's path, along a minimum-jerk profile
_JOINT_SPEED = 2.5  # rad/s, as the scripted pick and place

GoalPosition = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


class ReachMovingExpert:
    """See `simulate.protocol.Controller`; built by `ReachMoving.expert`."""

    def __init__(self, arm: Arm, initial: InitialState, target: int, goal: GoalPosition, arrays: Arrays = HOST) -> None:
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
            gravity=chain.gravity(self._planned),
            max_step=self._step_limit,
        )

    def on(self, arrays: Arrays) -> ReachMovingExpert:
        """See `simulate.protocol.DeviceController`."""
        return ReachMovingExpert(*self._arguments, arrays)

    def __call__(self, simulation: Simulation) -> NDArray[np.float64]:
        """Commands of the coming control step."""
        xp, chain = self._arrays.xp, self._arm.chain
        qpos = xp.where(xp.isfinite(simulation.qpos), simulation.qpos, 0.0)  # a diverged world is marked elsewhere
        self._elapsed += 1
        time_s = self._elapsed / self._arm.twin.control_hz
        goal = self._goal(self._centre, self._turn, 0.0 * self._centre[:, 0] + time_s)
        f = min(time_s / _ARRIVAL_S, 1.0)
        position = self._start + f**3 * (10.0 + f * (6.0 * f - 15.0)) * (goal - self._start)
        error = xp.concat([position - self._planned.position, 0.0 * position], axis=1)  # any orientation will do
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
            gravity=chain.gravity(self._planned),
        )
        self._command = xp.take(xp.concat([arm, self._command], axis=1), self._order, axis=1)
        return self._command
