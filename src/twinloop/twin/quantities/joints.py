"""Joints: friction, damping, reflected inertia, springs, limits; gears: more friction, play and wind-up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import mujoco
import numpy as np

from twinloop.core.errors import BoundsError
from twinloop.twin.quantities.kinds import (
    PUBLISHED,
    SPEEDS,
    Alias,
    DefaultRange,
    FaultDeclaration,
    FieldSlot,
    FitDeclaration,
    MissingPhysics,
    Prior,
    Quantity,
    WriteTarget,
    assign,
)


def limits(target: WriteTarget) -> None:
    """Both ends of a joint's range.

    Raises:
        BoundsError: the lower end is not below the upper.
    """
    low, high = target.value("limit/low"), target.value("limit/high")
    crossed = np.flatnonzero(low >= high)
    if len(crossed):
        raise BoundsError(
            f"joint/{target.name}/limit/low = {low[crossed[0]]:g} rad is not below joint/{target.name}/limit/high = "
            f"{high[crossed[0]]:g} rad. Keep the lower limit below the upper one in every world."
        )
    target.put("jnt_range", target.rows("jnt_range"), np.stack([low, high], axis=-1)[:, None])


def _no_limit(model: mujoco.MjModel, name: str) -> str:
    limited = model.jnt_limited[model.joint(name).id]
    return "" if limited else "it turns without end. Give the joint a range in the model"


def _limit(end: str, column: int) -> Quantity:
    return Quantity(
        family="joint",
        quantity=f"limit/{end}",
        unit="rad",
        low=-1e3,
        high=1e3,
        compute=limits,
        writes=("jnt_range",),
        nominal=lambda model, name: model.jnt_range[model.joint(name).id, column],
        lacks=_no_limit,
        meaning=f"{'lower' if column == 0 else 'upper'} stop of the joint; the range of commands and the unit map of "
        "datasets stay those of the nominal stops",
        cause="springs & stops",
    )


JOINTS: tuple[Quantity, ...] = (
    Quantity(
        family="joint",
        quantity="damping",
        unit="N·m·s/rad",
        low=0.0,
        high=1e3,
        slots=assign("dof_damping"),
        meaning="viscous torque per speed; of a servo, back-EMF is part of it",
        cause="damping",
        term="joint damping",
        default_range=DefaultRange(low=0.9, high=1.1, op="scale", source=PUBLISHED),
        alias=Alias(name="joint_damping_scale", op="scale"),
        fit=FitDeclaration(
            # 0.60 from back-EMF at 7.4 V, 1.38 identified at 12 V (kscalelabs/sysid).
            prior=Prior(spread=1.0, relative=True, least=0.02),
            rank=4,
            first=True,
            shared=True,
            excitation=SPEEDS,
        ),
    ),
    Quantity(
        family="joint",
        quantity="damping_quadratic",
        unit="N·m·s²/rad²",
        low=0.0,
        high=1e3,
        slots=assign("dof_dampingpoly", 0),
        meaning="torque per speed squared, against motion; what stirs grease or air grows so",
        cause="damping",
        neutral=0.0,
        # At 1 rad/s a thirtieth, and at most a sixth, of a small servo's viscous 0.6 N·m·s/rad: our choice.
        fit=FitDeclaration(missing=MissingPhysics(structure="quadratic_damping", start=0.02, prior=Prior(spread=0.1))),
    ),
    Quantity(
        family="joint",
        quantity="frictionloss",
        unit="N·m",
        low=0.0,
        high=1e3,
        slots=assign("dof_frictionloss"),
        meaning="Coulomb friction: torque against motion at any speed",
        cause="dry friction",
        term="joint friction",
        neutral=0.0,
        default_range=DefaultRange(low=0.9, high=1.1, op="scale", source=PUBLISHED),
        alias=Alias(name="joint_friction_scale", op="scale"),
        fit=FitDeclaration(
            # 0.05 N·m unloaded; gear friction grows with the load several times over (Rhoban/bam, models M2 to M6).
            prior=Prior(spread=3.0, relative=True, least=0.02),
            rank=5,
            shared=True,
            excitation="slow motion with many reversals",
        ),
        fault=FaultDeclaration(name="friction", op="scale", change=2.0, unit="times doubled"),
    ),
    Quantity(
        family="joint",
        quantity="armature",
        unit="kg·m²",
        low=0.0,
        high=1e2,
        slots=assign("dof_armature"),
        set_const=True,
        meaning="inertia of rotor and gear as the joint feels it",
        cause="mass & inertia",
        term="rotor inertia",
        default_range=DefaultRange(
            low=1.0, high=1.05, op="scale", source="×U(1.0, 1.05), mujoco_playground locomotion"
        ),
        alias=Alias(name="joint_armature_scale", op="scale"),
        fit=FitDeclaration(
            # Two identifications of one servo agree to 2 %, but a rotor's inertia mimics the other lags.
            prior=Prior(spread=0.5, relative=True, least=1e-4),
            rank=6,
            shared=True,
            excitation="oscillations of several hertz",
        ),
    ),
    Quantity(
        family="joint",
        quantity="stiffness",
        unit="N·m/rad",
        low=0.0,
        high=1e4,
        slots=assign("jnt_stiffness"),
        meaning="spring that pulls towards springref; a link's flexibility is a stiff spring in a joint without motor",
        cause="springs & stops",
        fit=FitDeclaration(residual="position"),
    ),
    Quantity(
        family="joint",
        quantity="springref",
        unit="rad",
        low=-1e3,
        high=1e3,
        slots=assign("qpos_spring"),
        meaning="position at which the joint's spring is at rest",
        cause="springs & stops",
    ),
    _limit("low", 0),
    _limit("high", 1),
)


PLAY = 0.03  # rad or m · 0.1: 1.7 deg, twice what a worn STS3215 is found to have (TheRobotStudio/SO-ARM100#134)
MOTOR, GEAR = "{}/motor", "{}/gear"  # names of a joint's motor side, and of the tendon from there to the link


def is_motor_side(name: str) -> bool:
    """Whether a joint or body of that name is the motor side of a gear."""
    return name.endswith(MOTOR.format(""))


def motor_joint(model: mujoco.MjModel, name: str) -> int:
    """The joint on the motor's side of a joint's gear; the joint itself where it has none."""
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, MOTOR.format(name))
    return index if index >= 0 else model.joint(name).id


def _lacks_gear(model: mujoco.MjModel, name: str) -> str:
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TENDON, GEAR.format(name))
    return "" if index >= 0 else "backlash belongs to joints with gears (robot.gears)"


def _lacks_spring(model: mujoco.MjModel, name: str) -> str:
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TENDON, GEAR.format(name))
    elastic = index >= 0 and model.tendon_stiffness[index] > 0
    return (
        "" if elastic else "gear_stiffness belongs to the joints of a robot with elastic gears (robot.gears.stiffness)"
    )


def _lacks_drive(model: mujoco.MjModel, name: str) -> str:
    joint = motor_joint(model, name)
    driven = (model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT) & (model.actuator_trnid[:, 0] == joint)
    return "" if driven.any() else "load_friction belongs to a joint that an actuator turns"


def _friction() -> Iterator[Quantity]:
    friction = partial(Quantity, family="joint", stage="drive", cause="dry friction")
    # A fit starts with twice the friction at rest, gone at 0.3 rad/s: our choice.
    yield friction(
        quantity="stiction",
        unit="1",
        low=1.0,
        high=20.0,
        default=1.0,
        meaning="friction at rest over Coulomb friction in motion",
        term="joint friction",
        neutral=1.0,
        fit=FitDeclaration(
            prior=Prior(spread=3.0, relative=True, least=0.02),
            missing=MissingPhysics(structure="stribeck", start=2.0),
        ),
    )
    yield friction(
        quantity="stribeck_velocity",
        unit="rad/s",
        low=1e-4,
        high=10.0,
        default=0.1,
        meaning="speed at which the difference has fallen to 1/e",
        fit=FitDeclaration(missing=MissingPhysics(structure="stribeck", start=0.3, prior=Prior(spread=0.3))),
    )
    yield friction(
        quantity="load_friction",
        unit="1",
        low=0.0,
        high=0.9,
        default=0.0,
        lacks=_lacks_drive,
        meaning="dry friction per torque of the joint's actuator",
        term="load friction",
        neutral=0.0,
        fit=FitDeclaration(
            prior=Prior(spread=0.1),
            shared=True,
            excitation="slow reversals in poses of unlike load",
            # 0.06 to 0.23 over five servos (Rhoban/bam, model M4).
            missing=MissingPhysics(structure="load_friction", start=0.1),
        ),
    )


GEARS: tuple[Quantity, ...] = (
    *_friction(),
    Quantity(
        family="joint",
        quantity="backlash",
        unit="rad",
        low=0.0,
        high=0.5,
        slots=tuple(
            FieldSlot(field=field, column=column, factor=factor)
            for field in ("tendon_range", "tendon_lengthspring")
            for column, factor in enumerate((-0.5, 0.5))
        ),
        lacks=_lacks_gear,
        meaning="play of the gear, from flank to flank",
        cause="gear",
        term="backlash",
        neutral=0.0,
        # One degree, and half a degree of belief either way: our choice, for hobby servos.
        fit=FitDeclaration(missing=MissingPhysics(structure="backlash", start=0.0175, prior=Prior(spread=0.0087))),
        fault=FaultDeclaration(name="play", op="add", change=PLAY, unit=f"times {PLAY:g} rad", geared=True),
    ),
    Quantity(
        family="joint",
        quantity="gear_stiffness",
        unit="N·m/rad",
        low=1e-3,
        high=1e6,
        transform="log",
        slots=assign("tendon_stiffness"),
        lacks=_lacks_spring,
        meaning="stiffness of the gear's wind-up",
        cause="gear",
        fit=FitDeclaration(missing=MissingPhysics(structure="flexible_joint")),
    ),
)
