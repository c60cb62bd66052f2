"""Joints: friction, damping, reflected inertia, springs, limits."""

from __future__ import annotations

import mujoco
import numpy as np

from twinloop.core.errors import BoundsError
from twinloop.twin.quantities.kinds import Quantity, Target, assign


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
