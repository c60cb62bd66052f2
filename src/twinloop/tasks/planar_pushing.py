"""Predict how pushes move a box on a table, by a quasi-static model.

A push at a point of the box, in a fixed direction relative to the box, moves the box along a circular arc, if the
contact sticks and the friction below the box has an ellipsoidal limit surface (Lynch, Maekawa & Tanie, "Manipulation
and active sensing by pushing using tactile feedback", IROS 1992).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.twin import Twin

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

# Our choice: places of contact as shares of half a side; directions in rad from the side's normal, within the friction
# cone of a coefficient of 0.4 (0.38 rad); lengths in m.
_PLACES = (-0.75, -0.375, 0.0, 0.375, 0.75)
_SLANTS = (-0.3, 0.0, 0.3)
LENGTHS = np.array([0.005, 0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.10, 0.13, 0.16, 0.20, 0.25, 0.30])


@dataclass(frozen=True, kw_only=True)
class Pushes:
    """Candidate pushes of a box in its own frame, one row each. Its sides are numbered +x, −x, +y, −y.

    Attributes:
        half: half length and half width of the box, ``(2,)`` in m.
        radius: ratio of the largest torsional to the largest linear friction, in m. A box rests on its corners, so the
            ratio is half its diagonal.
        side: number of the side that is pushed, ``(n,)``.
        place: distance of the contact from the middle of its side, along x or y, ``(n,)`` in m.
        way: direction of the push, ``(n, 2)``.
        arcs: motion of the box after each push of each of `LENGTHS`: x, y in m and rotation in rad, ``(n, length, 3)``.
    """

    half: Array
    radius: float
    side: Indices
    place: Array
    way: Array
    arcs: Array

    @classmethod
    def of(cls, twin: Twin, body: str) -> Self:
        """Return the candidate pushes of a body.

        Raises:
            InputError: If the body is not one box.
        """
        model = twin.model
        geoms = np.flatnonzero(model.geom_bodyid == model.body(body).id)
        if len(geoms) != 1 or int(model.geom_type[geoms[0]]) != int(mujoco.mjtGeom.mjGEOM_BOX):
            raise InputError(
                f"The body {body} of the twin {twin.name} is not one box, and the expert turns boxes only. "
                "Leave task.push.heading_tolerance out, or write an expert of your own."
            )
        half = model.geom_size[geoms[0], :2].copy()
        side, share, slant = (part.ravel() for part in np.meshgrid(np.arange(4), _PLACES, _SLANTS, indexing="ij"))
        normal, along = side_axes(side)
        place = share * np.where(side < 2, half[1], half[0])
        way = along * np.sin(slant)[:, None] - normal * np.cos(slant)[:, None]
        radius = float(np.hypot(*half))
        arcs = push_arcs(normal * half + along * place[:, None], way, radius)
        return cls(half=half, radius=radius, side=side, place=place, way=way, arcs=arcs)


def side_axes(side: Indices) -> tuple[Array, Array]:
    """Return the outward normals of sides of a box, and the directions along them, each ``(n, 2)`` in its frame."""
    sign, first = np.where(side % 2 == 0, 1.0, -1.0), (side < 2).astype(np.float64)
    return np.stack([sign * first, sign * (1.0 - first)], axis=1), np.stack([1.0 - first, first], axis=1)


def push_arcs(point: Array, way: Array, radius: float) -> Array:
    """Return the motions of a box after pushes of each of `LENGTHS`; see `Pushes`.

    Args:
        point: points of contact in the frame of the box, ``(n, 2)`` in m.
        way: directions in which they move in that frame, unit vectors ``(n, 2)``.
        radius: ratio of torsional to linear friction, in m.
    """
    (px, py), (ux, uy), square = point.T, way.T, radius**2
    share = square + px**2 + py**2
    vx = (((square + px**2) * ux + px * py * uy) / share)[:, None]
    vy = ((px * py * ux + (square + py**2) * uy) / share)[:, None]
    angle = (px[:, None] * vy - py[:, None] * vx) / square * LENGTHS
    ahead = np.sinc(angle / np.pi) * LENGTHS  # along the first direction of the arc
    aside = np.sinc(angle / (2.0 * np.pi)) * np.sin(0.5 * angle) * LENGTHS  # to its left
    return np.stack([ahead * vx - aside * vy, aside * vx + ahead * vy, angle], axis=-1)
