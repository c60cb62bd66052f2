"""Compute the typical size of a joint's quantities from the robot: torque limit, inertia, gains and range.

A prior or a default range that is a fraction of the nominal value has no width if that value is 0. The typical size
then replaces the nominal value.
"""

from __future__ import annotations

import mujoco
import numpy as np

_GRAVITY = 9.81  # m/s²
_REACH = 0.1  # rad (or m), error at which a servo without a torque limit is taken to use its full torque; our choice
_ACCELERATION = 10.0  # rad/s² (or m/s²), of a joint without an actuator at its full torque; our choice

# Coulomb friction over torque limit: 1.8 % for an STS3215 (0.052 of 2.9 N·m) and 7 % for an XL330 (0.031 of 0.42 N·m),
# both Rhoban/bam.
_FRICTION = 0.02
# rad/s (or m/s) at which typical damping uses the torque limit. No-load speeds: STS3215 5, UR5e 3, Panda 2.6 rad/s,
# of which back-EMF is a part.
_SPEED = 10.0
_ROTOR = 0.2  # reflected inertia of a rotor over the joint's inertia at the home pose; our choice
_SLIDE = 0.2  # of a slide's range, in the place of 1 rad of a hinge; our choice


def joint_of(model: mujoco.MjModel, family: str, name: str) -> int:
    """Return the id of the joint to which a parameter of a joint, encoder or actuator belongs; -1 if there is none.

    Args:
        model: Compiled model.
        family: Family of the parameter: ``joint``, ``sensor`` or ``actuator``.
        name: Name of the joint or actuator.
    """
    if family != "actuator":
        return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, name)
    actuator = model.actuator(name).id
    acts = int(model.actuator_trntype[actuator]) in (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)
    return int(model.actuator_trnid[actuator, 0]) if acts else -1


def typical_torque(model: mujoco.MjModel, joint: int) -> float:
    """Return the largest torque (N·m, or N for a slide) of a joint's drive.

    It is the force range of the joint or its actuator. Without one it is the gain of a position servo times 0.1 rad, or
    the torque that accelerates the joint's inertia and holds it against gravity.
    """
    limits = []
    if model.jnt_actfrclimited[joint]:
        limits.append(float(np.abs(model.jnt_actfrcrange[joint]).max()))
    for actuator in np.flatnonzero(model.actuator_trnid[:, 0] == joint):
        if int(model.actuator_trntype[actuator]) != mujoco.mjtTrn.mjTRN_JOINT:
            continue
        gear = abs(float(model.actuator_gear[actuator, 0])) or 1.0
        if model.actuator_forcelimited[actuator]:
            limits.append(gear * float(np.abs(model.actuator_forcerange[actuator]).max()))
        elif model.actuator_biasprm[actuator, 1] < 0:
            limits.append(gear**2 * _REACH * -float(model.actuator_biasprm[actuator, 1]))
    if limits:
        return min(limits)
    body = int(model.jnt_bodyid[joint])
    weight = _GRAVITY * float(model.body_subtreemass[body])
    inertia = float(model.dof_M0[model.jnt_dofadr[joint]])
    if int(model.jnt_type[joint]) == mujoco.mjtJoint.mjJNT_SLIDE:
        return weight + inertia * _ACCELERATION
    carried = float(model.body_subtreemass[body]) or 1.0
    return weight * float(np.sqrt(inertia / carried)) + inertia * _ACCELERATION


def typical_friction(model: mujoco.MjModel, joint: int) -> float:
    """Return a typical Coulomb friction of a joint, N·m, or N for a slide."""
    return _FRICTION * typical_torque(model, joint)


def typical_damping(model: mujoco.MjModel, joint: int) -> float:
    """Return a typical viscous damping of a joint, N·m·s/rad, or N·s/m for a slide."""
    return typical_torque(model, joint) / _SPEED


def typical_armature(model: mujoco.MjModel, joint: int) -> float:
    """Return a typical reflected rotor inertia of a joint, kg·m², or kg for a slide."""
    return _ROTOR * float(model.dof_M0[model.jnt_dofadr[joint]])


def distance_per_angle(model: mujoco.MjModel, joint: int) -> float:
    """Return the factor on a spread in rad for one joint: 1 for a hinge, a fifth of its range in m for a slide.

    An error of 0.1 rad, such as that of an encoder's zero, is thus an error of 2 % of a slide's range.
    """
    if int(model.jnt_type[joint]) != mujoco.mjtJoint.mjJNT_SLIDE:
        return 1.0
    low, high = model.jnt_range[joint]
    return _SLIDE * float(high - low) if high > low else _SLIDE
