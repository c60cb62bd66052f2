"""Read servo presets, write their values into a model, and add actuators to a URDF model."""

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
    """A value with its source, for example a data sheet or a paper."""

    value: float
    source: str


class ServoSpec(_Strict):
    """Preset of one type of servo or joint drive, in SI units at the output of its gear; None for unknown values.

    A position servo with ``kt`` and ``resistance`` is modelled as a DC motor with resistance R, whose voltage is
    proportional to the position error: torque = kt/R · voltage − kt²/R · speed. Its ``damping`` therefore includes the
    back-EMF term kt²/R. ``no_load_speed`` and ``gear_ratio`` are not written into the model; they are information for
    tests and readers.

    Attributes:
        name: Name of the preset.
        description: Manufacturer, model and settings.
        control: Whether the drive accepts position or torque commands.
        torque_limit: Largest torque in N·m.
        damping: Viscous torque per speed in N·m·s/rad, including back-EMF.
        frictionloss: Coulomb friction in N·m.
        armature: Inertia of rotor and gear, reflected to the output, in kg·m².
        voltage: Supply voltage in V.
        kt: Torque constant in N·m/A.
        resistance: Electrical resistance in ohm.
        kp: Gain of the position controller in N·m/rad.
        firmware_gain: Position gain in units of the firmware.
        viscous: Damping without back-EMF in N·m·s/rad.
        no_load_speed: Speed without load in rad/s.
        encoder_counts: Encoder counts per turn.
        gear_ratio: Turns of the motor per turn of the output.
        backlash: Total backlash in rad.
        thermal_resistance: Final temperature rise of the winding per watt of heat, in K/W.
        thermal_time: Time constant of the temperature rise in s.
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
        """Constants of the DC motor, or None if the preset lacks voltage, torque constant or resistance."""
        if self.voltage is None or self.kt is None or self.resistance is None:
            return None
        return MotorSpec(voltage=self.voltage.value, kt=self.kt.value, resistance=self.resistance.value)


@dataclass(frozen=True, kw_only=True)
class MotorSpec:
    """Constants of a DC motor at the output of its gear.

    Attributes:
        voltage: Supply voltage in V.
        kt: Torque constant in N·m/A, which equals the back-EMF constant in V·s/rad.
        resistance: Electrical resistance in ohm.
    """

    voltage: float
    kt: float
    resistance: float


@cache
def servo_presets() -> Mapping[str, ServoSpec]:
    """Return all servo presets of ``servos.yaml`` by name."""
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
    """Return the servo preset of each joint of a robot, in the order of its joints; None for a joint without a preset.

    Args:
        robot: Robot section of the twin's YAML, or None if the twin has no robot.
        where: Name of the twin or its file, for error messages.

    Raises:
        UnknownNameError: If a preset or a joint does not exist.
        InputError: If a preset accepts another kind of commands than the robot.
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
    """Write servo presets into a model's joints and actuators, in place; a joint without an actuator gets one.

    Args:
        mjspec: Model specification, changed in place.
        robot: Robot section of the twin's YAML.
        servos: Preset of each joint, in the order of ``robot.joints``; None for a joint that stays as in the model.
    """
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
    """Return the nominal values that come from servo presets instead of the model, by parameter name.

    They are supply voltage, torque constant, resistance, firmware gain and encoder resolution.

    Args:
        robot: Robot section of the twin's YAML, or None if the twin has no robot.
        servos: Preset of each joint, in the order of ``robot.joints``; None for a joint without a preset.
    """
    if robot is None:
        return {}
    values = {}
    presets = servos or (None,) * len(robot.joints)
    for joint, actuator, servo in zip(robot.joints, robot.actuator_names, presets, strict=True):
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
# rad/s (or m/s); speed error at which a velocity servo reaches its effort limit. Our choice: an initial value as above.
FULL_EFFORT_SPEED_ERROR = 0.1
# Smallest 1/natural frequency of a servo, in physics steps. MuJoCo integrates stiffness explicitly, which is unstable
# from half a step.
MIN_STEPS = 4.0


def add_servos(mjspec: mujoco.MjSpec, *, control: str = "position") -> None:
    """Add an actuator to every hinge or slide joint that has an effort limit, if the model has no actuators.

    The actuator has the joint's name, and the effort limit becomes its force range. MuJoCo reads the effort limit of a
    URDF as a limit of the joint. It is removed from the joint, because a larger torque limit of the actuator would
    otherwise have no effect. Joints that mimic another joint get no actuator.

    Args:
        mjspec: Model specification, changed in place.
        control: ``position`` for position servos, which are critically damped in the zero pose, ``velocity`` for
            velocity servos, or ``torque`` for motors.
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
        elif control == "velocity":
            actuator.set_to_velocity(effort / FULL_EFFORT_SPEED_ERROR)
        else:
            inertia = float(model.dof_M0[model.joint(joint.name).dofadr[0]])  # inertia that it moves, at the zero pose
            fastest = inertia / (MIN_STEPS * mjspec.option.timestep) ** 2
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
