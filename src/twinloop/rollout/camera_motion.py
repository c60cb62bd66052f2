"""How far things move in a picture while it is taken, from which follows how often the world has to be looked at."""

from __future__ import annotations

import math

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.imaging import Intrinsics
from twinloop.render import Fields, SceneStates
from twinloop.render.cameras import opencv_pose
from twinloop.render.scene import PosedScene, camera_ids

STILL = 0.25  # pixels; what moves less looks the same in one subframe
_STRIDE = 1.0  # pixels between two subframes; of larger ones an edge is seen in steps
_NEAR = 0.02  # m; what is nearer than that lies at the lens
# Points of a box, in halves of its sides, and directions in a view, in halves of its picture: what is small shows at
# its own points, what is large or lies behind at the points where it is looked at.
_LATTICE = np.array([[x, y, z] for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0) for z in (-1.0, 0.0, 1.0)])
_GRID = np.array([[x, y] for x in np.linspace(-1.0, 1.0, 5) for y in np.linspace(-1.0, 1.0, 5)])


def subframes_needed(pixels: float, most: int) -> int:
    """How many subframes a picture needs in which something moves so far."""
    if pixels < STILL or most == 1:
        return 1
    return min(most, 1 + math.ceil(pixels / _STRIDE))


class PictureMotion:
    """Measures motion in the pictures of one camera of a model."""

    def __init__(self, model: mujoco.MjModel, camera: str) -> None:
        self._posed, self._camera = PosedScene(model), camera_ids(model, [camera])[camera]
        plane = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
        boxed = np.flatnonzero(~plane & (model.geom_rgba[:, 3] > 0.0))
        middle, half = model.geom_aabb[boxed, :3], model.geom_aabb[boxed, 3:]
        self._geoms = np.repeat(boxed, len(_LATTICE))
        self._points = (middle[:, None] + half[:, None] * _LATTICE).reshape(-1, 3)  # in the geoms' axes

    def pixels(self, states: SceneStates, fields: Fields, view: Intrinsics) -> float:
        """The farthest that anything in view moves between the first and the last of the states, in pixels.

        Looked at are points of the geoms' bounding boxes, the points of surfaces that a grid of directions meets, and,
        for what lies far away, the turn of the camera.

        Args:
            fields: of all states, or one for each.
        """
        self._posed.set_fields(fields, len(states))
        self._posed.pose(states, 0)
        geoms, points = self._met(view)
        geoms, points = np.append(self._geoms, geoms), np.concatenate([self._points, points])
        before, axes = self._seen(geoms, points, view)
        self._posed.pose(states, len(states) - 1)
        after, turned_axes = self._seen(geoms, points, view)
        moved = np.linalg.norm(after - before, axis=-1)
        corners = view.unproject((_GRID + 1.0) / 2.0 * [view.width, view.height])
        turned = view.project(corners @ axes.T @ turned_axes) - view.project(corners)
        found = np.concatenate([moved, np.linalg.norm(turned, axis=-1)])
        return float(np.nanmax(found, initial=0.0))

    def _met(self, view: Intrinsics) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Geoms that are looked at, and the points met, ``(k, 3)`` in the geoms' axes."""
        model, data = self._posed.model, self._posed.data
        pose = opencv_pose(data.cam_xpos[self._camera], data.cam_xmat[self._camera])
        toward = view.unproject((_GRID + 1.0) / 2.0 * [view.width, view.height]) @ pose[:3, :3].T
        toward /= np.linalg.norm(toward, axis=-1, keepdims=True)
        geom, distance = np.full(len(toward), -1, dtype=np.int32), np.zeros(len(toward))
        eye = pose[:3, 3].copy()
        mujoco.mj_multiRay(
            model, data, eye, toward.ravel(), None, 1, -1, geom, distance, None, len(toward), mujoco.mjMAXVAL
        )
        (met,) = np.nonzero(geom >= 0)
        geoms = geom[met].astype(np.intp)
        apart = eye + distance[met, None] * toward[met] - data.geom_xpos[geoms]
        return geoms, np.einsum("kij,ki->kj", data.geom_xmat[geoms].reshape(-1, 3, 3), apart)

    def _seen(
        self, geoms: NDArray[np.intp], points: NDArray[np.float64], view: Intrinsics
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where points of geoms lie in the picture, nan where far outside; and the camera's axes in the world."""
        data = self._posed.data
        world = np.einsum("kij,kj->ki", data.geom_xmat[geoms].reshape(-1, 3, 3), points) + data.geom_xpos[geoms]
        pose = opencv_pose(data.cam_xpos[self._camera], data.cam_xmat[self._camera])
        before = (world - pose[:3, 3]) @ pose[:3, :3]
        pixels = view.project(np.where(before[..., 2:] > _NEAR, before, np.nan))
        around = np.array([view.width, view.height]) / 2.0
        outside = (np.abs(pixels - around) > 1.5 * around).any(axis=-1)
        pixels[outside] = np.nan
        return pixels, pose[:3, :3]
