"""Declare the quantities of joints (friction, damping, inertia, springs, limits) and gears (backlash, stiffness)."""

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
    ObjectWriter,
    Prior,
    Quantity,
    field_slots,
)
from twinloop.twin.quantities.typical import typical_armature, typical_damping, typical_friction


def write_limits(target: ObjectWriter) -> None:
    """Write the quantities ``limit/low`` and ``limit/high`` of a joint, in rad, to the model field ``jnt_range``.

    Raises:
        BoundsError: If the lower limit is not below the upper limit.
    """
    low, high = target.value("limit/low"), target.value("limit/high")
    crossed = np.flatnonzero(low >= high)
    if len(crossed):
        raise BoundsError(
            f"joint/{target.name}/limit/low = {low[crossed[0]]:g} rad is not below joint/{target.name}/limit/high = "
            f"{high[crossed[0]]:g} rad. Keep the lower limit below the upper one in every world."
        )
    target.write_field("jnt_range", target.rows("jnt_range"), np.stack([low, high], axis=-1)[:, None])


def _explain_missing_limit(model: mujoco.MjModel, name: str) -> str:
    limited = model.jnt_limited[model.joint(name).id]
    return "" if limited else "it turns without limits. Give the joint a range in the model"


def _limit_quantity(end: str, column: int) -> Quantity:
    return Quantity(
        family="joint",
        quantity=f"limit/{end}",
        unit="rad",
        low=-1e3,
        high=1e3,
        compute=write_limits,
        writes=("jnt_range",),
        nominal=lambda model, name: model.jnt_range[model.joint(name).id, column],
        lacks=_explain_missing_limit,
        meaning=f"{'lower' if column == 0 else 'upper'} limit of the joint; the range of commands and the unit map of "
        "datasets are still those of the nominal limits",
        cause="springs & stops",
    )


JOINTS: tuple[Quantity, ...] = (
    Quantity(
        family="joint",
        quantity="damping",
        unit="N·m·s/rad",
        low=0.0,
        high=1e3,
        slots=field_slots("dof_damping"),
        typical=typical_damping,
        meaning="viscous torque per speed; for a servo it includes back-EMF",
        cause="damping",
        term="joint damping",
        default_range=DefaultRange(low=0.9, high=1.1, op="scale", source=PUBLISHED),
        alias=Alias(name="joint_damping_scale", op="scale"),
        fit=FitDeclaration(
            # 0.60 from back-EMF at 7.4 V, 1.38 identified at 12 V (kscalelabs/sysid).
            prior=Prior(spread=1.0, relative=True),
            rank=7,
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
        slots=field_slots("dof_dampingpoly", 0),
        meaning="torque per speed squared, against motion, as from stirred grease or air",
        cause="damping",
        neutral=0.0,
        # At 1 rad/s a thirtieth, at most a sixth, of a small servo's viscous torque of 0.6 N·m·s/rad: our choice.
        fit=FitDeclaration(missing=MissingPhysics(structure="quadratic_damping", start=0.02, prior=Prior(spread=0.1))),
    ),
    Quantity(
        family="joint",
        quantity="frictionloss",
        unit="N·m",
        low=0.0,
        high=1e3,
        slots=field_slots("dof_frictionloss"),
        typical=typical_friction,
        meaning="Coulomb friction: torque against motion, independent of speed",
        cause="dry friction",
        term="joint friction",
        neutral=0.0,
        default_range=DefaultRange(low=0.9, high=1.1, op="scale", source=PUBLISHED),
        alias=Alias(name="joint_friction_scale", op="scale"),
        fit=FitDeclaration(
            # 0.05 N·m unloaded; gear friction grows with the load several times over (Rhoban/bam, models M2 to M6).
            prior=Prior(spread=3.0, relative=True),
            rank=8,
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
        slots=field_slots("dof_armature"),
        typical=typical_armature,
        set_const=True,
        meaning="inertia of rotor and gear, reflected to the joint",
        cause="mass & inertia",
        term="rotor inertia",
        default_range=DefaultRange(
            low=1.0, high=1.05, op="scale", source="×U(1.0, 1.05), mujoco_playground locomotion"
        ),
        alias=Alias(name="joint_armature_scale", op="scale"),
        fit=FitDeclaration(
            # Two identifications of one servo agree to 2 %, but a rotor's inertia mimics the other lags.
            prior=Prior(spread=0.5, relative=True),
            rank=9,
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
        slots=field_slots("jnt_stiffness"),
        meaning="spring towards springref; to model a flexible link, use a stiff spring in a joint without a motor",
        cause="springs & stops",
        fit=FitDeclaration(residual="position"),
    ),
    Quantity(
        family="joint",
        quantity="springref",
        unit="rad",
        low=-1e3,
        high=1e3,
        slots=field_slots("qpos_spring"),
        meaning="rest position of the joint's spring",
        cause="springs & stops",
    ),
    _limit_quantity("low", 0),
    _limit_quantity("high", 1),
)


PLAY = 0.03  # rad or m · 0.1: 1.7 deg, twice the play of a worn STS3215 (TheRobotStudio/SO-ARM100#134)
MOTOR, GEAR = "{}/motor", "{}/gear"  # names of a joint's motor side, and of the tendon from there to the link


def is_motor_side(name: str) -> bool:
    """Return whether a joint or body name belongs to the motor side of a gear."""
    return name.endswith(MOTOR.format(""))


def find_motor_joint(model: mujoco.MjModel, name: str) -> int:
    """Return the id of the joint on the motor side of a joint's gear, or of the joint itself if it has no gear."""
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, MOTOR.format(name))
    return index if index >= 0 else model.joint(name).id


def _explain_missing_gear(model: mujoco.MjModel, name: str) -> str:
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TENDON, GEAR.format(name))
    return "" if index >= 0 else "backlash belongs to joints with gears (robot.gears)"


def _explain_missing_spring(model: mujoco.MjModel, name: str) -> str:
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TENDON, GEAR.format(name))
    elastic = index >= 0 and model.tendon_stiffness[index] > 0
    return (
        "" if elastic else "gear_stiffness belongs to the joints of a robot with elastic gears (robot.gears.stiffness)"
    )


