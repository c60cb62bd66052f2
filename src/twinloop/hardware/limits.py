"""Compute safe limits of robot motion: range, speed, acceleration, torque, and clearance.

Clearance is checked with computed distances between geoms, because MuJoCo's contacts within a margin miss some pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.joint_limits import JointLimits
from twinloop.core.records import freeze_fields
from twinloop.twin import Twin
from twinloop.twin.quantities.actuators import NO_CURVE

Array = NDArray[np.float64]


class ProximityPairs:
    """Search for pairs of geoms that are closer than their required distance at some ``qpos``.

    MuJoCo's contacts do not report all of them: diagonally placed boxes have no contact within their margin (MuJoCo
    4.0: 9 mm apart under a margin of 25 mm). Therefore bounding spheres select the candidate pairs, and
    ``mj_geomDistance`` computes their distance.

    Args:
        model: model of the scene.
        keep: required distance of a pair in m, ``(ngeom, ngeom)`` or one for all; −inf for pairs that may touch. Pairs
            that the engine never collides (neighbouring links, excluded bodies, visual geoms, two fixed geoms) are
            ignored.
    """

    def __init__(self, model: mujoco.MjModel, keep: ArrayLike) -> None:
        self._model, self._data = model, mujoco.MjData(model)
        kept = np.broadcast_to(np.asarray(keep, dtype=np.float64), (model.ngeom, model.ngeom))
        self._pairs = np.argwhere(np.triu(_collision_mask(model) & np.isfinite(kept), k=1))
        self._keep = kept[tuple(self._pairs.T)]
        radii = np.where(model.geom_rbound > 0, model.geom_rbound, np.inf)  # a plane has no bounding sphere
        self._reach = radii[self._pairs].sum(axis=1) + self._keep
        self._planes = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE

    @property
    def data(self) -> mujoco.MjData:
        """MuJoCo data of the scene at the position that was set last."""
        return self._data

    def set_position(self, qpos: Array) -> None:
        """Set the positions ``qpos`` ``(nq,)`` of the scene, and compute the poses of its geoms."""
        self._data.qpos[:] = qpos
        mujoco.mj_kinematics(self._model, self._data)

    def find_close_pairs(self) -> Iterator[tuple[int, int, float, float]]:
        """Yield each pair closer than required: ids of both geoms, their distance and the required distance in m.

        Distances of penetrating geoms are negative; only their sign is reliable.
        """
        for at in np.flatnonzero(self._may_be_near()):
            first, second = (int(geom) for geom in self._pairs[at])
            keep = float(self._keep[at])
            distance = mujoco.mj_geomDistance(self._model, self._data, first, second, keep, None)
            if distance < keep:
                yield first, second, distance, keep

    def name(self, geom: int) -> str:
        """Return the name of a geom, or a description with the name of its body."""
        body = self._model.body(int(self._model.geom_bodyid[geom])).name
        return self._model.geom(geom).name or f"a shape of {body}"

    def _may_be_near(self) -> NDArray[np.bool_]:
        first, second = self._pairs.T
        apart = np.linalg.norm(self._data.geom_xpos[first] - self._data.geom_xpos[second], axis=1)
        near = apart < self._reach
        for one, other in ((first, second), (second, first)):
            plane = self._planes[one]
            normal = self._data.geom_xmat[one[plane]][:, 2::3]
            offset = self._data.geom_xpos[other[plane]] - self._data.geom_xpos[one[plane]]
            above = np.sum(normal * offset, axis=1) - self._model.geom_rbound[other[plane]]
            near[plane] = above < self._keep[plane]
        return near


def _collision_mask(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Return whether the engine may collide two geoms, ``(ngeom, ngeom)``; rules of MuJoCo's manual, "Collision"."""
    body = model.geom_bodyid
    weld = model.body_weldid[body]
    above = model.body_weldid[model.body_parentid[weld]]
    types, affinities = model.geom_contype, model.geom_conaffinity
    allowed = ((types[:, None] & affinities) | (affinities[:, None] & types)) != 0
    allowed &= weld[:, None] != weld
    if not model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_FILTERPARENT:
        related = (weld[:, None] == above) | (above[:, None] == weld)
        allowed &= ~(related & (weld[:, None] != 0) & (weld != 0))
    for signature in model.exclude_signature:
        one, other = int(signature) >> 16, int(signature) & 0xFFFF
        apart = (body == one)[:, None] & (body == other)
        allowed &= ~(apart | apart.T)
    for one, other in zip(model.pair_geom1, model.pair_geom2, strict=True):
        allowed[one, other] = allowed[other, one] = True
    return allowed


