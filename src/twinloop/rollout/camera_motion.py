"""How far things move in a picture while it is taken, from which follows how often the world has to be looked at."""

from __future__ import annotations

import math

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.intrinsics import Intrinsics
from twinloop.render import Fields, SceneStates
from twinloop.render.cameras import opencv_pose
from twinloop.render.scene import PosedScene, camera_ids

STILL = 0.25  # pixels; what moves less looks the same in one look
_STRIDE = 1.0  # pixels between two looks; of larger ones an edge is seen in steps
_NEAR = 0.02  # m; what is nearer than that lies at the lens
_SIGNS = np.array([[x, y, z] for x in (-1.0, 1.0) for y in (-1.0, 1.0) for z in (-1.0, 1.0)])


def looks_needed(pixels: float, most: int) -> int:
    """How many looks a picture needs in which something moves so far."""
    if pixels < STILL or most == 1:
        return 1
    return min(most, 1 + math.ceil(pixels / _STRIDE))


class PictureMotion:
    """Measures motion in the pictures of one camera of a model."""

    def __init__(self, model: mujoco.MjModel, camera: str) -> None:
        self._posed, self._camera = PosedScene(model), camera_ids(model, [camera])[camera]
        boxed = np.flatnonzero((model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE) & (model.geom_rgba[:, 3] > 0.0))
        self._geoms = boxed
        middle, half = model.geom_aabb[boxed, :3], model.geom_aabb[boxed, 3:]
        self._corners = middle[:, None] + half[:, None] * _SIGNS  # (ngeom, 8, 3) in the geoms' axes

    def pixels(self, states: SceneStates, fields: Fields, view: Intrinsics) -> float:
        """The farthest that anything in view moves between the first and the last of the states, in pixels.

        Looked at are the corners of the geoms' bounding boxes, and, for what lies far away, the turn of the camera.

        Args:
            fields: of all states, or one for each.
        """
        self._posed.set_fields(fields, len(states))
        ends = [self._seen(states, frame, view) for frame in (0, len(states) - 1)]
        moved = np.linalg.norm(ends[1][0] - ends[0][0], axis=-1)
        turn = ends[0][1].T @ ends[1][1]
        border = view.unproject(
            np.array([[0.0, 0.0], [view.width, 0.0], [0.0, view.height], [view.width, view.height]])
        )
        turned = np.linalg.norm(view.project(border @ turn) - view.project(border), axis=-1)
        found = np.concatenate([moved.ravel(), turned])
        return float(np.nanmax(found, initial=0.0))

    def _seen(
        self, states: SceneStates, frame: int, view: Intrinsics
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where the corners lie in the picture, nan where outside; and the camera's axes in the world."""
        self._posed.pose(states, frame)
        data = self._posed.data
        axes = data.geom_xmat[self._geoms].reshape(-1, 3, 3)
        corners = np.einsum("gij,gkj->gki", axes, self._corners) + data.geom_xpos[self._geoms][:, None]
        pose = opencv_pose(data.cam_xpos[self._camera], data.cam_xmat[self._camera])
        points = (corners - pose[:3, 3]) @ pose[:3, :3]
        pixels = view.project(np.where(points[..., 2:] > _NEAR, points, np.nan))
        around = np.array([view.width, view.height]) / 2.0
        outside = (np.abs(pixels - around) > 1.5 * around).any(axis=-1)
        pixels[outside] = np.nan
        return pixels, pose[:3, :3]