def _explain_missing_drive(model: mujoco.MjModel, name: str) -> str:
    joint = find_motor_joint(model, name)
    driven = (model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT) & (model.actuator_trnid[:, 0] == joint)
    return "" if driven.any() else "load_friction belongs to a joint that an actuator turns"


def _friction_quantities() -> Iterator[Quantity]:
    friction = partial(Quantity, family="joint", stage="drive", cause="dry friction")
    # A fit starts with static friction twice the Coulomb friction, which decays at 0.3 rad/s: our choice.
    yield friction(
        quantity="stiction",
        unit="1",
        low=1.0,
        high=20.0,
        default=1.0,
        meaning="static friction divided by Coulomb friction",
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
        meaning="speed at which static minus Coulomb friction has fallen to 1/e",
        fit=FitDeclaration(missing=MissingPhysics(structure="stribeck", start=0.3, prior=Prior(spread=0.3))),
    )
    yield friction(
        quantity="load_friction",
        unit="1",
        low=0.0,
        high=0.9,
        default=0.0,
        lacks=_explain_missing_drive,
        meaning="dry friction per actuator torque of the joint",
        term="load friction",
        neutral=0.0,
        fit=FitDeclaration(
            prior=Prior(spread=0.1),
            shared=True,
            excitation="slow reversals in poses with different loads",
            # 0.06 to 0.23 over five servos (Rhoban/bam, model M4).
            missing=MissingPhysics(structure="load_friction", start=0.1),
        ),
    )


GEARS: tuple[Quantity, ...] = (
    *_friction_quantities(),
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
        lacks=_explain_missing_gear,
        meaning="backlash of the gear, total from flank to flank",
        cause="gear",
        term="backlash",
        neutral=0.0,
        # One degree with a deviation of half a degree: our choice, for hobby servos.
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
        slots=field_slots("tendon_stiffness"),
        lacks=_explain_missing_spring,
        meaning="torsional stiffness of the gear",
        cause="gear",
        fit=FitDeclaration(missing=MissingPhysics(structure="flexible_joint")),
    ),
)