# Minimum distance of a path from everything, m: an arm sags by two degrees under its own weight.
CLEARANCE = 0.025
# Part of each joint's half range that stays unused at either end: a calibration by hand is off by one to two degrees
# of 100 (LeRobot's sweep), and an arm overshoots.
RANGE_MARGIN = 0.05
# The same for the commands of a policy, which must reach as much of the range as is safe.
COMMAND_MARGIN = 0.02
# Shares of the servo's capability. 0.6 of the STS3215's no-load speed (5.3 rad/s) is 3.2 rad/s, the fastest that a
# person moved one (so101_pick_place_tape: 200 deg/s); above it the motor has no torque left to follow a command.
SPEED_SHARE, ACCELERATION_SHARE = 0.6, 0.6
# Root mean square over stall torque. Heat goes with its square; hobby servos are rated at a third to a half of stall.
TORQUE_SHARE = 0.5
# A twin may state the no-load speed of a motor. If a damping is a motor's back-EMF, it gives that speed; it is used
# if this is plausible for a servo, up to 10 rad/s (STS3215 4.7 to 5.3, XL330 10.8). Otherwise: ratings of collaborative
# arms (Franka: 2.2 to 2.6 rad/s, 7.5 to 15 rad/s²), a slide of a parallel hand in m/s, and for an arm that swings
# freely under torques twice the speed of a half-metre pendulum falling from upright; our choice.
_SERVO_SPEED, _SPEED, _SLIDE_SPEED, _ACCELERATION, _SWING_SPEED = 10.0, 2.0, 0.2, 10.0, 20.0


@dataclass(frozen=True, kw_only=True)
class MotionLimits:
    """Limits of commands and motion, per joint ``(n,)`` in SI units.

    Attributes:
        low: lower bound of the commands: positions, velocities or torques, as the robot's control.
        high: upper bound of the commands.
        speed: largest speed of commands and motion (with torque control only of the motion).
        acceleration: largest acceleration of commands and motion (with torque control only of the motion).
        torque: largest root mean square of each drive's torque.
        clearance: minimum distance of the robot from everything else, in m.
    """

    low: Array
    high: Array
    speed: Array
    acceleration: Array
    torque: Array
    clearance: float = CLEARANCE

    def __post_init__(self) -> None:
        freeze_fields(self, "low", "high", "speed", "acceleration", "torque")

    def largest_usage(self, commands: ArrayLike, hz: float) -> Array:
        """Return the maximum of |speed| / limit and |acceleration| / limit in each series of commands; 1 is at a limit.

        Args:
            commands: series of T commands for n joints, ``(…, T, n)``; the result has shape ``(…,)``.
            hz: commands per second.
        """
        rate = np.diff(np.asarray(commands, dtype=np.float64), axis=-2) * hz
        speed = np.abs(rate) / self.speed
        acceleration = np.abs(np.diff(rate, axis=-2)) * hz / self.acceleration
        return np.maximum(speed.max(axis=(-2, -1)), acceleration.max(axis=(-2, -1)))


def motion_limits(twin: Twin, *, margin: float = RANGE_MARGIN, speed: float = SPEED_SHARE) -> MotionLimits:
    """Return motion limits computed from a twin's joint ranges, dampings, inertias and torques.

    Args:
        twin: the robot's twin.
        margin: share of each joint's half range left unused at either end.
        speed: speed limit of a servo as a fraction of its no-load speed. Its acceleration limit is the same fraction of
            torque / inertia in the home pose. Velocity commands have the range of their actuators instead.
    """
    torque, inertia, damping = _drive_torques(twin), _drive_inertias(twin), twin.model.dof_damping[twin.joint_qvel]
    swings, turns = twin.robot.control == "torque", twin.robot.control == "velocity"
    no_load = np.divide(torque, damping, out=np.full_like(torque, np.inf), where=damping > 0)
    stated = twin.column(twin.table(1), "actuator", "no_load_speed")[0]
    known = stated < NO_CURVE
    no_load = np.where(known, stated, no_load)
    servo = (known | (no_load < _SERVO_SPEED)) & _hinge_mask(twin)
    usual = _SWING_SPEED if swings else np.where(_hinge_mask(twin), _SPEED, _SLIDE_SPEED)
    fastest = np.where(servo, speed * no_load, usual)
    given = speed / SPEED_SHARE * ACCELERATION_SHARE * torque / inertia
    hardest = np.where(servo, given, np.inf if swings else np.minimum(given, _ACCELERATION))
    if swings:
        low, high = TORQUE_SHARE * twin.model.actuator_ctrlrange.T
    elif turns:
        limited = twin.model.actuator_ctrllimited.astype(bool)[:, None]
        low, high = np.where(limited, twin.model.actuator_ctrlrange, [-np.inf, np.inf]).T
        fastest, hardest = np.maximum(-low, high), given
    else:
        low, high = twin.joint_ranges.T
        low, high = low + margin * (high - low) / 2, high - margin * (high - low) / 2
        home = twin.home()[1]
        low, high = np.minimum(low, home), np.maximum(high, home)
    return MotionLimits(low=low, high=high, speed=fastest, acceleration=hardest, torque=TORQUE_SHARE * torque)


