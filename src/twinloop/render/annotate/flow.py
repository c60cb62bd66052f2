"""Compute the positions of an image's points in the next image, and track named points through images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.imaging import Intrinsics
from twinloop.render.annotate.instances import DRAWN_GROUPS, InstanceTable

Array = NDArray[np.float64]
# A pixel shows a point if their distances agree within half a millimetre plus half a thousandth: above the rounding
# of float32 depth buffers and far below the thickness of objects; our choice.
SAME_M, SAME_PART = 5e-4, 5e-4


@dataclass(frozen=True, kw_only=True)
class FrameView:
    """View of a camera in one frame.

    ``depth`` ``(H, W)`` in m, ``geom`` ids ``(H, W)``, its pinhole and pose ``world_from_camera`` ``(4, 4)``, and
    the poses of the geoms ``world_from_geom`` ``(ngeom, 4, 4)``.
    """

    depth: NDArray[np.float32]
    geom: NDArray[np.int32]
    pinhole: Intrinsics
    world_from_camera: Array
    world_from_geom: Array


def forward_flow(now: FrameView, then: FrameView) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the motion of each pixel's point from one image to the next.

    Returns:
        Flow ``(H, W, 2)`` in px to the right and down, nan without a surface or for a point then behind the camera; and
        whether the next image shows the point, ``(H, W)``: within its edges and not occluded, also not by its own body.
    """
    pixels, distance = _project_to_next(now, then)
    valid = (now.geom >= 0) & (distance > 0.0)
    flow = np.where(valid[..., None], pixels - now.pinhole.pixel_centres(), np.nan).astype(np.float32)
    there = np.flatnonzero(valid)
    seen = np.zeros(valid.size, dtype=bool)
    flat = pixels.reshape(-1, 2)[there], distance.ravel()[there], now.geom.ravel()[there]
    seen[there] = are_visible(then, *flat)
    return flow, seen.reshape(valid.shape)


def _project_to_next(now: FrameView, then: FrameView) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the position of every pixel's point in the next image ``(H, W, 2)``, and its distance ``(H, W)``.

    A pixel (u, v) at distance z is the point z K⁻¹ (u, v, 1), so the result is linear in z (u, v, 1) with one matrix
    per geom. Single precision: the error of positions is about 1e-4 px.
    """
    motion = (
        np.linalg.inv(then.world_from_camera)
        @ then.world_from_geom
        @ np.linalg.inv(now.world_from_geom)
        @ now.world_from_camera
    )
    turn = then.pinhole.matrix @ motion[:, :3, :3] @ np.linalg.inv(now.pinhole.matrix)
    shift = motion[:, :3, 3] @ then.pinhole.matrix.T
    tables, geom = np.concatenate([turn, shift[..., None]], axis=-1).astype(np.float32), now.geom
    depth = np.where(geom >= 0, now.depth, 1.0).astype(np.float32)
    column = (np.arange(depth.shape[1], dtype=np.float32) + 0.5)[None, :]
    row = (np.arange(depth.shape[0], dtype=np.float32) + 0.5)[:, None]

    def component(i: int) -> NDArray[np.float32]:
        a, b, c, d = (np.take(tables[:, i, j], geom, mode="clip") for j in range(4))
        return np.asarray((a * column + b * row + c) * depth + d, dtype=np.float32)

    distance = component(2)
    per_metre = np.reciprocal(np.where(distance > 0.0, distance, np.float32(1.0)))
    return np.stack([component(0) * per_metre, component(1) * per_metre], axis=-1), distance


def are_visible(
    view: FrameView, pixels: NDArray[Any], distance: NDArray[Any], geom: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return whether an image shows points of geoms ``(n,)`` at pixels ``(n, 2)``, ``distance`` ``(n,)`` m away.

    A point is visible if its pixel shows the geom at this distance. On a slanted surface distances differ within a
    pixel: then the point is visible if the distances of the surrounding four pixels that show the geom enclose its
    distance.
    """
    width, height = view.pinhole.width, view.pinhole.height
    column, row = pixels[:, 0], pixels[:, 1]
    inside = (column >= 0.0) & (column < width) & (row >= 0.0) & (row < height)
    place = np.where(inside, row, 0.0).astype(np.intp) * width + np.where(inside, column, 0.0).astype(np.intp)
    slack = SAME_M + SAME_PART * distance
    seen = inside & (view.geom.ravel()[place] == geom) & (np.abs(view.depth.ravel()[place] - distance) <= slack)
    rest = np.flatnonzero(inside & ~seen)
    rows, columns, _ = find_neighbours(view.pinhole, pixels[rest])
    same = view.geom[rows, columns] == geom[rest, None]
    depth = view.depth[rows, columns]
    low = np.where(same, depth, np.inf).min(axis=1) - slack[rest]
    high = np.where(same, depth, -np.inf).max(axis=1) + slack[rest]
    seen[rest] = (low <= distance[rest]) & (distance[rest] <= high)
    return seen


