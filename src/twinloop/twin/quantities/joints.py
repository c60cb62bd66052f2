"""Joints: friction, damping, reflected inertia, springs, limits; gears: more friction, play and wind-up."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np

from twinloop.core.errors import BoundsError
from twinloop.twin.quantities.kinds import Quantity, Slot, Target, assign


def limits(target: Target) -> None:
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
    ),
    Quantity(
        family="joint",
        quantity="damping_quadratic",
        unit="N·m·s²/rad²",
        low=0.0,
        high=1e3,
        slots=assign("dof_dampingpoly", 0),
        meaning="torque per speed squared, against motion; what stirs grease or air grows so",
    ),
    Quantity(
        family="joint",
        quantity="frictionloss",
        unit="N·m",
        low=0.0,
        high=1e3,
        slots=assign("dof_frictionloss"),
        meaning="Coulomb friction: torque against motion at any speed",
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
    ),
    Quantity(
        family="joint",
        quantity="stiffness",
        unit="N·m/rad",
        low=0.0,
        high=1e4,
        slots=assign("jnt_stiffness"),
        meaning="spring that pulls towards springref; a link's flexibility is a stiff spring in a joint without motor",
    ),
    Quantity(
        family="joint",
        quantity="springref",
        unit="rad",
        low=-1e3,
        high=1e3,
        slots=assign("qpos_spring"),
        meaning="position at which the joint's spring is at rest",
    ),
    _limit("low", 0),
    _limit("high", 1),
)


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
    for quantity, unit, low, high, default, lacks, meaning in (
        ("stiction", "1", 1.0, 20.0, 1.0, None, "friction at rest over Coulomb friction in motion"),
        ("stribeck_velocity", "rad/s", 1e-4, 10.0, 0.1, None, "speed at which the difference has fallen to 1/e"),
        ("load_friction", "1", 0.0, 0.9, 0.0, _lacks_drive, "dry friction per torque of the joint's actuator"),
    ):
        yield Quantity(
            family="joint",
            quantity=quantity,
            unit=unit,
            low=low,
            high=high,
            default=default,
            stage="drive",
            lacks=lacks,
            meaning=meaning,
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
            Slot(field=field, column=column, factor=factor)
            for field in ("tendon_range", "tendon_lengthspring")
            for column, factor in enumerate((-0.5, 0.5))
        ),
        lacks=_lacks_gear,
        meaning="play of the gear, from flank to flank",
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
    ),
)