def command_limits(
    twin: Twin,
    hz: float,
    *,
    margin: float = COMMAND_MARGIN,
    speed: float = SPEED_SHARE,
    acceleration: float = ACCELERATION_SHARE,
) -> JointLimits:
    """Return the limits of the position commands of a policy or an operator.

    Args:
        twin: the robot's twin.
        hz: commands per second.
        margin: share of each joint's half range left unused at either end. The gripper uses its full range, to close on
            objects.
        speed: speed limit as a share of a servo's no-load speed; other drives' limits change in proportion to it.
        acceleration: acceleration limit as a share of torque / inertia in the home pose.
    """
    motion, hand, (low, high) = motion_limits(twin, margin=margin), gripper_mask(twin), twin.joint_ranges.T
    return JointLimits(
        low=np.where(hand, low, motion.low),
        high=np.where(hand, high, motion.high),
        speed=motion.speed * speed / SPEED_SHARE,
        acceleration=motion.acceleration * (acceleration / ACCELERATION_SHARE),
        dt=1.0 / hz,
    )


def gripper_mask(twin: Twin) -> NDArray[np.bool_]:
    """Return which of the robot's joints is the gripper's, ``(n,)``."""
    grip = twin.robot.gripper
    return np.array([grip is not None and joint == grip.joint for joint in twin.robot.joints])


def _drive_torques(twin: Twin) -> Array:
    """Return the largest torque of each drive, ``(n,)`` in N·m or N, infinite if unknown."""
    model = twin.model
    limited = model.actuator_forcelimited.astype(bool)
    torque = np.where(limited, np.abs(model.actuator_forcerange).max(axis=1), np.inf)
    if twin.robot.control == "torque":
        torque = np.minimum(torque, np.abs(model.actuator_ctrlrange).max(axis=1))
    return torque


def _drive_inertias(twin: Twin) -> Array:
    """Return the inertia at each drive in the home pose, including its rotor, ``(n,)`` in kg·m² or kg."""
    data = mujoco.MjData(twin.model)
    data.qpos[:] = twin.home()[0]
    mujoco.mj_forward(twin.model, data)
    matrix = np.zeros((twin.model.nv, twin.model.nv))
    mujoco.mj_fullM(twin.model, data, matrix)
    return np.diag(matrix)[twin.joint_qvel]


def _hinge_mask(twin: Twin) -> NDArray[np.bool_]:
    joints = [twin.model.joint(name) for name in twin.robot.joints]
    return np.array([joint.type[0] == mujoco.mjtJoint.mjJNT_HINGE for joint in joints])


class ClearanceCheck:
    """Check of arm poses for collisions: pairs of geoms closer than ``clearance`` (m) at a pose, but not at home.

    All joints except the robot's are at home.
    """

    def __init__(self, twin: Twin, clearance: float = CLEARANCE) -> None:
        self._joints, self._near = twin.joint_qpos, ProximityPairs(twin.model, clearance)
        self._qpos, _ = twin.home()
        self._usual = self.find_close_pairs(self._qpos[self._joints])

    def find_close_pairs(self, pose: Array) -> set[tuple[int, int]]:
        """Return the pairs of geom ids closer than the clearance, at a pose ``(n,)`` of the robot's n joints."""
        return {(first, second) for first, second, *_ in self._iterate_close_pairs(pose)}

    def is_free(self, pose: Array) -> bool:
        """Return whether no pair of geoms is close at a pose ``(n,)``, except pairs that are close at home."""
        return all((first, second) in self._usual for first, second, *_ in self._iterate_close_pairs(pose))

    def find_first_contact(self, poses: Array) -> tuple[int, str] | None:
        """Return the index of the first pose with a close pair of geoms, and their names; None if all poses are free.

        ``poses`` are T poses of the robot's n joints, ``(T, n)``.
        """
        for number, pose in enumerate(poses):
            for first, second, *_ in self._iterate_close_pairs(pose):
                if (first, second) not in self._usual:
                    return number, f"{self._near.name(first)} and {self._near.name(second)}"
        return None

    def _iterate_close_pairs(self, pose: Array) -> Iterator[tuple[int, int, float, float]]:
        qpos = self._qpos.copy()
        qpos[self._joints] = pose
        self._near.set_position(qpos)
        return self._near.find_close_pairs()
