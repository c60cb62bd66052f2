"""Model backlash and elasticity of gears by splitting every robot joint into a motor joint and a link joint.

The motor side is a separate body on the same axis, named ``JOINT/motor``. It gets the servo, friction, damping and
reflected inertia (armature). The link side keeps the joint's name, bodies, geoms and limits, so that readings, tasks
and kinematics do not change. A fixed tendon between the two sides has the length link position − motor position.

Rigid gears limit the tendon's length to half the backlash in both directions. Within the backlash the two sides move
freely; at the limits MuJoCo's solver couples them implicitly, for any mass of the link. Elastic gears use a tendon
spring that has no force within the backlash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.twin.quantities.joints import GEAR, MOTOR
from twinloop.twin.servos import ServoSpec
from twinloop.twin.spec import RobotSpec

# A body needs some mass to compile; the inertia of the motor side is the joint's armature, its weight is negligible.
_ROTOR_MASS, _ROTOR_INERTIA = 1e-6, 1e-9
# Damping of the grease between the flanks: the 0.01 N·m·s/rad of published backlash joints for such servos.
_GREASE = 0.01
# Flanks as stiff as the physics step allows: a time constant of two steps is MuJoCo's limit for stability.
# The contact is soft at first and stiffens within 0.2 mrad, like round flanks. If the flanks were stiff at once, a very
# light link would rebound, its bearing's friction would stop it within one step, and in the next step the motor would
# drive the flank 1.7 mrad deep. On the SO-101's jaw, 23 samples in 15 s then exceed 0.5 mrad, instead of 8 samples of
# at most 0.9 mrad.
_FLANK_STEPS, _FLANK_IMPEDANCE = 2.2, (0.9, 0.999, 2e-4, 0.5, 2.0)
_LEAST_PLAY = 1e-9  # rad or m; MuJoCo does not compile an empty range
# Share of a joint's dry friction that is in the output bearing, on the link side; our choice. If it were zero, an
# unloaded link would move freely from flank to flank.
BEARING = 0.2
_HARDEST = 0.9999  # MuJoCo's largest impedance, mjMAXIMP
_WIND_UP_DAMPING = 0.05  # damping ratio of an elastic gear against its two inertias; our choice for metal gears
# Largest natural frequency of an elastic gear times the physics step, in rad. MuJoCo integrates springs explicitly,
# which is stable up to 2.
_LARGEST_PHASE = 1.0


@dataclass(frozen=True, kw_only=True)
class JointGear:
    """Gear between the motor and the link of a joint.

    Attributes:
        backlash: Total backlash, from one limit to the other, in rad or m.
        stiffness: Stiffness of an elastic gear in N·m/rad or N/m; None for a rigid gear.
    """

    backlash: float
    stiffness: float | None = None


def robot_gears(robot: RobotSpec | None, servos: Sequence[ServoSpec | None], *, where: str) -> dict[str, JointGear]:
    """Return the gear of every robot joint by joint name; empty if the robot section has no ``gears``.

    Args:
        robot: Robot section of the twin's YAML, or None if the twin has no robot.
        servos: Servo preset of each joint, in the order of ``robot.joints``; None for a joint without a preset.
        where: Name of the twin or its file, for error messages.

    Raises:
        UnknownNameError: If ``gears`` names a joint that does not exist.
        InputError: If neither ``gears`` nor the servo preset gives the backlash of a joint.
    """
    if robot is None or robot.gears is None:
        return {}
    play = _values_by_joint(robot.gears.backlash, robot, where)
    stiffness = _values_by_joint(robot.gears.stiffness, robot, where)
    gears = {}
    for joint, servo in zip(robot.joints, servos, strict=True):
        preset = servo.backlash.value if servo is not None and servo.backlash is not None else None
        value = play.get(joint, preset)
        if value is None:
            raise InputError(
                f"{where}: the backlash of the gear of {joint} is unknown. Give robot.gears.backlash in rad or m, "
                "or name a servo whose preset has it."
            )
        gears[joint] = JointGear(backlash=value, stiffness=stiffness.get(joint))
    return gears


def _values_by_joint(given: float | dict[str, float] | None, robot: RobotSpec, where: str) -> dict[str, float]:
    named = given if isinstance(given, dict) else {} if given is None else {"*": given}
    for joint in named:
        if joint != "*" and joint not in robot.joints:
            raise UnknownNameError("joint", joint, robot.joints, where=f"{where}: robot.gears")
    return {joint: named.get(joint, named.get("*", 0.0)) for joint in robot.joints if joint in named or "*" in named}


def add_gears(
    mjspec: mujoco.MjSpec, gears: Mapping[str, JointGear], *, bearing: float = BEARING, where: str = ""
) -> None:
    """Split joints of a model into a motor side and a link side, in place.

    Keyframes are converted too, with every gear in the middle of its backlash.

    Args:
        mjspec: Model specification, changed in place.
        gears: Gears by joint name.
        bearing: Share of the joint's dry friction that is on the link side, from 0 to 1.
        where: Name of the twin, for error messages.

    Raises:
        InputError: If an elastic gear is too stiff for the physics step.
    """
    plain = mjspec.compile()
    keys = [(key.name, plain.key(key.name).qpos.copy(), key) for key in mjspec.keys]
    keyframes = [(name, qpos, _read_key_fields(key)) for name, qpos, key in keys]
    for key in list(mjspec.keys):
        mjspec.delete(key)  # a keyframe lists every position, and there are more now
    for name, gear in gears.items():
        _split_joint(mjspec, plain, name, bearing)
        _couple_sides(mjspec, plain, name, gear, where)
    geared = mjspec.compile()
    for name, qpos, attributes in keyframes:
        mjspec.add_key(name=name, qpos=convert_qpos_to_geared(geared, plain, qpos), **attributes)


def convert_qpos_to_geared(
    geared: mujoco.MjModel, plain: mujoco.MjModel, qpos: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Convert positions of the model without gears to the model with gears, each in the middle of its backlash.

    Args:
        geared: Compiled model with gears.
        plain: Compiled model without gears.
        qpos: Positions of ``plain``, shape ``(plain.nq,)``.

    Returns:
        Positions of ``geared``, shape ``(geared.nq,)``.
    """
    result = geared.qpos0.copy()
    for i in range(plain.njnt):
        name = plain.joint(i).name
        source = slice(plain.jnt_qposadr[i], _qpos_end(plain, i))
        for joint_name in (name, MOTOR.format(name)):
            index = mujoco.mj_name2id(geared, mujoco.mjtObj.mjOBJ_JOINT, joint_name)
            if index >= 0:
                result[geared.jnt_qposadr[index] : _qpos_end(geared, index)] = qpos[source]
    return result