def find_neighbours(
    pinhole: Intrinsics, pixels: NDArray[Any]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """Return rows and columns ``(n, 4)`` of the pixels around points of an image, and whether they are within it."""
    column, row = pixels[:, 0], pixels[:, 1]
    inside = (column >= 0.0) & (column <= pinhole.width) & (row >= 0.0) & (row <= pinhole.height)
    left, top = (np.where(inside, np.floor(np.nan_to_num(x) - 0.5), 0.0).astype(np.intp) for x in (column, row))
    columns = np.clip(left[:, None] + [0, 1, 0, 1], 0, pinhole.width - 1)
    rows = np.clip(top[:, None] + [0, 0, 1, 1], 0, pinhole.height - 1)
    return rows, columns, inside


_CORNERED = ("object", "target", "distractor")


@dataclass(frozen=True, kw_only=True)
class KeypointRows:
    """Keypoints in one image, ``k`` rows.

    ``world`` and ``camera`` ``(k, 3)`` in m, ``pixel`` ``(k, 2)``, nan behind the camera; whether a point is within the
    image, and whether it is also not occluded.
    """

    name: tuple[str, ...]
    instance: NDArray[np.intp]
    world: Array
    camera: Array
    pixel: Array
    inside: NDArray[np.bool_]
    visible: NDArray[np.bool_]


class Keypoints:
    """Tracked points of a model: sites by name, and ``NAME/corner_0`` to ``7`` of objects' boxes."""

    def __init__(self, model: mujoco.MjModel, things: InstanceTable) -> None:
        named = [(i, model.site(i).name) for i in range(model.nsite) if model.site(i).name]
        self._sites = np.array([i for i, _ in named], dtype=np.intp)
        cornered = [item for item in things.instances if item.class_name in _CORNERED]
        self._cornered = np.array([item.id for item in cornered], dtype=np.intp)
        self._names = [name for _, name in named]
        self._names += [f"{item.name}/corner_{i}" for item in cornered for i in range(8)]
        self._instance = np.concatenate([model.site_bodyid[self._sites], np.repeat(self._cornered, 8)]).astype(np.intp)

    def locate_keypoints(
        self, view: FrameView, model: mujoco.MjModel, data: mujoco.MjData, corners: Array
    ) -> KeypointRows:
        """Return the keypoints in an image, of those that exist.

        Args:
            model: model with the world's fields.
            data: the poses of sites and geoms.
            corners: corners of all objects' boxes by number, in the world, ``(1 + n, 8, 3)``, nan for an absent object.
        """
        world = np.concatenate([data.site_xpos[self._sites], corners[self._cornered].reshape(-1, 3)])
        there = np.flatnonzero(np.isfinite(world).all(axis=1))
        world = world[there]
        camera = (world - view.world_from_camera[:3, 3]) @ view.world_from_camera[:3, :3]
        pixel = view.pinhole.project(camera)
        size = np.array([view.pinhole.width, view.pinhole.height])
        inside = np.asarray(((pixel >= 0.0) & (pixel < size)).all(axis=1))
        return KeypointRows(
            name=tuple(self._names[i] for i in there),
            instance=self._instance[there],
            world=world,
            camera=camera,
            pixel=pixel,
            inside=inside,
            visible=inside & _are_unoccluded(model, data, view.world_from_camera[:3, 3], world),
        )


def _are_unoccluded(model: mujoco.MjModel, data: mujoco.MjData, eye: Array, points: Array) -> NDArray[np.bool_]:
    """Return whether no visible geom is between a camera and points ``(n, 3)``, except the point's own surface."""
    count, ways = len(points), points - eye
    length = np.linalg.norm(ways, axis=1)
    met, distance = np.empty(count, dtype=np.int32), np.empty(count)
    drawn = (np.arange(mujoco.mjNGROUP) < DRAWN_GROUPS).astype(np.uint8)
    rays = (ways / length[:, None]).ravel()
    mujoco.mj_multiRay(model, data, eye, rays, drawn, True, -1, met, distance, None, count, mujoco.mjMAXVAL)
    return (distance < 0.0) | (distance > length * (1.0 - SAME_PART) - SAME_M)
