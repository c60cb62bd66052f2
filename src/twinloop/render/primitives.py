"""Intersect the rays of pixels with primitive shapes in closed form, to correct the depth and normals of a rasterizer.

A rasterizer draws a sphere with flat faces, which are inside the sphere by up to 1.2 % of its radius for 20 faces per
circle. Here the rasterizer only determines which geom a pixel shows. The position and normal of the geom's surface are
then computed exactly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.imaging import Intrinsics

Array = NDArray[np.float64]
Intersector = Callable[[Array, Array, Array], tuple[Array, Array]]
"""Function that intersects n rays with one shape, in the geom's own axes.

Its arguments are the common start ``(3,)``, the directions ``(n, 3)`` and ``geom_size``. It returns distances ``(n,)``
in units of the directions' lengths, and outward normals ``(n, 3)`` of any length; nan for a ray that misses.
"""


def make_surfaces_exact(
    lens: Intrinsics,
    ids: NDArray[np.int32],
    world_from_camera: Array,
    model: mujoco.MjModel,
    data: mujoco.MjData,
    out: Mapping[str, NDArray],
) -> None:
    """Replace the depth and the normals of primitive geoms in a rasterizer's image by exact values.

    Args:
        lens: intrinsics of the camera.
        ids: geom ids of the image ``(height, width)``; negative for none.
        world_from_camera: pose of the camera ``(4, 4)``.
        model, data: posed model.
        out: arrays of the image, changed in place under the keys ``depth`` and ``normal`` if it has them.
    """
    if not ({"depth", "normal"} & out.keys() and model.ngeom):
        return
    kinds = PRIMITIVES if "normal" in out else ROUND
    distance, normal = intersect_primitives(kinds, ids.ravel(), _pixel_rays(lens), world_from_camera, model, data)
    if "depth" in out:
        flat = (model.geom_type == _GEOM.mjGEOM_PLANE) | (model.geom_type == _GEOM.mjGEOM_BOX)  # exact as drawn
        distance[flat[ids.ravel()]] = np.nan
        _replace(out["depth"], distance)
    if "normal" in out:
        _replace(out["normal"], normal)


def _replace(image: NDArray[np.float32], exact: NDArray[np.float64]) -> None:
    """Overwrite an image in place with exact values ``(height * width, …)``; a nan leaves the pixel unchanged."""
    exact = exact.reshape(image.shape)
    np.copyto(image, exact, where=~np.isnan(exact), casting="same_kind")


@functools.lru_cache(maxsize=8)
def _pixel_rays(lens: Intrinsics) -> NDArray[np.float64]:
    """Return the points ``(height * width, 3)`` on the rays of all pixel centres at a depth of 1 m, in camera axes."""
    return lens.unproject(lens.pixel_centres()).reshape(-1, 3)


def intersect_primitives(
    kinds: Mapping[int, Intersector],
    ids: NDArray[np.int32],
    rays: Array,
    world_from_camera: Array,
    model: mujoco.MjModel,
    data: mujoco.MjData,
) -> tuple[Array, Array]:
    """Return the exact distance and normal of the primitive geom that each pixel shows.

    Args:
        kinds: intersection functions by geom type, such as `PRIMITIVES` (plane, box and round geoms). Geoms of other
            types are skipped.
        ids: id of the geom that each ray's pixel shows, ``(n,)``; negative for none.
        rays: directions from the camera ``(n, 3)`` in camera axes (x right, y down, z forward).
        world_from_camera: pose of the camera ``(4, 4)``.
        model: model with the types and sizes of the geoms.
        data: data with the poses of the geoms.

    Returns:
        Distances ``(n,)`` in units of the rays' lengths, and unit normals ``(n, 3)`` in camera axes. Both are nan for
        geoms of other types, and for a ray that misses the exact shape at its silhouette.
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
    """Yield every geom id with the indices of its pixels, in chunks.

    The chunks fit the processor's cache, which is three times as fast as whole images.
    """
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
    """Intersect n rays with a box by the slab method.

    A ray enters the box at the last of its entries into the three pairs of parallel planes.

    Args:
        start: common start of the rays in the box's axes, ``(3,)``.
        rays: directions, ``(n, 3)``.
        size: half sizes of the box, ``(3,)``.

    Returns:
        Distances ``(n,)`` in units of the directions' lengths, nan for a miss; and outward normals ``(n, 3)``.
    """
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
    """Return the distances ``(n,)`` at which rays enter the unit sphere, in units of their lengths; nan for a miss.

    With ``start`` ``(2,)`` and ``rays`` ``(n, 2)`` instead of 3 axes, it intersects a unit circle.
    """
    square, along = np.einsum("ni,ni->n", rays, rays), rays @ start
    with np.errstate(divide="ignore", invalid="ignore"):
        return (-along - np.sqrt(along**2 - square * (start @ start - 1.0))) / square


_GEOM = mujoco.mjtGeom
ROUND: dict[int, Intersector] = {
    int(_GEOM.mjGEOM_SPHERE): _sphere,
    int(_GEOM.mjGEOM_ELLIPSOID): _ellipsoid,
    int(_GEOM.mjGEOM_CAPSULE): _capsule,
    int(_GEOM.mjGEOM_CYLINDER): _cylinder,
}
PRIMITIVES: dict[int, Intersector] = {int(_GEOM.mjGEOM_PLANE): _plane, int(_GEOM.mjGEOM_BOX): _box, **ROUND}