def _read_key_fields(key: mujoco.MjsKey) -> dict[str, NDArray[np.float64] | float]:
    """Return a keyframe's time, activations, controls and mocap poses, as arguments of `mujoco.MjSpec.add_key`.

    The keyframe is added again after joints were split into a motor side and a link side (the model with gears).
    Positions are omitted because `convert_qpos_to_geared` converts them. Velocities are omitted and are then zero.
    """
    rest = {name: np.array(getattr(key, name), dtype=np.float64) for name in ("act", "ctrl", "mpos", "mquat")}
    return {"time": key.time, **{name: values for name, values in rest.items() if values.size}}


def _qpos_end(model: mujoco.MjModel, joint: int) -> int:
    return int(model.jnt_qposadr[joint + 1]) if joint + 1 < model.njnt else model.nq


def _split_joint(mjspec: mujoco.MjSpec, model: mujoco.MjModel, name: str, bearing: float) -> None:
    """Add a motor side to one joint, and move its actuator, friction, damping and armature to the motor side.

    Args:
        mjspec: Model specification, changed in place.
        model: Compiled model without gears.
        name: Name of the joint.
        bearing: Share of the joint's dry friction that stays on the link side.
    """
    joint = model.joint(name)
    body, dof = int(joint.bodyid[0]), int(joint.dofadr[0])
    link = mjspec.joint(name)
    rotor = mjspec.body(model.body(int(model.body_parentid[body])).name).add_body(
        name=MOTOR.format(name),
        pos=model.body_pos[body],
        quat=model.body_quat[body],
        mass=_ROTOR_MASS,
        inertia=np.full(3, _ROTOR_INERTIA),
        explicitinertial=True,
    )
    rotor.add_joint(
        name=MOTOR.format(name),
        type=mujoco.mjtJoint(int(joint.type[0])),
        axis=joint.axis,
        pos=joint.pos,
        ref=link.ref,
        damping=[model.dof_damping[dof], *model.dof_dampingpoly[dof]],
        frictionloss=(1.0 - bearing) * model.dof_frictionloss[dof],
        solref_friction=model.dof_solref[dof],
        solimp_friction=_harden_solimp(model, dof),
        armature=model.dof_armature[dof],
        limited=mujoco.mjtLimited.mjLIMITED_FALSE,
    )
    link.damping, link.armature = np.zeros(3), 0.0
    link.frictionloss = bearing * model.dof_frictionloss[dof]
    for actuator in mjspec.actuators:
        if actuator.trntype == mujoco.mjtTrn.mjTRN_JOINT and actuator.target == name:
            actuator.target = MOTOR.format(name)


