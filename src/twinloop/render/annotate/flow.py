"""Compute the optical flow between two images, and the positions of named keypoints in images.

Optical flow is the displacement of each pixel's surface point from one image to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.imaging import Intrinsics
from twinloop.render.annotate.instances import DRAWN_GROUPS, InstanceTable

Array = NDArray[np.float64]
# A pixel shows a point if their distances agree within 0.5 mm plus 0.05 % of the distance. Our choice: above the
# rounding of float32 depth buffers and far below the thickness of objects.
SAME_M, SAME_PART = 5e-4, 5e-4


@dataclass(frozen=True, kw_only=True)
class FrameView:
    """One camera's view of one frame.

    Attributes:
        depth: distance along the optical axis in m, ``(H, W)``.
        geom: id of the geom that each pixel shows, -1 for none, ``(H, W)``.
        pinhole: intrinsics of the image.
        world_from_camera: pose of the camera in the world, ``(4, 4)``; camera axes are x right, y down, z forward.
        world_from_geom: poses of all geoms, ``(ngeom, 4, 4)``.
    """

    depth: NDArray[np.float32]
    geom: NDArray[np.int32]
    pinhole: Intrinsics
    world_from_camera: Array
    world_from_geom: Array


def forward_flow(now: FrameView, then: FrameView) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the displacement of each pixel's surface point from one image to the next (forward optical flow).

    Args:
        now: first view.
        then: view of the same camera in the next frame.

    Returns:
        Two arrays:

        - flow ``(H, W, 2)`` in pixels to the right and down; nan for a pixel that shows no surface, or if its point is
          behind the camera in the next frame;
        - mask ``(H, W)``: true if the next image shows the point, that is, if the point is inside the image and no
          surface hides it, including other surfaces of its own body.
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
    """Return the position of every pixel's point in the next image, ``(H, W, 2)`` in px, and its depth ``(H, W)`` in m.

    A pixel (u, v) at depth z is the point z K⁻¹ (u, v, 1), where K is the pinhole's matrix. All points of a geom move
    rigidly, so one matrix and one shift per geom map z (u, v, 1) to the next image. Single precision gives an error of
    about 1e-4 px.
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
    """Return whether an image shows the given surface points, ``(n,)``.

    A point is visible if its pixel shows its geom at the point's depth. On a slanted surface depth varies within a
    pixel. There, a point is also visible if its depth is between the smallest and largest depth of those of the four
    surrounding pixels that show the geom.

    Args:
        view: the image.
        pixels: positions of the points in the image, ``(n, 2)`` in px.
        distance: depths of the points along the optical axis, ``(n,)`` in m.
        geom: ids of the points' geoms, ``(n,)``.
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
    """Return the four pixels around each point of an image.

    Args:
        pinhole: intrinsics, which have the size of the image.
        pixels: positions of the points, ``(n, 2)`` in px.

    Returns:
        Rows ``(n, 4)`` and columns ``(n, 4)`` of the pixels, and whether each point is inside the image, ``(n,)``.
    """
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

    Attributes:
        name: names of the keypoints.
        instance: numbers of their objects, ``(k,)``.
        world: positions in world axes, ``(k, 3)`` in m.
        camera: positions in camera axes, ``(k, 3)`` in m.
        pixel: positions in the image, ``(k, 2)`` in px; nan behind the camera.
        inside: whether each keypoint is inside the image, ``(k,)``.
        visible: whether each keypoint is inside the image and not hidden, ``(k,)``.
    """

    name: tuple[str, ...]
    instance: NDArray[np.intp]
    world: Array
    camera: Array
    pixel: Array
    inside: NDArray[np.bool_]
    visible: NDArray[np.bool_]


class Keypoints:
    """Keypoints of a model: its named sites, and the box corners of its objects.

    Only objects of the classes ``object``, ``target`` and ``distractor`` have corners. The eight corners of an object
    are named ``NAME/corner_0`` to ``NAME/corner_7``.
    """

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
        """Return the positions and visibility of the keypoints in an image.

        The corners of an object without a visible geom, such as an empty slot of the scene, are left out.

        Args:
            view: the image.
            model: model after the parameter values of the world were written.
            data: data with the poses of sites and geoms.
            corners: box corners of all objects by object number in world axes, ``(1 + number of objects, 8, 3)`` in m.
                Row 0 is no object and unused; rows are nan for an object without a visible geom.
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
    """Return whether no visible geom hides each of the points from the camera, ``(n,)``.

    A point on a surface is not hidden by that surface.

    Args:
        model, data: model and poses.
        eye: position of the camera in the world, ``(3,)`` in m.
        points: positions in the world, ``(n, 3)`` in m.
    """
    count, ways = len(points), points - eye
    length = np.linalg.norm(ways, axis=1)
    met, distance = np.empty(count, dtype=np.int32), np.empty(count)
    drawn = (np.arange(mujoco.mjNGROUP) < DRAWN_GROUPS).astype(np.uint8)
    rays = (ways / length[:, None]).ravel()
    mujoco.mj_multiRay(model, data, eye, rays, drawn, True, -1, met, distance, None, count, mujoco.mjMAXVAL)
    return (distance < 0.0) | (distance > length * (1.0 - SAME_PART) - SAME_M)
