"""Declare the quantities of the world: gravity, wind, air, pushes, poses of fixed bodies, and object counts.

When a scene is built (`twin.scene_build`), its content is written into the model as MuJoCo's custom text elements
``scene/count/<group>`` and ``scene/shape/<body>``, so that the model alone determines its parameters. Counts and shapes
are integers. They are real numbers when drawn, and then rounded down; the upper bound is not included. A uniform draw
between the bounds 0 and 5, for example, gives 0, 1, 2, 3 or 4 with the same probability.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import mujoco
import numpy as np

from twinloop.twin.quantities.kinds import Alias, Compute, ObjectWriter, Quantity, field_slots
from twinloop.twin.quantities.rotation import quat_from_rotation_vector, quat_multiply, rotate_vectors

_TILT = "rotation of gravity about the world's {axis} axis, x before y: {effect}"


def _nominal_gravity(model: mujoco.MjModel, _name: str) -> float:
    return float(np.linalg.norm(model.opt.gravity))


def write_gravity(target: ObjectWriter) -> None:
    """Write gravity from its quantities ``magnitude``, ``tilt_x`` and ``tilt_y``.

    The model's gravity is rotated about the world's x axis by ``tilt_x``, then about the y axis by ``tilt_y``. If the
    model has no gravity, the nominal direction is −z.
    """
    own = target.model.opt.gravity
    strength = _nominal_gravity(target.model, target.name)
    direction = own if strength > 0 else np.array([0.0, 0.0, -1.0])
    vector = direction * (target.value("magnitude") / (strength or 1.0))[:, None]
    for axis, tilt in enumerate((target.value("tilt_x"), target.value("tilt_y"))):
        vector = rotate_vectors(quat_from_rotation_vector(tilt[:, None] * np.eye(3)[axis]), vector)
    target.write_field("opt.gravity", range(3), vector)


def _gravity_quantity(
    quantity: str, unit: str, low: float, high: float, meaning: str, default: float | None = None
) -> Quantity:
    return Quantity(
        family="world",
        member="gravity",
        quantity=quantity,
        unit=unit,
        low=low,
        high=high,
        default=default,
        nominal=_nominal_gravity,
        compute=write_gravity,
        writes=("opt.gravity",),
        meaning=meaning,
        cause="gravity & mounting",
        term="gravity",
        alias=None if default is None else Alias(name="gravity_tilt"),
    )


def _air_quantity(quantity: str, unit: str, high: float, meaning: str) -> Quantity:
    return Quantity(
        family="world",
        member="air",
        quantity=quantity,
        unit=unit,
        low=0.0,
        high=high,
        slots=field_slots(f"opt.{quantity}"),
        meaning=meaning,
        cause="air",
        term="air",
    )


WORLD: tuple[Quantity, ...] = (
    _gravity_quantity("magnitude", "m/s²", 0.0, 100.0, "strength of gravity"),
    _gravity_quantity(
        "tilt_x", "rad", -math.pi, math.pi, _TILT.format(axis="x", effect="> 0 makes objects fall to +y"), 0.0
    ),
    _gravity_quantity(
        "tilt_y", "rad", -math.pi, math.pi, _TILT.format(axis="y", effect="> 0 makes objects fall to −x"), 0.0
    ),
    *(
        Quantity(
            family="world",
            member="wind",
            quantity=axis,
            unit="m/s",
            low=-100.0,
            high=100.0,
            slots=field_slots("opt.wind", column),
            meaning=f"velocity of the air along the world's {axis}; needs air density or viscosity. Scope step: gusts",
            cause="air",
            term="air",
            neutral=0.0,
        )
        for column, axis in enumerate("xyz")
    ),
    _air_quantity(
        "density", "kg/m³", 2000.0, "density of the air (1.2 at sea level; 0: vacuum): drag with the square of speed"
    ),
    _air_quantity("viscosity", "Pa·s", 10.0, "viscosity of the air (1.8e-5 at 20 °C): drag in proportion to speed"),
)


def _push_quantity(quantity: str, unit: str, low: float, high: float, default: float, meaning: str) -> Quantity:
    return Quantity(
        family="push",
        quantity=quantity,
        unit=unit,
        low=low,
        high=high,
        default=default,
        stage="disturbance",
        meaning=meaning,
        cause="disturbances",
        term="pushes" if quantity == "force" else "",
        neutral=0.0 if quantity == "force" else None,
    )


# A force at the body's centre of mass, constant in the world's frame during the push; see `simulate.disturbance`.
PUSHES: tuple[Quantity, ...] = (
    _push_quantity("force", "N", 0.0, 1e4, 0.0, "strength of a push at the body's centre of mass"),
    _push_quantity(
        "azimuth", "rad", -math.pi, math.pi, 0.0, "direction of the push: angle from the world's x towards y"
    ),
    _push_quantity(
        "elevation", "rad", -math.pi / 2, math.pi / 2, 0.0, "direction of the push: angle above the horizontal"
    ),
    _push_quantity("time", "s", 0.0, 1e4, 0.0, "start of the first push, after the start of the episode"),
    _push_quantity("duration", "s", 0.0, 1e4, 0.1, "duration of a push"),
    _push_quantity("period", "s", 0.0, 1e4, 0.0, "time between the starts of two pushes; 0: a single push"),
)


RESIDUAL_ACTION, RESIDUAL_DISTURBANCE = "residual/action/scale", "residual/disturbance/scale"


def _residual_quantity(name: str, default: float, meaning: str) -> Quantity:
    family, member, quantity = name.split("/")
    return Quantity(
        family=family,
        member=member,
        quantity=quantity,
        unit="1",
        low=0.0,
        high=1.0,
        default=default,
        stage="command",
        meaning=meaning,
        cause="disturbances",
        term="residual",
        neutral=0.0,
    )


RESIDUAL: tuple[Quantity, ...] = (
    _residual_quantity(RESIDUAL_ACTION, 1.0, "factor on the offsets of the twin's `residual:`"),
    _residual_quantity(RESIDUAL_DISTURBANCE, 0.0, "factor on the random disturbance of the twin's `residual:`"),
)


def _write_pose(target: ObjectWriter, position: str, quaternion: str) -> None:
    (row,) = target.rows(position)
    own = getattr(target.model, position)[row], getattr(target.model, quaternion)[row]
    turn = quat_from_rotation_vector(target.vector("rotation"))
    target.write_field(position, [row], (own[0] + target.vector("position"))[:, None])
    target.write_field(quaternion, [row], quat_multiply(turn, np.broadcast_to(own[1], turn.shape))[:, None])


def write_geom_pose(target: ObjectWriter) -> None:
    """Write a geom's pose, moved along the axes of its body and rotated about its own centre."""
    _write_pose(target, "geom_pos", "geom_quat")


