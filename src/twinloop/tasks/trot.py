"""Trot with a quadruped whose legs have three hinges: a scripted controller without memory.

Two diagonal legs stand while the other two swing. The feet on the ground push with forces that hold the trunk level at
its height and give it the commanded velocity (virtual-model control: the least-squares forces of a wanted total force
and torque). The swinging feet move to where they will be ahead of their hips by half a stance of the commanded
velocity, corrected by the velocity's error (Raibert, "Legged Robots That Balance", 1986).

Joint torques become commands of position servos: command = position + (torque + kd · wanted speed) / kp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.simulate import Simulation
from twinloop.tasks.reaching import heading, nearest_turn
from twinloop.twin import Twin
from twinloop.twin.quantities.rotation import rotation_matrix

Array = NDArray[np.float64]

# All are our choice, found by hand on the library's robot, in worlds of seed 21.
_PERIOD_S = 1 / 3  # of a stride, half of which a foot is on the ground; the clock of the task turns once per 3 strides
_LIFT = 0.16  # height of a step in leg lengths
_PLACE_S = 0.25  # s: shift of a foothold per m/s of the velocity's error
_LEAD_S = 0.035  # s by which a swinging foot's command is ahead: the servos' lag kd / kp and half a control step
_RAMP = 0.1  # share of a stance over which a foot takes up and gives up its force
_EASE_S = 0.5  # s over which a command is reached
_DRIVE, _SINK = 2.0, 0.8  # forces in weights per m/s of the velocity's error, level and upwards
_RISE = 6.0  # force in weights per m of height
# Torques in weights times leg length, per rad of tilt, per rad/s of its rate, and per rad/s of a turning rate's error.
_LEVEL, _ROLL, _TURN = 0.95, 0.056, 0.1
_GRIP = 0.6  # largest friction that a foot uses
_STRONGEST = 2.0  # weights: largest force of a foot
_FASTEST = 8.0  # rad/s, of a wanted joint speed
_ARM = 0.25  # leg lengths: a torque of the least squares counts as the force that has it at this arm
_DAMPING, _SINGULAR = 0.01, 1e-6  # of the least squares, and of the legs' Jacobians in m/rad


@dataclass(frozen=True, kw_only=True)
class Legs:
    """Four legs of three hinges: about the trunk's x axis, and twice about y.

    Attributes:
        trunk: id of the trunk's body.
        qpos: indices in qpos of the joints, ``(4, 3)``.
        qvel: indices in qvel of the joints, ``(4, 3)``.
        actuator: indices of the actuators, ``(4, 3)``.
        hip: positions of the hips in the trunk's frame, ``(4, 3)`` in m.
        side: distance of the leg's plane from the hip to the left, ``(4,)`` in m.
        upper: length of the upper leg, in m.
        lower: length of the lower leg, in m.
        kp: stiffness of the servos, ``(4, 3)`` in N·m/rad.
        kd: damping of the servos, ``(4, 3)`` in N·m·s/rad.
    """

    trunk: int
    qpos: NDArray[np.intp]
    qvel: NDArray[np.intp]
    actuator: NDArray[np.intp]
    hip: Array
    side: Array
    upper: float
    lower: float
    kp: Array
    kd: Array

    @classmethod
    def of(cls, twin: Twin, trunk: str, feet: Sequence[str]) -> Legs:
        """Return the legs of a twin.

        Args:
            twin: the twin.
            trunk: name of the trunk's body.
            feet: names of the sites at the feet, in the order front right, front left, rear right, rear left.

        Raises:
            InputError: If the legs have other joints, are not driven by position servos, or have other lengths.
        """
        model, robot = twin.model, twin.robot
        lower = [int(model.site(foot).bodyid[0]) for foot in feet]
        upper = [int(model.body_parentid[body]) for body in lower]
        hips = [int(model.body_parentid[body]) for body in upper]
        bodies = np.array([hips, upper, lower]).T
        joints = model.body_jntadr[bodies]
        hinges = model.jnt_type[joints] == int(mujoco.mjtJoint.mjJNT_HINGE)
        axes = np.abs(model.jnt_axis[joints]) > 1.0 - 1e-6
        parents = model.body_parentid[np.array(hips)] == model.body(trunk).id
        names = [[model.joint(int(joint)).name for joint in leg] for leg in joints]
        driven = robot.control == "position" and all(name in robot.joints for leg in names for name in leg)
        along = np.array([0, 1, 1])
        if not (len(feet) == 4 and hinges.all() and axes[:, range(3), along].all() and parents.all() and driven):
            raise InputError(
                f"The expert of walk cannot move {twin.name}: each of its 4 feet ({', '.join(feet)}) must be a site at "
                f"the third of three hinges below {trunk}, about its x, y and y axis, with position servos. Train a "
                "policy by trial instead: twinloop reinforce."
            )
        actuator = np.array([[robot.joints.index(name) for name in leg] for leg in names])
        lengths = [-model.body_pos[np.array(lower), 2], -np.array([model.site(foot).pos[2] for foot in feet])]
        if any(np.ptp(length) > 1e-6 for length in lengths):
            raise InputError(f"The expert of walk cannot move {twin.name}: its legs have several lengths.")
        return cls(
            trunk=model.body(trunk).id,
            qpos=model.jnt_qposadr[joints],
            qvel=model.jnt_dofadr[joints],
            actuator=actuator,
            hip=model.body_pos[np.array(hips)],
            side=model.body_pos[np.array(upper), 1],
            upper=float(lengths[0][0]),
            lower=float(lengths[1][0]),
            kp=model.actuator_gainprm[actuator, 0],
            kd=-model.actuator_biasprm[actuator, 2],
        )

    @property
    def length(self) -> float:
        """Length of a straight leg in m."""
        return self.upper + self.lower

    def find_feet(self, joints: Array) -> Array:
        """Return the positions of the feet in the trunk's frame, ``(n, 4, 3)`` in m, at joints ``(n, 4, 3)`` in rad."""
        abduction, thigh, knee = np.moveaxis(joints, -1, 0)
        x = -self.upper * np.sin(thigh) - self.lower * np.sin(thigh + knee)
        down = -self.upper * np.cos(thigh) - self.lower * np.cos(thigh + knee)
        y = self.side * np.cos(abduction) - down * np.sin(abduction)
        return self.hip + np.stack([x, y, self.side * np.sin(abduction) + down * np.cos(abduction)], axis=-1)

    def jacobian(self, joints: Array) -> Array:
        """Return the derivatives of the feet's positions by their joints, ``(n, 4, 3, 3)`` in m/rad."""
        abduction, thigh, knee = np.moveaxis(joints, -1, 0)
        cos, sin = np.cos(abduction), np.sin(abduction)
        shin_x, shin_z = -self.lower * np.cos(thigh + knee), self.lower * np.sin(thigh + knee)
        leg_x, leg_z = shin_x - self.upper * np.cos(thigh), shin_z + self.upper * np.sin(thigh)
        arm = self.find_feet(joints) - self.hip
        by_abduction = np.stack([0.0 * cos, -arm[..., 2], arm[..., 1]], axis=-1)
        by_thigh = np.stack([leg_x, -leg_z * sin, leg_z * cos], axis=-1)
        by_knee = np.stack([shin_x, -shin_z * sin, shin_z * cos], axis=-1)
        return np.stack([by_abduction, by_thigh, by_knee], axis=-1)

    def solve(self, feet: Array) -> Array:
        """Return the joints ``(n, 4, 3)`` in rad, with knees to the back, at which the feet are nearest to positions.

        Args:
            feet: positions in the trunk's frame, ``(n, 4, 3)`` in m.
        """
        x, y, z = np.moveaxis(feet - self.hip, -1, 0)
        down = -np.sqrt(np.maximum(y**2 + z**2 - self.side**2, 1e-6))
        abduction = nearest_turn(np.arctan2(z, y) - np.arctan2(down, self.side))
        bend = (x**2 + down**2 - self.upper**2 - self.lower**2) / (2.0 * self.upper * self.lower)
        knee = -np.arccos(np.clip(bend, -1.0, 1.0))
        thigh = np.arctan2(-x, -down) - np.arctan2(self.lower * np.sin(knee), self.upper + self.lower * np.cos(knee))
        return np.stack([abduction, thigh, knee], axis=-1)


