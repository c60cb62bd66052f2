"""Intersect the rays of pixels with the primitives that a rasterizer drew there, in closed form.

A rasterizer draws a ball with flat faces, which are inside it by 1.2 % of its radius for 20 faces per circle. The
rasterizer determines the visible geom of a pixel; position and normal of its surface are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import mujoco
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Meet = Callable[[Array, Array, Array], tuple[Array, Array]]
"""Start ``(3,)``, rays ``(n, 3)`` and ``geom_size`` in the geom's own axes to distances ``(n,)`` in units of the ray's
length and outward normals ``(n, 3)`` of any length; nan for a ray that misses."""


def intersect_primitives(
    kinds: Mapping[int, Meet],
    ids: NDArray[np.int32],
    rays: Array,
    world_from_camera: Array,
    model: mujoco.MjModel,
    data: mujoco.MjData,
) -> tuple[Array, Array]:
    """Return distances ``(n,)`` in units of the rays' lengths, and unit normals ``(n, 3)`` in camera axes.

    Both are nan for other kinds of geom, or if the ray just misses the drawn geom.

    Args:
        kinds: intersection functions by geom type, some of `PRIMITIVES`.
        ids: the geom of each ray ``(n,)``, below 0 for none.
        rays: directions from the camera ``(n, 3)`` in its axes (x right, y down, z forward).
        world_from_camera: the camera's pose ``(4, 4)``.
        data: the poses of geoms.
    """
    distance, normal = np.full(len(ids), np.nan), np.full((len(ids), 3), np.nan)
    turn, eye = world_from_camera[:3, :3], world_from_camera[:3, 3]
    for geom, pixels in _split_pixels(ids):
        meet = kinds.get(int(model.geom_type[geom])) if geom >= 0 else None
        if meet is None:
            continue
        world_from_geom = data.geom_xmat[geom].reshape(3, 3)
        start = (eye - data.geom_xpos[geom]) @ world_from_geom
        camera_from_geom = turn.T @ world_from_geom
        away, outward = meet(start, rays[pixels] @ camera_from_geom, model.geom_size[geom])
        distance[pixels] = np.where(away > 0.0, away, np.nan)
        outward = outward / np.sqrt(np.einsum("ni,ni->n", outward, outward))[:, None]
        normal[pixels] = outward @ camera_from_geom.T
    return distance, normal


def _split_pixels(ids: NDArray[np.int32]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield every id and its pixels, in chunks that fit the processor's cache: three times as fast as whole images."""
    order = np.argsort(ids, kind="stable")
    seen, starts = np.unique(ids[order], return_index=True)
    for geom, pixels in zip(seen.tolist(), np.split(order, starts[1:]), strict=True):
        for first in range(0, len(pixels), _PIECE):
            yield geom, pixels[first : first + _PIECE]


_PIECE = 8192


def _plane(start: Array, rays: Array, _size: Array) -> tuple[Array, Array]:
    normal = np.broadcast_to([0.0, 0.0, 1.0 if start[2] >= 0.0 else -1.0], rays.shape)
    with np.errstate(divide="ignore"):
        return -start[2] / rays[:, 2], normal


def _box(start: Array, rays: Array, size: Array) -> tuple[Array, Array]:
    """Intersect rays with a box: a ray enters at the last of its entries into the three pairs of planes."""
    rows, side = np.arange(len(rays)), -np.sign(rays)
    with np.errstate(divide="ignore", invalid="ignore"):
        entering = (side * size - start) / rays
    axis = np.nan_to_num(entering, nan=-np.inf, neginf=-np.inf, posinf=-np.inf).argmax(axis=-1)
    distance = entering[rows, axis]
    normal = np.zeros_like(rays)
    normal[rows, axis] = side[rows, axis]
    inside = np.abs(start + distance[:, None] * rays) <= size * (1.0 + 1e-9)
    return np.where(inside.all(axis=-1), distance, np.nan), normal


def _ellipsoid(start: Array, rays: Array, size: Array) -> tuple[Array, Array]:
    distance = _unit_sphere(start / size, rays / size)
    return distance, (start + distance[:, None] * rays) / size**2


def _sphere(start: Array, rays: Array, size: Array) -> tuple[Array, Array]:
    return _ellipsoid(start, rays, np.full(3, size[0]))


def _cylinder(start: Array, rays: Array, size: Array) -> tuple[Array, Array]:
    radius, half = size[:2]
    distance = _unit_sphere(start[:2] / radius, rays[:, :2] / radius)
    point = start + distance[:, None] * rays
    normal = point * [1.0, 1.0, 0.0]
    above = 1.0 if start[2] >= 0.0 else -1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        cap = (above * half - start[2]) / rays[:, 2]
        on_cap = np.hypot(*(start[:2, None] + cap * rays[:, :2].T)) <= radius
    on_cap &= abs(start[2]) > half
    normal[on_cap] = [0.0, 0.0, above]
    on_side = np.abs(point[:, 2]) <= half
    return np.where(on_cap, cap, np.where(on_side, distance, np.nan)), normal


def _capsule(start: Array, rays: Array, size: Array) -> tuple[Array, Array]:
    radius, half = size[:2]
    distance = _unit_sphere(start[:2] / radius, rays[:, :2] / radius)
    height = start[2] + distance * rays[:, 2]
    for end in (-1.0, 1.0):
        over = end * height > half
        distance[over] = _unit_sphere((start - [0.0, 0.0, end * half]) / radius, rays[over] / radius)
    point = start + distance[:, None] * rays
    point[:, 2] -= np.clip(height, -half, half)
    return distance, point


def _unit_sphere(start: Array, rays: Array) -> Array:
    """Return the distances at which rays enter the unit sphere (or circle), in units of their lengths."""
    square, along = np.einsum("ni,ni->n", rays, rays), rays @ start
    with np.errstate(divide="ignore", invalid="ignore"):
        return (-along - np.sqrt(along**2 - square * (start @ start - 1.0))) / square


_GEOM = mujoco.mjtGeom
ROUND: dict[int, Meet] = {
    int(_GEOM.mjGEOM_SPHERE): _sphere,
    int(_GEOM.mjGEOM_ELLIPSOID): _ellipsoid,
    int(_GEOM.mjGEOM_CAPSULE): _capsule,
    int(_GEOM.mjGEOM_CYLINDER): _cylinder,
}
PRIMITIVES: dict[int, Meet] = {int(_GEOM.mjGEOM_PLANE): _plane, int(_GEOM.mjGEOM_BOX): _box, **ROUND}