def write_body_pose(target: ObjectWriter) -> None:
    """Write a fixed body's pose, moved along the axes of its parent body and rotated about its own origin.

    The quantities ``position/*`` (shift in m) and ``rotation/*`` (rotation vector in rad) are applied to the nominal
    pose, and the result is written to the model fields ``body_pos`` and ``body_quat``.
    """
    _write_pose(target, "body_pos", "body_quat")


def _pose_offset_quantities(
    family: str,
    compute: Compute,
    fields: tuple[str, str],
    frame: str,
    middle: str,
    *,
    term: str = "",
    words: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Quantity]:
    for kind, unit, reach, writes, meaning in (
        ("position", "m", 10.0, fields[:1], "shift along {axis} of {frame}"),
        ("rotation", "rad", math.pi, fields[1:], "rotation about {axis} of {frame}, with its {middle} fixed"),
    ):
        for axis in "xyz":
            yield Quantity(
                family=family,
                quantity=f"{kind}/{axis}",
                unit=unit,
                low=-reach,
                high=reach,
                default=0.0,
                compute=compute,
                writes=writes,
                set_const=True,
                also_visual=True,
                meaning=meaning.format(axis=axis, frame=frame, middle=middle),
                cause="gravity & mounting",
                term=term,
                alias=Alias(name=words[name], target="table") if (name := f"{kind}/{axis}") in words else None,
            )


PLACEMENT: tuple[Quantity, ...] = (
    *_pose_offset_quantities(
        "geom",
        write_geom_pose,
        ("geom_pos", "geom_quat"),
        "its body (the world, for a table)",
        "centre",
        term="table",
        words={"position/z": "table_height_offset", "rotation/x": "table_tilt", "rotation/y": "table_tilt"},
    ),
    *_pose_offset_quantities("body", write_body_pose, ("body_pos", "body_quat"), "its parent body", "origin"),
)


SCENE: tuple[Quantity, ...] = (
    Quantity(
        family="scene",
        quantity="count",
        unit="1",
        low=0.0,
        high=1e3,
        default=0.0,
        stage="scene",
        choice=True,
        meaning="number of objects of a group; rounded down",
        cause="scene",
    ),
    Quantity(
        family="scene",
        quantity="shape",
        unit="1",
        low=0.0,
        high=1e6,
        default=0.0,
        stage="scene",
        choice=True,
        meaning="index of the object's shape in its set; rounded down",
        cause="scene",
    ),
)


def scene_members(model: mujoco.MjModel, quantity: str) -> list[str]:
    """Return the names of the clutter groups or bodies that have a scene quantity.

    Args:
        model: Compiled model.
        quantity: ``count`` for the clutter groups with a random number of objects, ``shape`` for the bodies with a
            choice of shapes.
    """
    prefix = f"scene/{quantity}/"
    names = (mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_TEXT, i) or "" for i in range(model.ntext))
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