class TrotController:
    """Scripted controller that trots with a commanded velocity; see the module.

    A level frame has its origin at the trunk, its x axis to the front and its z axis upwards.

    Args:
        twin: the twin.
        legs: its legs.
        command: function that returns velocities forwards and to the left in m/s and turning rates in rad/s,
            ``(n, 3)``, from states of the worlds.
        clock: column of the time in a state.
        base: first indices of the trunk's pose in qpos and of its velocity in qvel.
    """

    def __init__(
        self, twin: Twin, legs: Legs, *, command: Callable[[Array], Array], clock: int, base: tuple[int, int]
    ) -> None:
        self._twin, self._legs, self._command, self._clock, (self._pose, self._speed) = twin, legs, command, clock, base
        model, data, home = twin.model, mujoco.MjData(twin.model), twin.home()[0]
        data.qpos[:] = home
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        self._weight = float(model.body_subtreemass[legs.trunk]) * float(np.linalg.norm(model.opt.gravity))
        self._centre = np.append(data.subtree_com[legs.trunk, :2] - data.xpos[legs.trunk, :2], 0.0)
        self._height = -float(legs.find_feet(home[legs.qpos][None])[..., 2].mean())
        self._below = legs.hip + np.stack([0.0 * legs.side, legs.side, np.full(4, -self._height)], axis=-1)
        self._low, self._high = twin.find_command_ranges()

    def __call__(self, simulation: Simulation) -> Array:
        """Return the commands of the next control step, ``(nworld, nu)``."""
        return self.label(simulation)

    def label(self, simulation: Simulation, held: Array | None = None, earlier: Array | None = None) -> Array:  # noqa: ARG002
        """Return the commands ``(nworld, nu)`` in the present states; see `tasks.protocol.StateExpert`."""
        state, qpos, qvel = (
            np.nan_to_num(part, posinf=0.0, neginf=0.0) for part in (simulation.state, simulation.qpos, simulation.qvel)
        )
        legs, time, joints = self._legs, state[:, self._clock], qpos[:, self._legs.qpos]
        wanted = self._command(state) * np.minimum(1.0, time / _EASE_S)[:, None]
        quaternion, speed = qpos[:, self._pose + 3 : self._pose + 7], qvel[:, self._speed : self._speed + 6]
        ahead = _turn_about_vertical(heading(quaternion))
        level = np.swapaxes(rotation_matrix(quaternion), 1, 2) @ ahead  # trunk from level frame
        velocity, rates = _into(ahead, speed[:, None, :3])[:, 0], _into(level, speed[:, None, 3:])[:, 0]
        feet, jacobian = _into(level, legs.find_feet(joints)), np.swapaxes(level, 1, 2)[:, None] @ legs.jacobian(joints)
        swinging, aims = self._swing(feet, self._find_footholds(velocity, wanted), time)
        force = self._push(feet, velocity, rates, wanted, level, time)
        torque = (np.swapaxes(jacobian, 2, 3) @ -force[..., None])[..., 0]
        moved = np.linalg.solve(jacobian + _SINGULAR * np.eye(3), -_find_drift(feet, wanted)[..., None])[..., 0]
        stood = joints + (torque + legs.kd * np.clip(moved, -_FASTEST, _FASTEST)) / legs.kp
        swung = legs.solve(_into(np.swapaxes(level, 1, 2), aims))
        command = np.empty((len(qpos), self._twin.model.nu))
        command[:, legs.actuator] = np.where(swinging[..., None], swung, stood)
        return np.clip(command, self._low, self._high)

    def _find_footholds(self, velocity: Array, wanted: Array) -> Array:
        """Return where the feet should touch down, ``(n, 4, 3)`` in m in the level frame."""
        correction = _PLACE_S * (velocity - [1.0, 1.0, 0.0] * wanted) * [1.0, 1.0, 0.0]
        return self._below + 0.25 * _PERIOD_S * _find_drift(self._below[None], wanted) + correction[:, None]

    def _swing(self, feet: Array, footholds: Array, time: Array) -> tuple[NDArray[np.bool_], Array]:
        """Return which legs swing, and where their feet should be after the servos' lag, ``(n, 4, 3)`` in m."""
        swinging, share = _find_phase(time + _LEAD_S)
        left = 0.5 * _PERIOD_S * (1.0 - share)
        aims = feet + (footholds - feet) * (_LEAD_S / (left + _LEAD_S))[..., None]
        aims[..., 2] = 0.5 * _LIFT * self._legs.length * (1.0 - np.cos(2.0 * np.pi * share)) - self._height
        return swinging, aims

    def _push(self, feet: Array, velocity: Array, rates: Array, wanted: Array, level: Array, time: Array) -> Array:
        """Return the forces of the ground on the feet, ``(n, 4, 3)`` in N in the level frame."""
        swinging, share = _find_phase(time + 0.5 / self._twin.control_hz)
        grip = np.where(swinging, 0.0, np.clip(np.minimum(share, 1.0 - share) / _RAMP, 0.0, 1.0))
        standing = grip.sum(axis=1)
        height = np.where(standing > 0.0, -(feet[..., 2] * grip).sum(axis=1) / np.maximum(standing, 1e-3), self._height)
        tilt = np.stack([level[:, 1, 2], -level[:, 0, 2]], axis=-1)
        force = np.column_stack(
            [_DRIVE * (wanted - velocity)[:, :2], 1.0 + _RISE * (self._height - height) - _SINK * velocity[:, 2]]
        )
        torque = np.column_stack([-_LEVEL * tilt - _ROLL * rates[:, :2], _TURN * (wanted - rates)[:, 2]])
        wrench = self._weight * np.concatenate([force, torque / _ARM], axis=1)
        arms = np.moveaxis(np.cross((feet - self._centre)[:, :, None], np.eye(3)), 3, 1) / (_ARM * self._legs.length)
        by_foot = np.concatenate([np.broadcast_to(np.eye(3)[:, None], arms.shape), arms], axis=1)
        pull = by_foot.reshape(len(feet), 6, 12)
        weighted = pull * np.repeat(grip, 3, axis=1)[:, None]
        shares = np.linalg.solve(weighted @ np.swapaxes(pull, 1, 2) + _DAMPING * np.eye(6), wrench[..., None])
        pushed = (np.swapaxes(weighted, 1, 2) @ shares)[..., 0].reshape(feet.shape)
        up = np.clip(pushed[..., 2], 0.0, _STRONGEST * self._weight)
        across = np.sqrt((pushed[..., :2] ** 2).sum(axis=-1))
        held = np.minimum(1.0, _GRIP * up / np.maximum(across, 1e-6))
        return np.concatenate([pushed[..., :2] * held[..., None], up[..., None]], axis=-1)


