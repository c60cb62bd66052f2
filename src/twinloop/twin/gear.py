"""Backlash and elasticity of gears: every robot joint becomes a motor body and a link body, coupled to each other.

The motor side is a separate body on the same axis, named ``JOINT/motor``. It gets servo, friction, damping and
reflected inertia. The link side keeps the joint's name, with bodies, geoms and stops, so readings, tasks and
kinematics do not change. A fixed tendon between them has the length link − motor. Rigid gears limit it to half the
backlash in both directions: within the backlash the sides move freely, at the limits the solver couples them
implicitly, for any mass of the link. Elastic gears are a spring without force within the backlash.
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

# The motor side's own body needs some mass to compile; its inertia is the joint's armature, its weight nothing.
_ROTOR_MASS, _ROTOR_INERTIA = 1e-6, 1e-9
# Damping of the grease between the flanks: the 0.01 N·m·s/rad of published backlash joints for such servos.
_GREASE = 0.01
# Flanks as stiff as the physics step allows: a time constant of two steps is MuJoCo's limit for stability.
# They touch softly and stiffen within 0.2 mrad, as round flanks do. Stiff from the first touch, a link that weighs next
# to nothing rebounds into the play, its bearing's friction stops it within one step, and the motor drives the flank
# 1.7 mrad deep in the next: on the SO-101's jaw 23 samples beyond 0.5 mrad in 15 s, against 8 of at most 0.9 mrad.
_FLANK_STEPS, _FLANK_IMPEDANCE = 2.2, (0.9, 0.999, 2e-4, 0.5, 2.0)
_LEAST_PLAY = 1e-9  # rad or m; MuJoCo compiles no empty range
# Part of a joint's dry friction that is in the bearing of the output, behind the play; our choice. Without any, a link
# that nothing loads would float from flank to flank.
BEARING = 0.2
_HARDEST = 0.9999  # MuJoCo's largest impedance, mjMAXIMP
_WIND_UP_DAMPING = 0.05  # damping ratio of an elastic gear against its two inertias; our choice for metal gears
_LARGEST_PHASE = 1.0  # rad per physics step of its natural vibration; MuJoCo integrates springs explicitly, up to 2


@dataclass(frozen=True, kw_only=True)
class JointGear:
    """One joint's gear: play from flank to flank (rad or m), and stiffness (N·m/rad or N/m), None for rigid flanks."""

    backlash: float
    stiffness: float | None = None


def robot_gears(robot: RobotSpec | None, servos: Sequence[ServoSpec | None], *, where: str) -> dict[str, JointGear]:
    """Return the gears of a robot section by joint; an empty dictionary without ``gears``.

    Raises:
        UnknownNameError: a joint that does not exist.
        InputError: a joint without a backlash.
    """
    if robot is None or robot.gears is None:
        return {}
    play = _by_joint(robot.gears.backlash, robot, where)
    stiffness = _by_joint(robot.gears.stiffness, robot, where)
    gears = {}
    for joint, servo in zip(robot.joints, servos, strict=True):
        preset = servo.backlash.value if servo is not None and servo.backlash is not None else None
        value = play.get(joint, preset)
        if value is None:
            raise InputError(
                f"{where}: nobody says how much play the gear of {joint} has. Give robot.gears.backlash in rad or m, "
                "or name a servo whose preset says it."
            )
        gears[joint] = JointGear(backlash=value, stiffness=stiffness.get(joint))
    return gears


def _by_joint(given: float | dict[str, float] | None, robot: RobotSpec, where: str) -> dict[str, float]:
    named = given if isinstance(given, dict) else {} if given is None else {"*": given}
    for joint in named:
        if joint != "*" and joint not in robot.joints:
            raise UnknownNameError("joint", joint, robot.joints, where=f"{where}: robot.gears")
    return {joint: named.get(joint, named.get("*", 0.0)) for joint in robot.joints if joint in named or "*" in named}


def add_gears(
    mjspec: mujoco.MjSpec, gears: Mapping[str, JointGear], *, bearing: float = BEARING, where: str = ""
) -> None:
    """Split joints of a model into motor and link, in place; keyframes keep their poses, gears amid their play.

    Args:
        gears: by joint.
        bearing: part of the joint's dry friction that goes to the link.
        where: names the twin in messages.

    Raises:
        InputError: an elastic gear that the physics step is too long for.
    """
    plain = mjspec.compile()
    keys = [(key.name, plain.key(key.name).qpos.copy(), key) for key in mjspec.keys]
    kept = [(name, qpos, _key_rest(key)) for name, qpos, key in keys]
    for key in list(mjspec.keys):
        mjspec.delete(key)  # a keyframe lists every position, and there are more now
    for name, gear in gears.items():
        _split(mjspec, plain, name, bearing)
        _join(mjspec, plain, name, gear, where)
    geared = mjspec.compile()
    for name, qpos, rest in kept:
        mjspec.add_key(name=name, qpos=geared_qpos(geared, plain, qpos), **rest)


