"""A script that picks and places, over worlds: phases as an array, straight paths, differential inverse kinematics.

It sees the true state of its world, as a script in a simulator may; what a policy could have seen is recorded apart.
Every operation is elementwise over worlds or on one small matrix per world, so that a world's commands depend on that
world alone.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinloop.simulate import InitialState, Simulation
from twinloop.tasks.reaching import GraspFrame, joint_step, tool_error
from twinloop.tasks.servo import ServoTracker

if TYPE_CHECKING:
    from twinloop.tasks.pick_and_place import PickAndPlace


class Phase(IntEnum):
    """What the hand does, in order."""

    APPROACH = 0
    DESCEND = 1
    CLOSE = 2
    LIFT = 3
    CARRY = 4
    LOWER = 5
    OPEN = 6
    RETREAT = 7
    HOME = 8


# Per phase: least duration (s), and how long at most to wait at its end for the joints to arrive (s).
_LEAST = np.array([0.6, 0.6, 0.45, 0.5, 0.6, 0.5, 0.35, 0.5, 0.8])
_PATIENCE = np.array([0.7, 0.4, 0.0, 0.1, 0.4, 0.4, 0.0, 0.0, np.inf])
_GRIPPED = np.array([False, False, True, True, True, True, False, False, False])
_ARRIVED = 0.003  # m: a tool closer than this to its reference has arrived
_PACE = 0.8  # mean speed of a path in reaches (horizontal distance of the hand at home from the base) per second
_TURN_SPEED = 1.0  # rad/s: mean speed of turning the hand about its approach
_JOINT_SPEED = 2.5  # rad/s; the STS3215 at 7.4 V turns 5.9 rad/s unloaded, the Panda's joints 2.2 to 2.6 (makers)
_STROKE_TIME = 0.3  # s for the hand's command from open to closed
_SIDE_CLEARANCE = 0.010  # m between a fixed finger and the object on the way down and up
_DROP = 0.001  # m: the object is let go this far above its resting height
_HOVER = 0.015  # m between finger tips and the object's top before the descent
_TIP_CLEARANCE = 0.003  # m between finger tips and table at the grasp
_YAW_PERIOD = np.pi / 2  # a box can be held by either pair of sides


class PickAndPlaceExpert:
    """See `simulate.protocol.Controller`; built by `PickAndPlace.expert` for worlds that begin in given states."""

    def __init__(self, task: PickAndPlace, initial: InitialState) -> None:
        self._task, config, chain = task, task.config, task.chain
        self._hz, n = task.twin.control_hz, initial.nworld
        home, self._home_command = task.home
        self._posture = home[chain.qpos]
        self._grasp_height = max(config.grasp_height, task.hand.tip + _TIP_CLEARANCE)
        self._hover = 2.0 * task.object.rest_height + task.hand.tip + _HOVER
        self._frame = GraspFrame(
            chain, task.hand, home, tilt=config.approach_tilt, heights=(self._grasp_height, config.lift_height)
        )
        home_pose = chain.pose(self._posture[None])
        self._home_position = home_pose.position[0]
        self._speed = _PACE * float(np.hypot(*(home_pose.position - home_pose.anchors[:, 0])[0, :2]))
        self._target = task.target_position(initial)
        self._reference = initial.qpos[:, chain.qpos].copy()
        self._planned = chain.pose(self._reference)
        self._tracker = ServoTracker(
            task.servo,
            command=initial.command[:, task.servo.actuators],
            reference=self._reference,
            gravity=chain.gravity(self._planned),
            max_step=_JOINT_SPEED / self._hz,
        )
        self._command = initial.command.copy()
        self._phase = np.full(n, -1)
        self._elapsed, self._duration = np.zeros(n), np.zeros(n)
        self._start, self._goal = self._planned.position, self._planned.position
        self._turns = np.zeros((n, 2))  # of the hand at the start and at the end of the path

    def __call__(self, simulation: Simulation) -> NDArray[np.float64]:
        """Commands of the coming control step."""
        qpos = simulation.qpos
        qpos = np.where(np.isfinite(qpos), qpos, 0.0)  # a world that diverged is marked elsewhere
        measured = qpos[:, self._task.chain.qpos]
        jacobian = self._task.chain.jacobian(self._planned)
        miss = np.matmul(jacobian[:, :3], (measured - self._reference)[..., None])[..., 0]
        self._change_phase(qpos, np.sqrt((miss**2).sum(axis=1)))
        self._elapsed = self._elapsed + 1.0
        before = self._reference
        step = self._follow_path(jacobian)
        arm = self._tracker.command(
            reference=before,
            step=step,
            measured=measured,
            target=self._reference,
            gravity=self._task.chain.gravity(self._planned),
        )
        self._command = self._command.copy()
        self._command[:, self._task.servo.actuators] = arm
        self._command[:, self._task.hand.actuator] = self._finger_command()
        return self._command

    def _follow_path(self, jacobian: NDArray[np.float64]) -> NDArray[np.float64]:
        """Move the reference along the path by one control step; returns the joints' change."""
        chain = self._task.chain
        fraction = _smooth(np.minimum(self._elapsed / self._duration, 1.0))
        position = self._start + fraction[:, None] * (self._goal - self._start)
        turn = self._turns[:, 0] + fraction * (self._turns[:, 1] - self._turns[:, 0])
        columns = self._frame.columns(position, turn)
        error = tool_error(self._planned, position, columns)
        step = joint_step(jacobian, error, self._posture - self._reference)
        limit = _JOINT_SPEED / self._hz
        wanted = self._reference + np.clip(step, -limit, limit)
        wanted = np.clip(wanted, chain.limits[:, 0], chain.limits[:, 1])
        step = wanted - self._reference
        self._reference = wanted
        self._planned = chain.pose(wanted)
        return step

    def _finger_command(self) -> NDArray[np.float64]:
        hand = self._task.hand
        aim = np.where(_GRIPPED[self._phase], hand.closed, hand.open)
        aim = np.where(self._phase == Phase.HOME, self._home_command[hand.actuator], aim)
        limit = abs(hand.open - hand.closed) / (_STROKE_TIME * self._hz)
        now = self._command[:, hand.actuator]
        return now + np.clip(aim - now, -limit, limit)

    def _change_phase(self, qpos: NDArray[np.float64], miss: NDArray[np.float64]) -> None:
        """Worlds at the end of their phase begin the next one from where the reference is."""
        late = self._elapsed - self._duration
        done = (late >= 0.0) & ((miss < _ARRIVED) | (late >= _PATIENCE[self._phase] * self._hz))
        done = (done & (self._phase < Phase.HOME)) | (self._phase < 0)
        if not done.any():
            return
        self._phase = np.where(done, self._phase + 1, self._phase)
        goal, turn = self._goals(qpos)
        start = self._planned.position
        distance = np.sqrt(((goal - start) ** 2).sum(axis=1))
        travel = np.maximum(distance / self._speed, np.abs(turn - self._turns[:, 1]) / _TURN_SPEED)
        duration = np.maximum(np.round(self._hz * np.maximum(_LEAST[self._phase], travel)), 1.0)
        self._elapsed = np.where(done, 0.0, self._elapsed)
        self._duration = np.where(done, duration, self._duration)
        self._start = np.where(done[:, None], start, self._start)
        self._goal = np.where(done[:, None], goal, self._goal)
        turns = np.stack([self._turns[:, 1], turn], axis=1)
        self._turns = np.where(done[:, None], turns, self._turns)

    def _goals(self, qpos: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where the hand should be at the end of each world's phase, and its turn there."""
        task, planned = self._task, self._planned.position
        row = task.object.qpos
        centre, quaternion = qpos[:, row : row + 3], qpos[:, row + 3 : row + 7]
        turn = self._frame.turn_to(centre, _yaw(quaternion), _YAW_PERIOD)
        side = _SIDE_CLEARANCE * self._frame.opening(centre, turn) if task.hand.one_sided else np.zeros_like(centre)
        grasp = _at_height(centre, self._grasp_height) - side
        lift = task.config.lift_height
        to_target = _at_height(self._target - centre, 0.0)
        drop = np.stack([0.0 * centre[:, 0]] * 2 + [task.object.rest_height + _DROP - centre[:, 2]], axis=1)
        kept = self._turns[:, 1]
        retreat_side = (
            _SIDE_CLEARANCE * self._frame.opening(planned, kept) if task.hand.one_sided else np.zeros_like(planned)
        )
        goals = {
            Phase.APPROACH: _at_height(grasp, self._hover),
            Phase.DESCEND: grasp,
            Phase.CLOSE: planned,
            Phase.LIFT: _at_height(planned, lift),
            Phase.CARRY: _at_height(planned + to_target, lift),
            Phase.LOWER: planned + to_target + drop,
            Phase.OPEN: planned,
            Phase.RETREAT: _at_height(planned - retreat_side, lift),
            Phase.HOME: np.broadcast_to(self._home_position, planned.shape),
        }
        goal, aimed = planned, kept
        for phase, value in goals.items():
            here = self._phase == phase
            goal = np.where(here[:, None], value, goal)
            if phase <= Phase.DESCEND:
                aimed = np.where(here, turn, aimed)
        return goal, np.where(self._phase == Phase.HOME, 0.0, aimed)


def _smooth(fraction: NDArray[np.float64]) -> NDArray[np.float64]:
    """The minimum-jerk profile from 0 to 1 (Flash and Hogan, "The coordination of arm movements", 1985)."""
    return fraction**3 * (10.0 + fraction * (6.0 * fraction - 15.0))


def _at_height(position: NDArray[np.float64], height: float) -> NDArray[np.float64]:
    return np.stack([position[:, 0], position[:, 1], np.full(len(position), height)], axis=1)


def _yaw(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation about the vertical of quaternions wxyz ``(nworld, 4)``."""
    w, x, y, z = (quaternion[:, i] for i in range(4))
    return np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