def _find_phase(time: Array) -> tuple[NDArray[np.bool_], Array]:
    """Return which legs swing, and the share of the swing or stance that has passed, ``(n, 4)``; times are ``(n,)``."""
    phase = (time[:, None] / _PERIOD_S + [0.0, 0.5, 0.5, 0.0]) % 1.0
    swinging = phase >= 0.5
    return swinging, 2.0 * phase - swinging


def _find_drift(places: Array, wanted: Array) -> Array:
    """Return the velocities at which places ``(n, 4, 3)`` of the level frame move over the ground, in m/s."""
    turning = wanted[:, None, 2]
    forward, left = (wanted[:, None, axis] for axis in range(2))
    return np.stack(
        [forward - turning * places[..., 1], left + turning * places[..., 0], 0.0 * turning + 0.0 * places[..., 2]],
        axis=-1,
    )


def _turn_about_vertical(yaw: Array) -> Array:
    """Return the rotation matrices ``(n, 3, 3)`` about the vertical by angles ``(n,)`` in rad."""
    cos, sin, zero = np.cos(yaw), np.sin(yaw), 0.0 * yaw
    rows = [[cos, -sin, zero], [sin, cos, zero], [zero, zero, zero + 1.0]]
    return np.moveaxis(np.array(rows), 2, 0)


def _into(rotation: Array, vectors: Array) -> Array:
    """Return vectors ``(n, k, 3)`` in the frame whose axes are the columns of rotations ``(n, 3, 3)``.

    A product of matrices in another memory layout has other rounding errors, which would depend on n.
    """
    return np.array(vectors, order="C") @ np.array(rotation, order="C")
