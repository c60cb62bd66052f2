"""A twin's model with play in its gears: every joint becomes a motor and a link, one pushing the other.

The motor side is a body of its own on the same axis; it keeps the joint's name, and with it everything that the twin
says about the joint: servo, friction, damping, reflected inertia. The link side keeps bodies, shapes and stops. Between
them is a fixed tendon of length link − motor, limited to half the play either way: inside the play the two are free of
each other, at its flanks the solver holds them together, implicitly, whatever the link weighs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.twin import Twin

_LINK, _GEAR = "{}/link", "{}/gear"
# The motor side's own body needs some mass to compile; its inertia is the joint's armature, its weight nothing.
_ROTOR_MASS, _ROTOR_INERTIA = 1e-6, 1e-9
# Damping of the grease between the flanks: the 0.01 N·m·s/rad of published backlash joints for such servos.
_GREASE = 0.01
# Flanks as stiff as the physics step allows: a time constant of two steps is MuJoCo's limit for stability.
# They touch softly and stiffen within 0.2 mrad, as round flanks do. Stiff from the first touch, a link that weighs next
# to nothing rebounds into the play, its bearing's friction stops it within one step, and the motor drives the flank
# 1.7 mrad deep in the next: on the SO-101's jaw 23 samples beyond 0.5 mrad in 15 s, against 8 of at most 0.9 mrad.
_FLANK_STEPS, _FLANK_IMPEDANCE = 2.2, (0.9, 0.999, 2e-4, 0.5, 2.0)


@dataclass(frozen=True, kw_only=True)
class Geared:
    """A twin with play, and where its parts are.

    ``twin`` is the same twin on the geared model: parameters of a joint reach its motor side. Indices are per robot
    joint: ``motor_qpos``, ``link_qpos`` in qpos, ``motor_dof``, ``link_dof`` in qvel, ``torque`` in sensordata (what
    the flank transmits), ``gear`` among the tendons.
    """

    twin: Twin
    motor_qpos: NDArray[np.intp]
    link_qpos: NDArray[np.intp]
    motor_dof: NDArray[np.intp]
    link_dof: NDArray[np.intp]
    torque: NDArray[np.intp]
    gear: NDArray[np.intp]

    def qpos(self, twin: Twin, qpos: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions ``(nq,)`` of the plain twin as the geared model's, gears in the middle of their play."""
        model, result = self.twin.model, self.twin.model.qpos0.copy()
        for i in range(twin.model.njnt):
            name = twin.model.joint(i).name
            source = slice(twin.model.jnt_qposadr[i], _end(twin.model, i))
            for twin_name in (name, _LINK.format(name)):
                index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, twin_name)
                if index >= 0:
                    result[model.jnt_qposadr[index] : _end(model, index)] = qpos[source]
        return result


def add_gears(twin: Twin) -> Geared:
    """The twin with play at every robot joint; the play itself is written per world, see `VirtualArms`."""
    spec = twin.mjspec.copy()
    for key in list(spec.keys):
        spec.delete(key)  # a keyframe lists every position, and there are more now
    for joint in twin.robot.joints:
        _split(spec, twin.model, joint)
    model = spec.compile()
    links = [model.joint(_LINK.format(name)) for name in twin.robot.joints]
    motors = [model.joint(name) for name in twin.robot.joints]
    gears = [_GEAR.format(name) for name in twin.robot.joints]
    return Geared(
        twin=replace(twin, model=model, mjspec=spec),
        motor_qpos=np.array([motor.qposadr[0] for motor in motors]),
        link_qpos=np.array([link.qposadr[0] for link in links]),
        motor_dof=np.array([motor.dofadr[0] for motor in motors]),
        link_dof=np.array([link.dofadr[0] for link in links]),
        torque=np.array([model.sensor(name).adr[0] for name in gears]),
        gear=np.array([model.tendon(name).id for name in gears]),
    )


def _end(model: mujoco.MjModel, joint: int) -> int:
    return int(model.jnt_qposadr[joint + 1]) if joint + 1 < model.njnt else model.nq


def _split(spec: mujoco.MjSpec, model: mujoco.MjModel, name: str) -> None:
    """Give one joint a motor side, which takes its name."""
    joint = model.joint(name)
    body, dof = int(joint.bodyid[0]), int(joint.dofadr[0])
    link = spec.joint(name)
    link.name = _LINK.format(name)
    link.damping, link.frictionloss, link.armature = np.zeros(3), 0.0, 0.0
    # An actuator's command limit is the servo's business here, and applies before its feedback is added.
    for actuator in spec.actuators:
        actuator.ctrllimited = mujoco.mjtLimited.mjLIMITED_FALSE
    for equality in spec.equalities:
        equality.name1, equality.name2 = (link.name if end == name else end for end in (equality.name1, equality.name2))
    rotor = spec.body(model.body(int(model.body_parentid[body])).name).add_body(
        name=f"{name}/motor",
        pos=model.body_pos[body],
        quat=model.body_quat[body],
        mass=_ROTOR_MASS,
        inertia=np.full(3, _ROTOR_INERTIA),
        explicitinertial=True,
    )
    rotor.add_joint(
        name=name,
        type=mujoco.mjtJoint(int(joint.type[0])),
        axis=joint.axis,
        pos=joint.pos,
        damping=[model.dof_damping[dof], 0.0, 0.0],
        frictionloss=model.dof_frictionloss[dof],
        armature=model.dof_armature[dof],
        limited=mujoco.mjtLimited.mjLIMITED_FALSE,
    )
    _join(spec, name, link.name)


def _join(spec: mujoco.MjSpec, motor: str, link: str) -> None:
    time_constant = _FLANK_STEPS * spec.option.timestep
    gear = spec.add_tendon(
        name=_GEAR.format(motor),
        limited=mujoco.mjtLimited.mjLIMITED_TRUE,
        range=[-1e-3, 1e-3],
        solref_limit=[time_constant, 1.0],
        solimp_limit=_FLANK_IMPEDANCE,
        damping=[_GREASE, 0.0, 0.0],
    )
    gear.wrap_joint(link, 1.0)
    gear.wrap_joint(motor, -1.0)
    spec.add_sensor(
        name=_GEAR.format(motor),
        type=mujoco.mjtSensor.mjSENS_TENDONLIMITFRC,
        objtype=mujoco.mjtObj.mjOBJ_TENDON,
        objname=_GEAR.format(motor),
    )
