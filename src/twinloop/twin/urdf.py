"""Servos for a URDF, which says how strong its joints are but not what drives them."""

from __future__ import annotations

import mujoco
import numpy as np

# Position error at which a servo reaches its effort limit: between an SO-101's 0.37 rad (3.25 N·m at 8.9 N·m/rad) and
# a Panda's 0.02 rad (87 N·m at 4500 N·m/rad). A start, not a truth: `identify` finds kp from a log.
FULL_EFFORT_ERROR = 0.1
# A servo answers no faster than in this many physics steps (1/natural frequency); the explicit stiffness of MuJoCo's
# integrators is unstable from half a step.
LEAST_STEPS = 4.0


def add_servos(mjspec: mujoco.MjSpec, *, control: str = "position") -> None:
    """Drive every hinge and slide that has an effort limit by an actuator of the joint's name, where there is none.

    A position servo is critically damped at the zero pose, and its force range is the effort limit; MuJoCo reads that
    limit as one of the joint, which would hide a changed torque limit of the actuator, so it moves. With ``control``
    ``torque`` a motor takes torques up to the limit. A joint that mimics another is left to it.
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
            _limit(actuator, -effort, effort)
        else:
            inertia = float(model.dof_M0[model.joint(joint.name).dofadr[0]])  # what it moves, at the zero pose
            fastest = inertia / (LEAST_STEPS * mjspec.option.timestep) ** 2
            _servo(actuator, joint, min(effort / FULL_EFFORT_ERROR, fastest))
        added = True
    if added:
        # A servo's damping of a light link must be integrated implicitly; a URDF names no integrator.
        mjspec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST


def _servo(actuator: mujoco.MjsActuator, joint: mujoco.MjsJoint, kp: float) -> None:
    actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
    # A positive third entry is a damping ratio, which the compiler turns into a gain by the joint's inertia.
    actuator.gainprm[0], actuator.biasprm[1], actuator.biasprm[2] = kp, -kp, 1.0
    if joint.range[0] < joint.range[1]:
        _limit(actuator, *joint.range)


def _limit(actuator: mujoco.MjsActuator, low: float, high: float) -> None:
    actuator.ctrllimited, actuator.ctrlrange = mujoco.mjtLimited.mjLIMITED_TRUE, [low, high]
