"""Control pick and place by a scripted expert, with phases, straight paths and differential inverse kinematics.

The expert uses the true state of its world; the observations of a policy are recorded separately. Every operation is
elementwise over worlds or on one small matrix per world, so a world's commands depend on that world alone.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from twinloop.simulate import InitialState, Simulation
from twinloop.simulate.arrays import HOST, ArrayLibrary
from twinloop.tasks.arm import ServoModel, ServoTracker, column_order
from twinloop.tasks.ground import FreeBody
from twinloop.tasks.hand import GripperHand
from twinloop.tasks.kinematics import Chain
from twinloop.tasks.pick_and_place_config import PickAndPlaceConfig
from twinloop.tasks.reaching import GraspFrame, joint_step, tool_error
from twinloop.twin import Twin


class ExpertPhase(IntEnum):
    """Phases of the scripted expert in order, from approaching the object (0) to returning home (8).

    The phases are APPROACH, DESCEND, CLOSE (the hand), LIFT, CARRY, LOWER, OPEN (the hand), RETREAT and HOME.
    """

    APPROACH = 0
    DESCEND = 1
    CLOSE = 2
    LIFT = 3
    CARRY = 4
    LOWER = 5
    OPEN = 6
    RETREAT = 7
    HOME = 8


# Per phase: minimum duration (s), and longest wait at its end for the hand to arrive (s).
_LEAST = np.array([0.6, 0.6, 0.45, 0.5, 0.6, 0.5, 0.35, 0.5, 0.8])
_PATIENCE = np.array([0.7, 0.4, 0.0, 0.1, 0.4, 0.4, 0.0, 0.0, np.inf])
_ARRIVED = 0.003  # m: a tool closer than this to its reference has arrived
_PACE = 0.8  # mean speed of a path in reaches (horizontal distance of the hand at home from the base) per second
_TURN_SPEED = 1.0  # rad/s: mean speed of turning the hand about its approach
_JOINT_SPEED = 2.5  # rad/s; the STS3215 at 7.4 V turns 5.9 rad/s unloaded, the Panda's joints 2.2 to 2.6 (makers)
_STROKE_TIME = 0.3  # s for the hand's command from open to closed
_SIDE_CLEARANCE = 0.010  # m between a fixed finger and the object on the way down and up
_DROP = 0.001  # m: the object is released at this height above its resting height
_HOVER = 0.015  # m between finger tips and the object's top before the descent
_TIP_CLEARANCE = 0.003  # m between finger tips and table at the grasp
_YAW_PERIOD = np.pi / 2  # a box can be grasped by either pair of sides


class ExpertScene(Protocol):
    """Properties of the task `PickAndPlace` that the scripted expert uses.

    Attributes:
        twin: twin of the robot and its scene.
        config: settings of the task.
        chain: kinematic chain from the world to the tool site.
        servo: nominal position servos of the arm's joints.
        hand: the gripper.
        object: free body of the object to pick up.
    """

    twin: Twin
    config: PickAndPlaceConfig
    chain: Chain
    servo: ServoModel
    hand: GripperHand
    object: FreeBody

    @property
    def home(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ``qpos`` and command of the home pose."""
        ...

    def target_position(self, initial: InitialState) -> NDArray[np.float64]:
        """Return the centre of the target disc in every world, ``(nworld, 3)`` in m in the world frame."""
        ...

    def ground(self, initial: InitialState) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the table's height at the target minus the height in the nominal twin, and the table's slope.

        The height difference is ``(nworld,)`` in m. The slope ``(nworld, 2)`` is the rise in m per m along x and y.
        """
        ...


class PickAndPlaceExpert:
    """Scripted controller of pick and place for worlds that begin in given states; see `PickAndPlace.expert`.

    Args:
        task: the task.
        initial: initial states of the worlds.
        arrays: library of the arrays in `simulation.qpos` and in the returned commands, for example NumPy.
    """

    def __init__(self, task: ExpertScene, initial: InitialState, arrays: ArrayLibrary = HOST) -> None:
        self._task, self._initial, self._arrays, self._xp = task, initial, arrays, arrays.xp
        config, chain, hz = task.config, task.chain, task.twin.control_hz
        home, self._home_command = task.home
        posture = home[chain.qpos]
        self._grasp_height = max(config.grasp_height, task.hand.tip + _TIP_CLEARANCE)
        heights = (self._grasp_height, config.lift_height)
        self._frame = GraspFrame(chain, task.hand, home, tilt=config.approach_tilt, heights=heights)
        home_pose = chain.pose(posture[None])
        self._posture, self._home_position = arrays.asarray(posture), arrays.asarray(home_pose.position[0])
        reach = float(np.hypot(*(home_pose.position - home_pose.anchors[:, 0])[0, :2]))
        self._speed = _PACE * reach / hz  # m per control step; below, time is in control steps
        self._turn_step, self._joint_step = _TURN_SPEED / hz, _JOINT_SPEED / hz
        self._finger_step = abs(task.hand.open - task.hand.closed) / (_STROKE_TIME * hz)
        self._least, self._patience = arrays.asarray(_LEAST * hz), arrays.asarray(_PATIENCE * hz)
        self._limits, self._arm = arrays.asarray(chain.limits), arrays.asarray(chain.qpos)
        self._plan_start(initial)

    def _plan_start(self, initial: InitialState) -> None:
        task, chain, there = self._task, self._task.chain, self._arrays.asarray
        self._target = there(task.target_position(initial))
        rise, slope = task.ground(initial)
        self._rise, self._slope = there(rise), there(slope)
        row = task.object.qpos
        centre = there(initial.qpos[:, row : row + 3])
        self._rest = centre[:, 2] - self._ground_height(centre)  # height of the object's centre above the table
        self._hover = 2.0 * self._rest + task.hand.tip + _HOVER
        larger = self._rest - task.object.rest_height  # a fixed finger stays clear of an object as wide as it is high
        self._clearance = _SIDE_CLEARANCE + larger if task.hand.one_sided else 0.0 * larger
        self._lift = task.config.lift_height + self._xp.maximum(self._rise, self._ground_height(centre))
        self._command = there(initial.command)
        driven = np.array([*task.servo.actuators, task.hand.actuator])
        self._columns = there(column_order(initial.command.shape[1], driven))
        self._reference = there(initial.qpos[:, chain.qpos])
        self._planned = chain.pose(self._reference)
        self._tracker = ServoTracker(
            task.servo,
            command=there(initial.command[:, task.servo.actuators]),
            reference=self._reference,
            gravity=chain.gravity_torques(self._planned),
            max_step=self._joint_step,
        )
        self._phase = there(np.full(initial.nworld, -1))
        self._elapsed, self._duration = there(np.zeros(initial.nworld)), there(np.zeros(initial.nworld))
        self._start, self._goal = self._planned.position, self._planned.position
        self._turns = there(np.zeros((initial.nworld, 2)))  # rad, the hand's rotation at the path's start and end

    def to_library(self, arrays: ArrayLibrary) -> PickAndPlaceExpert:
        """Return the same controller for arrays of another library, for example on a device."""
        return PickAndPlaceExpert(self._task, self._initial, arrays)

    def __call__(self, simulation: Simulation) -> NDArray[np.float64]:
        """Return the commands of the next control step, ``(nworld, nu)``."""
        xp, chain = self._xp, self._task.chain
        qpos = xp.where(xp.isfinite(simulation.qpos), simulation.qpos, 0.0)  # a diverged world is marked elsewhere
        measured = qpos[:, self._arm]
        jacobian = chain.jacobian(self._planned)
        miss = xp.matmul(jacobian[:, :3], (measured - self._reference)[..., None])[..., 0]
        self._change_phase(qpos, xp.sqrt(xp.sum(miss * miss, axis=1)))
        self._elapsed = self._elapsed + 1.0
        before = self._reference
        step = self._follow_path(jacobian)
        arm = self._tracker.command(
            reference=before,
            step=step,
            measured=measured,
            target=self._reference,
            gravity=chain.gravity_torques(self._planned),
        )
        parts = xp.concat([arm, self._finger_command()[:, None], self._command], axis=1)
        self._command = xp.take(parts, self._columns, axis=1)
        return self._command

    def _follow_path(self, jacobian: NDArray[np.float64]) -> NDArray[np.float64]:
        """Move the reference (required joint positions) along the path by one control step; return its change.

        The change is ``(nworld, k)`` for k joints. ``jacobian`` ``(nworld, 6, k)`` is the tool's at the reference.
        """
        xp, chain = self._xp, self._task.chain
        fraction = _minimum_jerk(xp.minimum(self._elapsed / self._duration, 1.0))
        position = self._start + fraction[:, None] * (self._goal - self._start)
        turn = self._turns[:, 0] + fraction * (self._turns[:, 1] - self._turns[:, 0])
        error = tool_error(self._planned, position, self._frame.tool_axes(position, turn))
        step = joint_step(jacobian, error, self._posture - self._reference)
        wanted = self._reference + xp.clip(step, -self._joint_step, self._joint_step)
        wanted = xp.clip(wanted, self._limits[:, 0], self._limits[:, 1])
        step = wanted - self._reference
        self._reference = wanted
        self._planned = chain.pose(wanted)
        return step

    def _finger_command(self) -> NDArray[np.float64]:
        xp, hand = self._xp, self._task.hand
        gripped = (self._phase >= ExpertPhase.CLOSE) & (self._phase <= ExpertPhase.LOWER)
        now = self._command[:, hand.actuator]
        aim = xp.where(gripped, xp.full_like(now, hand.closed), hand.open)
        aim = xp.where(self._phase == ExpertPhase.HOME, float(self._home_command[hand.actuator]), aim)
        return now + xp.clip(aim - now, -self._finger_step, self._finger_step)

    def _change_phase(self, qpos: NDArray[np.float64], miss: NDArray[np.float64]) -> None:
        """Start the next phase, from the current reference, in worlds whose phase has ended.

        Args:
            qpos: positions of the worlds, ``(nworld, nq)``.
            miss: distance of the tool from its reference, ``(nworld,)`` in m.
        """
        xp = self._xp
        late = self._elapsed - self._duration
        done = (late >= 0.0) & ((miss < _ARRIVED) | (late >= xp.take(self._patience, self._phase)))
        done = (done & (self._phase < ExpertPhase.HOME)) | (self._phase < 0)
        if self._arrays.on_host and not xp.any(done):  # on a device this test would wait for the result
            return
        self._phase = xp.where(done, self._phase + 1, self._phase)
        goal, turn = self._phase_goals(qpos)
        start, turned = self._planned.position, self._turns[:, 1]
        way = goal - start
        travel = xp.maximum(xp.sqrt(xp.sum(way * way, axis=1)) / self._speed, xp.abs(turn - turned) / self._turn_step)
        duration = xp.maximum(xp.round(xp.maximum(xp.take(self._least, self._phase), travel)), 1.0)
        self._elapsed = xp.where(done, 0.0, self._elapsed)
        self._duration = xp.where(done, duration, self._duration)
        self._start = xp.where(done[:, None], start, self._start)
        self._goal = xp.where(done[:, None], goal, self._goal)
        self._turns = xp.where(done[:, None], xp.stack([turned, turn], axis=1), self._turns)

    def _phase_goals(self, qpos: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the hand's required position at the end of each world's phase, and its rotation about the vertical.

        Positions are ``(nworld, 3)`` in m, rotations ``(nworld,)`` in rad, for the worlds' positions ``qpos``
        ``(nworld, nq)``.
        """
        xp, task, now = self._xp, self._task, self._planned.position
        row, lift, kept = task.object.qpos, self._lift, self._turns[:, 1]
        centre, quaternion = qpos[:, row : row + 3], qpos[:, row + 3 : row + 7]
        turn = self._frame.alignment_turn(centre, _yaw(quaternion), _YAW_PERIOD)
        ground = self._ground_height(centre)
        grasp = _set_height(centre - self._finger_offset(centre, turn), self._grasp_height + ground)
        over_target = now + _set_height(self._target - centre, 0.0)
        sink = self._rest + self._rise + _DROP - centre[:, 2]
        goals = {
            ExpertPhase.APPROACH: _set_height(grasp, self._hover + ground),
            ExpertPhase.DESCEND: grasp,
            ExpertPhase.CLOSE: now,
            ExpertPhase.LIFT: _set_height(now, lift),
            ExpertPhase.CARRY: _set_height(over_target, lift),
            ExpertPhase.LOWER: _set_height(over_target, now[:, 2] + sink),
            ExpertPhase.OPEN: now,
            ExpertPhase.RETREAT: _set_height(now - self._finger_offset(now, kept), lift),
            ExpertPhase.HOME: xp.zeros_like(now) + self._home_position,
        }
        goal = now
        for phase, value in goals.items():
            goal = xp.where((self._phase == phase)[:, None], value, goal)
        aim = xp.where(self._phase <= ExpertPhase.DESCEND, turn, kept)
        return goal, xp.where(self._phase == ExpertPhase.HOME, 0.0, aim)

    def _ground_height(self, position: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the change of the table's height below positions ``(nworld, 3)``, as ``(nworld,)`` in m.

        The change is relative to the nominal twin.
        """
        way = position - self._target
        return self._rise + self._slope[:, 0] * way[:, 0] + self._slope[:, 1] * way[:, 1]

    def _finger_offset(self, position: NDArray[np.float64], turn: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the offset ``(nworld, 3)`` in m that keeps a fixed finger clear of the object.

        It is zero if both fingers move.

        Args:
            position: position of the hand in the world frame, ``(nworld, 3)`` in m.
            turn: additional rotation of the hand about the vertical, ``(nworld,)`` in rad.
        """
        return self._clearance[:, None] * self._frame.opening_direction(position, turn)


def _minimum_jerk(fraction: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the minimum-jerk profile from 0 to 1 (Flash and Hogan, "The coordination of arm movements", 1985)."""
    return fraction * fraction * fraction * (10.0 + fraction * (6.0 * fraction - 15.0))


def _set_height(position: NDArray[np.float64], height: float | NDArray[np.float64]) -> NDArray[np.float64]:
    xp = array_namespace(position)
    return xp.stack([position[:, 0], position[:, 1], 0.0 * position[:, 2] + height], axis=1)


def _yaw(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rotations about the vertical, in rad, of quaternions wxyz ``(nworld, 4)``."""
    xp = array_namespace(quaternion)
    w, x, y, z = (quaternion[:, i] for i in range(4))
    return xp.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
