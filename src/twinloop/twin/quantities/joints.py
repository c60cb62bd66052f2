"""Joints: friction, damping, reflected inertia, springs."""

from __future__ import annotations

from twinloop.twin.quantities.kinds import Quantity, assign

JOINTS: tuple[Quantity, ...] = (
    Quantity(family="joint", quantity="damping", unit="N·m·s/rad", low=0.0, high=1e3, slots=assign("dof_damping")),
    Quantity(family="joint", quantity="frictionloss", unit="N·m", low=0.0, high=1e3, slots=assign("dof_frictionloss")),
    Quantity(
        family="joint",
        quantity="armature",
        unit="kg·m²",
        low=0.0,
        high=1e2,
        slots=assign("dof_armature"),
        set_const=True,
    ),
    Quantity(family="joint", quantity="stiffness", unit="N·m/rad", low=0.0, high=1e4, slots=assign("jnt_stiffness")),
)