def _harden_solimp(model: mujoco.MjModel, dof: int) -> NDArray[np.float64]:
    """Return the motor joint's ``solimp_friction``, shape ``(5,)``, for the same creep under load as the unsplit joint.

    The unsplit joint is the joint before it was split into a motor joint and a link joint. In MuJoCo, a joint that dry
    friction holds against a load moves slowly (creeps), with a speed in proportion to (1 − d) w / d. d is the impedance
    of the friction constraint and w the inverse inertia (MuJoCo, Computation, "Constraint model"). The w of a motor is
    up to twenty times that of the joint with its links, so the impedance must be closer to 1.

    Args:
        model: Compiled model without gears.
        dof: Index of the joint's degree of freedom.
    """
    solimp = np.array(model.dof_solimp[dof])
    softness = (1 / solimp[0] - 1) * model.dof_invweight0[dof] * (model.dof_armature[dof] + _ROTOR_INERTIA)
    solimp[0] = min(1 / (1 + softness), _HARDEST)
    return solimp


def _couple_sides(mjspec: mujoco.MjSpec, model: mujoco.MjModel, name: str, gear: JointGear, where: str) -> None:
    half = max(gear.backlash, _LEAST_PLAY) / 2
    tendon = mjspec.add_tendon(
        name=GEAR.format(name),
        limited=mujoco.mjtLimited.mjLIMITED_TRUE if gear.stiffness is None else mujoco.mjtLimited.mjLIMITED_FALSE,
        range=[-half, half],
        springlength=[-half, half],
        solref_limit=[_FLANK_STEPS * mjspec.option.timestep, 1.0],
        solimp_limit=_FLANK_IMPEDANCE,
        damping=[_GREASE, 0.0, 0.0],
    )
    tendon.wrap_joint(name, 1.0)
    tendon.wrap_joint(MOTOR.format(name), -1.0)
    if gear.stiffness is not None:
        tendon.stiffness[0] = gear.stiffness
        tendon.damping[0] = _wind_up_damping(mjspec, model, name, gear.stiffness, where)
        return
    mjspec.add_sensor(
        name=GEAR.format(name),
        type=mujoco.mjtSensor.mjSENS_TENDONLIMITFRC,
        objtype=mujoco.mjtObj.mjOBJ_TENDON,
        objname=GEAR.format(name),
    )


def largest_gear_stiffness(model: mujoco.MjModel, name: str, timestep: float) -> float:
    """Return the largest stiffness of a joint's elastic gear at which the simulation is stable, in N·m/rad or N/m.

    Args:
        model: Compiled model without gears.
        name: Name of the joint.
        timestep: Physics step in s.
    """
    return _reduced_inertia(model, name) * (_LARGEST_PHASE / timestep) ** 2


def _reduced_inertia(model: mujoco.MjModel, name: str) -> float:
    """Return the reduced inertia of motor and link in kg·m² or kg, for their vibration against each other.

    It is m l / (m + l) for the inertias m of the motor and l of the link, at the zero pose of the model.
    """
    dof = int(model.joint(name).dofadr[0])
    motor = float(model.dof_armature[dof]) + _ROTOR_INERTIA
    link = max(float(model.dof_M0[dof]) - motor, 1e-12)
    return motor * link / (motor + link)


def _wind_up_damping(mjspec: mujoco.MjSpec, model: mujoco.MjModel, name: str, stiffness: float, where: str) -> float:
    """Return the damping of an elastic gear in N·m·s/rad or N·s/m, for the damping ratio `_WIND_UP_DAMPING`.

    Args:
        mjspec: Model specification with the physics step.
        model: Compiled model without gears.
        name: Name of the joint.
        stiffness: Stiffness of the gear in N·m/rad or N/m.
        where: Name of the twin, for error messages.

    Raises:
        InputError: If the gear is too stiff for the physics step.
    """
    largest = largest_gear_stiffness(model, name, mjspec.option.timestep)
    if stiffness > largest:
        raise InputError(
            f"{where}: the elastic gear of {name} ({stiffness:g} N·m/rad) is too stiff for the physics step, which "
            f"allows at most {largest:.3g} N·m/rad. Choose a softer gear, a rigid gear, or more substeps."
        )
    return 2 * _WIND_UP_DAMPING * math.sqrt(stiffness * _reduced_inertia(model, name))
