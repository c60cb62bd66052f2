"""Where still things stand: shapes such as a table's plate, and bodies such as a robot's base."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from twinloop.twin.quantities.kinds import Compute, Quantity, Target
from twinloop.twin.quantities.rotation import quat_from_rotation_vector, quat_multiply


def _place(target: Target, position: str, quaternion: str) -> None:
    (row,) = target.rows(position)
    own = getattr(target.model, position)[row], getattr(target.model, quaternion)[row]
    turn = quat_from_rotation_vector(target.vector("rotation"))
    target.put(position, [row], (own[0] + target.vector("position"))[:, None])
    target.put(quaternion, [row], quat_multiply(turn, np.broadcast_to(own[1], turn.shape))[:, None])


def place_geom(target: Target) -> None:
    """A shape moved and turned about its own centre, along the axes of the body it belongs to."""
    _place(target, "geom_pos", "geom_quat")


def place_body(target: Target) -> None:
    """A still body moved and turned about its own origin, along the axes of the body it stands on."""
    _place(target, "body_pos", "body_quat")


def _offsets(family: str, compute: Compute, fields: tuple[str, str], frame: str, middle: str) -> Iterator[Quantity]:
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
            )


PLACEMENT: tuple[Quantity, ...] = (
    *_offsets("geom", place_geom, ("geom_pos", "geom_quat"), "its body (the world, for a table)", "centre"),
    *_offsets("body", place_body, ("body_pos", "body_quat"), "what it stands on", "origin"),
)
