"""Quantities of the world: gravity, wind, air, pushes, poses of fixed bodies, and numbers of objects in a group.

The content of a scene is written into the model as texts ``scene/count/<group>`` and ``scene/shape/<body>`` when it
is built (`twin.scene_build`), so the model alone determines its parameters. Both are integers: a value is rounded
down, and the upper bound means the number below it, so a uniform draw over the bounds gives every number the same
probability.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import mujoco
import numpy as np

from twinloop.twin.quantities.kinds import Alias, Compute, Quantity, WriteTarget, assign
from twinloop.twin.quantities.rotation import quat_from_rotation_vector, quat_multiply, rotate

_TILT = "turn of gravity's direction about the world's {axis} axis, about x first: {effect}"


def _strength(model: mujoco.MjModel, _name: str) -> float:
    return float(np.linalg.norm(model.opt.gravity))


def gravity(target: WriteTarget) -> None:
    """The model's gravity, scaled and turned about x, then about y; straight down where the model has none."""
    own = target.model.opt.gravity
    strength = _strength(target.model, target.name)
    direction = own if strength > 0 else np.array([0.0, 0.0, -1.0])
    vector = direction * (target.value("magnitude") / (strength or 1.0))[:, None]
    for axis, tilt in enumerate((target.value("tilt_x"), target.value("tilt_y"))):
        vector = rotate(quat_from_rotation_vector(tilt[:, None] * np.eye(3)[axis]), vector)
    target.put("opt.gravity", range(3), vector)


def _gravity(quantity: str, unit: str, low: float, high: float, meaning: str, default: float | None = None) -> Quantity:
    return Quantity(
        family="world",
        member="gravity",
        quantity=quantity,
        unit=unit,
        low=low,
        high=high,
        default=default,
        nominal=_strength,
        compute=gravity,
        writes=("opt.gravity",),
        meaning=meaning,
        cause="gravity & mounting",
        term="gravity",
        alias=None if default is None else Alias(name="gravity_tilt"),
    )


def _air(quantity: str, unit: str, high: float, meaning: str) -> Quantity:
    return Quantity(
        family="world",
        member="air",
        quantity=quantity,
        unit=unit,
        low=0.0,
        high=high,
        slots=assign(f"opt.{quantity}"),
        meaning=meaning,
        cause="air",
        term="air",
    )


WORLD: tuple[Quantity, ...] = (
    _gravity("magnitude", "m/s²", 0.0, 100.0, "strength of gravity"),
    _gravity("tilt_x", "rad", -math.pi, math.pi, _TILT.format(axis="x", effect="things fall towards +y"), 0.0),
    _gravity("tilt_y", "rad", -math.pi, math.pi, _TILT.format(axis="y", effect="things fall towards −x"), 0.0),
    *(
        Quantity(
            family="world",
            member="wind",
            quantity=axis,
            unit="m/s",
            low=-100.0,
            high=100.0,
            slots=assign("opt.wind", column),
            meaning=f"velocity of the air along the world's {axis}; acts where the air has density or viscosity. "
            "Of scope step: gusts",
            cause="air",
            term="air",
            neutral=0.0,
        )
        for column, axis in enumerate("xyz")
    ),
    _air("density", "kg/m³", 2000.0, "density of the air (1.2 at sea level; 0: vacuum): drag with the square of speed"),
    _air("viscosity", "Pa·s", 10.0, "viscosity of the air (1.8e-5 at 20 °C): drag in proportion to speed"),
)


def _push(quantity: str, unit: str, low: float, high: float, default: float, meaning: str) -> Quantity:
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


# A force at the body's centre of mass, constant in the world's frame while it lasts; see `simulate.disturbance`.
PUSHES: tuple[Quantity, ...] = (
    _push("force", "N", 0.0, 1e4, 0.0, "strength of a push at the body's centre of mass"),
    _push("azimuth", "rad", -math.pi, math.pi, 0.0, "its direction: angle from the world's x towards y"),
    _push("elevation", "rad", -math.pi / 2, math.pi / 2, 0.0, "its direction: angle above the horizontal"),
    _push("time", "s", 0.0, 1e4, 0.0, "when it first begins"),
    _push("duration", "s", 0.0, 1e4, 0.1, "how long it lasts"),
    _push("period", "s", 0.0, 1e4, 0.0, "time from the beginning of one push to that of the next; 0: there is one"),
)


def _place(target: WriteTarget, position: str, quaternion: str) -> None:
    (row,) = target.rows(position)
    own = getattr(target.model, position)[row], getattr(target.model, quaternion)[row]
    turn = quat_from_rotation_vector(target.vector("rotation"))
    target.put(position, [row], (own[0] + target.vector("position"))[:, None])
    target.put(quaternion, [row], quat_multiply(turn, np.broadcast_to(own[1], turn.shape))[:, None])


def place_geom(target: WriteTarget) -> None:
    """A shape moved and turned about its own centre, along the axes of the body it belongs to."""
    _place(target, "geom_pos", "geom_quat")


def place_body(target: WriteTarget) -> None:
    """Compute the pose of a fixed body, moved and turned about its origin, along the axes of its parent."""
    _place(target, "body_pos", "body_quat")


def _offsets(
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
        ("rotation", "rad", math.pi, fields[1:], "turn about {axis} of {frame}, its {middle} staying"),
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
                seen=True,
                meaning=meaning.format(axis=axis, frame=frame, middle=middle),
                cause="gravity & mounting",
                term=term,
                alias=Alias(name=words[name], target="table") if (name := f"{kind}/{axis}") in words else None,
            )


PLACEMENT: tuple[Quantity, ...] = (
    *_offsets(
        "geom",
        place_geom,
        ("geom_pos", "geom_quat"),
        "its body (the world, for a table)",
        "centre",
        term="table",
        words={"position/z": "table_height_offset", "rotation/x": "table_tilt", "rotation/y": "table_tilt"},
    ),
    *_offsets("body", place_body, ("body_pos", "body_quat"), "what it stands on", "origin"),
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
        meaning="how many things of a group there are; its whole part counts",
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
        meaning="which of its shapes a thing has; its whole part counts",
        cause="scene",
    ),
)


def scene_members(model: mujoco.MjModel, quantity: str) -> list[str]:
    """Groups that have a count, or bodies that have a shape to choose."""
    prefix = f"scene/{quantity}/"
    names = (mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_TEXT, i) or "" for i in range(model.ntext))
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
