"""Read servo presets, write their numbers into a model, and add actuators to a URDF."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import mujoco
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.yaml_documents import load_yaml
from twinloop.twin.spec import RobotSpec, describe_errors

_PRESETS = Path(__file__).with_name("servos.yaml")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourcedNumber(_Strict):
    """A number with its source."""

    value: float
    source: str


class ServoSpec(_Strict):
    """One kind of servo or joint drive; SI units, at the output of its gear. Unknown values are None.

    A position servo with ``kt`` and ``resistance`` follows the voltage equation at the top of ``servos.yaml``: back-EMF
    kt²/R is part of ``damping``. ``no_load_speed`` and ``gear_ratio`` are information for tests
    and readers only.
    """

    name: str
    description: str
    control: Literal["position", "torque"]
    torque_limit: SourcedNumber
    damping: SourcedNumber
    frictionloss: SourcedNumber
    armature: SourcedNumber
    voltage: SourcedNumber | None = None
    kt: SourcedNumber | None = None
    resistance: SourcedNumber | None = None
    kp: SourcedNumber | None = None
    firmware_gain: SourcedNumber | None = None
    viscous: SourcedNumber | None = None
    no_load_speed: SourcedNumber | None = None
    encoder_counts: SourcedNumber | None = None
    gear_ratio: SourcedNumber | None = None
    backlash: SourcedNumber | None = None
    thermal_resistance: SourcedNumber | None = None
    thermal_time: SourcedNumber | None = None

    @property
    def motor(self) -> MotorSpec | None:
        """Motor constants, or None if the preset lacks one of them."""
        if self.voltage is None or self.kt is None or self.resistance is None:
            return None
        return MotorSpec(voltage=self.voltage.value, kt=self.kt.value, resistance=self.resistance.value)


@dataclass(frozen=True, kw_only=True)
class MotorSpec:
    """A DC motor behind its gear: supply ``voltage`` (V), ``kt`` (N·m/A, V·s/rad), ``resistance`` (ohm)."""

    voltage: float
    kt: float
    resistance: float


@cache
def servo_presets() -> Mapping[str, ServoSpec]:
    """Return all presets by name."""
    rows: dict[str, dict[str, Any]] = load_yaml(_PRESETS)
    presets = {}
    for name, row in rows.items():
        whole = {**rows.get(row.get("base", ""), {}), **row, "name": name}
        whole.pop("base", None)
        try:
            presets[name] = ServoSpec.model_validate(whole)
        except ValidationError as error:
            raise InputError(describe_errors(error, where=f"{_PRESETS.name}: {name}", model=ServoSpec)) from error
    return presets


def robot_servos(robot: RobotSpec | None, *, where: str) -> tuple[ServoSpec | None, ...]:
    """Return the preset of each joint of a robot, None for a joint without one.

    Raises:
        UnknownNameError: a preset or a joint does not exist.
        InputError: a torque drive under position control, or a servo under torque control.
    """
    if robot is None:
        return ()
    named = robot.servo if isinstance(robot.servo, dict) else {"*": robot.servo} if robot.servo else {}
    for joint in named:
        if joint != "*" and joint not in robot.joints:
            raise UnknownNameError("joint", joint, robot.joints, where=f"{where}: robot.servo")
    for name in named.values():
        if name not in servo_presets():
            raise UnknownNameError("servo", name, servo_presets(), where=f"{where}: robot.servo")
    chosen = [named.get(joint, named.get("*")) for joint in robot.joints]
    servos = tuple(servo_presets()[name] if name else None for name in chosen)
    for servo in servos:
        if servo is not None and servo.control != robot.control:
            raise InputError(
                f"{where}: the servo {servo.name} takes {servo.control} commands, robot.control is {robot.control}. "
                "Choose another preset, or set robot.control."
            )
    return servos


def apply_servos(mjspec: mujoco.MjSpec, robot: RobotSpec, servos: tuple[ServoSpec | None, ...]) -> None:
    """Write presets into a model's joints and actuators; a joint without an actuator gets one."""
    joints = {joint.name: joint for joint in mjspec.joints}
    actuators = {actuator.name: actuator for actuator in mjspec.actuators}
    added = False
    for joint_name, name, servo in zip(robot.joints, robot.actuator_names, servos, strict=True):
        if servo is None or joint_name not in joints:
            continue
        joint = joints[joint_name]
        if name not in actuators:
            added = True
            actuators[name] = mjspec.add_actuator(name=name, target=joint_name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        _write_servo(actuators[name], joint, servo)
    if added:  # the explicit integrator is unstable for a servo's damping of a light link
        mjspec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST


def _write_servo(actuator: mujoco.MjsActuator, joint: mujoco.MjsJoint, servo: ServoSpec) -> None:
    joint.damping = np.array([servo.damping.value, 0.0, 0.0])
    joint.frictionloss, joint.armature = servo.frictionloss.value, servo.armature.value
    limit = servo.torque_limit.value
    actuator.forcelimited, actuator.forcerange = mujoco.mjtLimited.mjLIMITED_TRUE, [-limit, limit]
    actuator.gaintype = mujoco.mjtGain.mjGAIN_FIXED
    if servo.kp is None:
        actuator.biastype = mujoco.mjtBias.mjBIAS_NONE
        actuator.gainprm[0] = 1.0
        command = [-limit, limit]
    else:
        actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
        actuator.gainprm[0], actuator.biasprm[:3] = servo.kp.value, [0.0, -servo.kp.value, 0.0]
        command = list(joint.range)
    if command[0] < command[1]:
        actuator.ctrllimited, actuator.ctrlrange = mujoco.mjtLimited.mjLIMITED_TRUE, command


def preset_nominals(robot: RobotSpec | None, servos: tuple[ServoSpec | None, ...]) -> dict[str, float]:
    """Return nominal values of parameters that come from a preset instead of a model, by path."""
    if robot is None:
        return {}
    values = {}
    known = servos or (None,) * len(robot.joints)
    for joint, actuator, servo in zip(robot.joints, robot.actuator_names, known, strict=True):
        if servo is not None and servo.motor is not None:
            values[f"actuator/{actuator}/voltage"] = servo.motor.voltage
            values[f"actuator/{actuator}/torque_constant"] = servo.motor.kt
            values[f"actuator/{actuator}/resistance"] = servo.motor.resistance
        if servo is not None and servo.firmware_gain is not None:
            values[f"actuator/{actuator}/firmware_gain"] = servo.firmware_gain.value
        counts = robot.encoder_counts or (servo.encoder_counts.value if servo and servo.encoder_counts else None)
        if counts:
            values[f"sensor/{joint}/resolution"] = 2 * math.pi / counts
    return values


# Position error at which a servo reaches its effort limit: between an SO-101's 0.37 rad (3.25 N·m at 8.9 N·m/rad) and
# a Panda's 0.02 rad (87 N·m at 4500 N·m/rad). An initial value: `identify` estimates kp from a log.
FULL_EFFORT_ERROR = 0.1
# Smallest 1/natural frequency of a servo, in physics steps. MuJoCo integrates stiffness explicitly, which is unstable
# from half a step.
LEAST_STEPS = 4.0


def add_servos(mjspec: mujoco.MjSpec, *, control: str = "position") -> None:
    """Add an actuator with the joint's name to every hinge and slide that has an effort limit and no actuator.

    A position servo is critically damped in the zero pose, and its force range is the effort limit. MuJoCo reads that
    limit as a limit of the joint, which would hide a changed torque limit of the actuator, so it is moved to the
    actuator. With ``control`` ``torque`` the actuator is a motor with torques up to the limit. A joint that mimics
    another gets no actuator.
    """
    if mjspec.actuators:
        return
    model = mjspec.copy().compile()
    mimics = {equality.name1 for equality in mjspec.equalities if equality.type == mujoco.mjtEq.mjEQ_JOINT}
    scalar = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
    added = False
    for joint in mjspec.joints:
        effort = float(joint.actfrcrange[1])
        if joint.type not in scalar or effort <= 0 or not joint.name or joint.name in mimics:
            continue
        joint.actfrclimited, joint.actfrcrange = mujoco.mjtLimited.mjLIMITED_FALSE, np.zeros(2)
        actuator = mjspec.add_actuator(
            name=joint.name,
            target=joint.name,
            trntype=mujoco.mjtTrn.mjTRN_JOINT,
            forcelimited=mujoco.mjtLimited.mjLIMITED_TRUE,
            forcerange=[-effort, effort],
        )
        if control == "torque":
            _set_limit(actuator, -effort, effort)
        else:
            inertia = float(model.dof_M0[model.joint(joint.name).dofadr[0]])  # inertia that it moves, at the zero pose
            fastest = inertia / (LEAST_STEPS * mjspec.option.timestep) ** 2
            _set_position_servo(actuator, joint, min(effort / FULL_EFFORT_ERROR, fastest))
        added = True
    if added:
        # A URDF names no integrator; the explicit one is unstable for a servo's damping of a light link.
        mjspec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST


def _set_position_servo(actuator: mujoco.MjsActuator, joint: mujoco.MjsJoint, kp: float) -> None:
    actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
    # A positive third entry is a damping ratio; the compiler computes the gain from it and the joint's inertia.
    actuator.gainprm[0], actuator.biasprm[1], actuator.biasprm[2] = kp, -kp, 1.0
    if joint.range[0] < joint.range[1]:
        _set_limit(actuator, *joint.range)


def _set_limit(actuator: mujoco.MjsActuator, low: float, high: float) -> None:
    actuator.ctrllimited, actuator.ctrlrange = mujoco.mjtLimited.mjLIMITED_TRUE, [low, high]
