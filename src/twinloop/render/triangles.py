"""Compute triangle meshes of MuJoCo's geom shapes; the largest error on round shapes can be chosen."""

from __future__ import annotations

import math

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError

CHORD = 1e-4  # m; largest distance of triangles inside a round shape: our choice, a tenth of a depth camera's unit
_LEAST, _MOST = 24, 512  # segments of a full circle
_KIND = mujoco.mjtGeom

Triangles = tuple[NDArray[np.float64], NDArray[np.int32]]
"""Triangle mesh: corners ``(n, 3)`` in m, and the row numbers of the corners of m triangles, ``(m, 3)``."""


def make_triangles(model: mujoco.MjModel, geom: int, *, chord: float = CHORD) -> Triangles:
    """Return the surface of a geom as triangles in the geom's own axes.

    Args:
        model: compiled model.
        geom: id of the geom.
        chord: largest distance in m between a round shape and its triangles, which are inside it.

    Raises:
        InputError: If the shape has no triangles: a plane, which may be infinite, or a signed distance field.
    """
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    match kind:
        case _KIND.mjGEOM_SPHERE:
            return _make_ellipsoid(size[[0, 0, 0]], 0.0, chord)
        case _KIND.mjGEOM_ELLIPSOID:
            return _make_ellipsoid(size, 0.0, chord)
        case _KIND.mjGEOM_CAPSULE:
            return _make_ellipsoid(size[[0, 0, 0]], float(size[1]), chord)
        case _KIND.mjGEOM_CYLINDER:
            return _cylinder(float(size[0]), float(size[1]), chord)
        case _KIND.mjGEOM_BOX:
            return _box(size)
        case _KIND.mjGEOM_MESH:
            return _mesh(model, int(model.geom_dataid[geom]))
        case _KIND.mjGEOM_HFIELD:
            return _height_field(model, int(model.geom_dataid[geom]))
        case _:
            raise InputError(
                f"The geom {model.geom(geom).name or geom} has no triangles (type {_KIND(kind).name}). "
                "Cast rays with mujoco, or render with gl."
            )


def _segments(radius: float, chord: float) -> int:
    """Return the even number of straight segments that approximate a full circle, from 24 to 512.

    A segment over an angle a is at most r (1 - cos(a / 2)) inside a circle of radius r.

    Args:
        radius: radius r, in m.
        chord: largest distance of a segment inside the circle, in m.
    """
    wanted = math.pi / math.acos(max(1.0 - chord / radius, -1.0)) if radius > 0.0 else 0.0
    return 2 * math.ceil(min(max(wanted, _LEAST), _MOST) / 2)


def _make_ellipsoid(radii: NDArray[np.float64], half: float, chord: float) -> Triangles:
    """Return the triangles of an ellipsoid (``half`` 0) or a capsule (``half`` above 0).

    Args:
        radii: half-axes ``(3,)`` in m.
        half: distance in m by which the upper half is moved along +z and the lower half along -z.
        chord: largest distance in m between the shape and its triangles.
    """
    count = _segments(float(radii.max()), chord / 2.0)  # an ellipsoid is curved in two directions
    latitude = np.linspace(-math.pi / 2, math.pi / 2, count // 2 + 1)
    if half > 0.0:
        latitude = np.insert(latitude, count // 4 + 1, latitude[count // 4])
    upper = np.arange(len(latitude)) >= len(latitude) // 2 if half > 0.0 else np.zeros(len(latitude), dtype=bool)
    shift = half * np.where(upper, 1.0, -1.0) if half > 0.0 else np.zeros(len(latitude))
    rim = np.cos(latitude)
    rim[[0, -1]] = 0.0  # a pole is one point, so that no ray passes through
    corners, faces = _revolve_profile(rim, np.sin(latitude), count)
    return corners * radii + np.array([0.0, 0.0, 1.0]) * np.repeat(shift, count)[:, None], faces


def _cylinder(radius: float, half: float, chord: float) -> Triangles:
    count = _segments(radius, chord)
    return _revolve_profile(np.array([0.0, radius, radius, 0.0]), np.array([-half, -half, half, half]), count)


def _revolve_profile(radius: NDArray[np.float64], height: NDArray[np.float64], count: int) -> Triangles:
    """Return the surface of revolution of a profile about the z axis.

    Seen from outside, its triangles are counter-clockwise if the profile rises.

    Args:
        radius, height: points of the profile in m, ``(k,)``.
        count: number of segments of the circle.
    """
    angle = 2.0 * math.pi * np.arange(count) / count
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    corners = np.concatenate(
        [radius[:, None, None] * ring, np.broadcast_to(height[:, None, None], (len(height), count, 1))], axis=-1
    )
    here = np.arange(len(radius) - 1)[:, None] * count + np.arange(count)
    following = np.roll(here, -1, axis=1)
    quads = [[here, following, following + count], [here, following + count, here + count]]
    faces = np.concatenate([np.stack(three, axis=-1).reshape(-1, 3) for three in quads])
    return corners.reshape(-1, 3), faces.astype(np.int32)


def _box(size: NDArray[np.float64]) -> Triangles:
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * size
    sides = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    return corners, np.array([side[:3] for side in sides] + [(a, c, d) for a, _, c, d in sides], dtype=np.int32)


def _mesh(model: mujoco.MjModel, mesh: int) -> Triangles:
    corner, face = model.mesh_vertadr[mesh], model.mesh_faceadr[mesh]
    corners = model.mesh_vert[corner : corner + model.mesh_vertnum[mesh]]
    return np.array(corners, dtype=np.float64), np.array(
        model.mesh_face[face : face + model.mesh_facenum[mesh]], dtype=np.int32
    )


def _height_field(model: mujoco.MjModel, field: int) -> Triangles:
    """Return a height field as a closed block: the upper surface with two triangles per grid cell, sides and floor."""
    rows, columns = int(model.hfield_nrow[field]), int(model.hfield_ncol[field])
    begin, (half_x, half_y, height, base) = model.hfield_adr[field], model.hfield_size[field]
    x, y = np.meshgrid(np.linspace(-half_x, half_x, columns), np.linspace(-half_y, half_y, rows))
    upper = np.stack([x.ravel(), y.ravel(), height * model.hfield_data[begin : begin + rows * columns]], axis=-1)
    grid = np.arange(rows * columns).reshape(rows, columns)
    here, right, above, across = (part.ravel() for part in (grid[:-1, :-1], grid[:-1, 1:], grid[1:, :-1], grid[1:, 1:]))
    rim = np.concatenate([grid[0], grid[1:, -1], grid[-1, -2::-1], grid[-2:0:-1, 0]])  # counter-clockwise
    foot = len(upper) + np.arange(len(rim))
    lower = upper[rim] * [1.0, 1.0, 0.0] - [0.0, 0.0, base]
    after, below = np.roll(rim, -1), np.roll(foot, -1)
    fan = [np.broadcast_to(foot[0], len(foot)), below, foot]  # the floor is a rectangle, so a triangle fan covers it
    faces = [[here, right, across], [here, across, above], [rim, foot, after], [after, foot, below], fan]
    return np.concatenate([upper, lower]), np.concatenate([np.stack(three, axis=-1) for three in faces]).astype(
        np.int32
    )