def geared_qpos(geared: mujoco.MjModel, plain: mujoco.MjModel, qpos: NDArray[np.float64]) -> NDArray[np.float64]:
    """Positions ``(nq,)`` of the plain model as the geared one's, gears in the middle of their play."""
    result = geared.qpos0.copy()
    for i in range(plain.njnt):
        name = plain.joint(i).name
        source = slice(plain.jnt_qposadr[i], _end(plain, i))
        for there in (name, MOTOR.format(name)):
            index = mujoco.mj_name2id(geared, mujoco.mjtObj.mjOBJ_JOINT, there)
            if index >= 0:
                result[geared.jnt_qposadr[index] : _end(geared, index)] = qpos[source]
    return result


def _key_rest(key: mujoco.MjsKey) -> dict[str, NDArray[np.float64] | float]:
    """What a keyframe holds besides positions; velocities are of the plain model, and zero in what follows."""
    rest = {name: np.array(getattr(key, name), dtype=np.float64) for name in ("act", "ctrl", "mpos", "mquat")}
    return {"time": key.time, **{name: values for name, values in rest.items() if values.size}}


def _end(model: mujoco.MjModel, joint: int) -> int:
    return int(model.jnt_qposadr[joint + 1]) if joint + 1 < model.njnt else model.nq


def _split(mjspec: mujoco.MjSpec, model: mujoco.MjModel, name: str, bearing: float) -> None:
    """Give one joint a motor side, which takes over what the motor is and does."""
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
        solimp_friction=_yielding_alike(model, dof),
        armature=model.dof_armature[dof],
        limited=mujoco.mjtLimited.mjLIMITED_FALSE,
    )
    link.damping, link.armature = np.zeros(3), 0.0
    link.frictionloss = bearing * model.dof_frictionloss[dof]
    for actuator in mjspec.actuators:
        if actuator.trntype == mujoco.mjtTrn.mjTRN_JOINT and actuator.target == name:
            actuator.target = MOTOR.format(name)


def _yielding_alike(model: mujoco.MjModel, dof: int) -> NDArray[np.float64]:
    """The joint's ``solimp`` of dry friction ``(5,)``, hardened so that the rotor gives way as slowly as the joint did.

    Friction that holds a load creeps in proportion to (1 − d) w / d, d the impedance and w the inverse inertia that it
    meets (MuJoCo, Computation, "Constraint model"). A rotor's w is up to twenty times that of the joint with its links.
    """
    solimp = np.array(model.dof_solimp[dof])
    softness = (1 / solimp[0] - 1) * model.dof_invweight0[dof] * (model.dof_armature[dof] + _ROTOR_INERTIA)
    solimp[0] = min(1 / (1 + softness), _HARDEST)
    return solimp


def _join(mjspec: mujoco.MjSpec, model: mujoco.MjModel, name: str, gear: JointGear, where: str) -> None:
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


def stiffest(model: mujoco.MjModel, name: str, timestep: float) -> float:
    """The stiffest elastic gear of a joint (N·m/rad or N/m) whose vibration a physics step in s can follow."""
    return _between(model, name) * (_LARGEST_PHASE / timestep) ** 2


def _between(model: mujoco.MjModel, name: str) -> float:
    """The inertia that vibrates in an elastic gear between its motor and what its link moves at the zero pose."""
    dof = int(model.joint(name).dofadr[0])
    motor = float(model.dof_armature[dof]) + _ROTOR_INERTIA
    link = max(float(model.dof_M0[dof]) - motor, 1e-12)
    return motor * link / (motor + link)


def _wind_up_damping(mjspec: mujoco.MjSpec, model: mujoco.MjModel, name: str, stiffness: float, where: str) -> float:
    """Damping of an elastic gear."""
    largest = stiffest(model, name, mjspec.option.timestep)
    if stiffness > largest:
        raise InputError(
            f"{where}: the elastic gear of {name} ({stiffness:g} N·m/rad) vibrates faster than the physics step can "
            f"follow; with this step {largest:.3g} is the most. Give a softer or a rigid gear, or more substeps."
        )
    return 2 * _WIND_UP_DAMPING * math.sqrt(stiffness * _between(model, name))
