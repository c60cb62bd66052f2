"""Compute intrinsics in pixels and poses of a model's cameras, in OpenCV's camera axes.

The axes are x right, y down, z forward, with the outer corner of the first pixel at (0, 0); see
`core.imaging.Intrinsics`. MuJoCo's own camera axes are x right, y up, z backwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.imaging import Intrinsics
from twinloop.render.protocol import Fields, SceneStates, check_size
from twinloop.render.scene import PosedScene, camera_ids

MUJOCO_FROM_OPENCV = np.diag([1.0, -1.0, -1.0])
"""Rotation from camera axes x right, y down, z forward to MuJoCo's x right, y up, z backwards; its own inverse."""


def intrinsics(
    model: mujoco.MjModel, camera: str, *, height: int, width: int, fields: Fields | None = None
) -> Intrinsics:
    """Return the pinhole of a model's camera in images of a size.

    A camera with ``fovy`` is centred and has square pixels. The image of a camera with ``sensorsize`` covers its sensor
    for any shape of the image, as in MuJoCo's renderer: pixels are square only if both have the same aspect ratio. Its
    principal point (``principal``, in m from the sensor's centre) shifts the image in the opposite direction: cx =
    width · (1/2 - x / sensor width), cy = height · (1/2 - y / sensor height); the signs were measured in images of
    MuJoCo 4.0.

    Args:
        fields: model fields of one world; ``cam_fovy``, ``cam_sensorsize`` and ``cam_intrinsic`` are used.

    Raises:
        UnknownNameError: there is no such camera.
        InputError: an impossible size, or an orthographic camera.
    """
    check_size(height, width)
    row = camera_ids(model, [camera])[camera]

    def value(name: str) -> NDArray[np.float64]:
        return np.asarray((fields or {}).get(name, getattr(model, name)), dtype=np.float64)[row]

    if model.cam_projection[row] != mujoco.mjtProjection.mjPROJ_PERSPECTIVE:
        raise InputError(f"The camera {camera} is orthographic: it has no pinhole. Give it a field of view.")
    sensor = value("cam_sensorsize")
    if not sensor[1] > 0.0:
        return Intrinsics.from_fovy(math.radians(float(value("cam_fovy"))), height=height, width=width)
    pixels = np.array([width, height])
    lens = value("cam_intrinsic")  # focal lengths and principal point, in the unit of the sensor's size
    fx, fy = (pixels * lens[:2] / sensor).tolist()
    cx, cy = (pixels * (0.5 - lens[2:] / sensor)).tolist()
    return Intrinsics(fx=fx, fy=fy, cx=cx, cy=cy, width=width, height=height)


def opencv_pose(xpos: ArrayLike, xmat: ArrayLike) -> NDArray[np.float64]:
    """Return ``world_from_camera`` ``(…, 4, 4)`` in OpenCV's axes of MuJoCo's ``cam_xpos`` and ``cam_xmat``."""
    position = np.asarray(xpos, dtype=np.float64)
    pose = make_transforms(position, xmat)
    pose[..., :3, :3] = pose[..., :3, :3] @ MUJOCO_FROM_OPENCV
    return pose


def make_transforms(xpos: ArrayLike, xmat: ArrayLike) -> NDArray[np.float64]:
    """Return homogeneous matrices ``(…, 4, 4)`` of positions ``(…, 3)`` and rotations ``(…, 9)`` or ``(…, 3, 3)``."""
    position = np.asarray(xpos, dtype=np.float64)
    pose = np.zeros((*position.shape[:-1], 4, 4))
    pose[..., :3, :3] = np.reshape(xmat, (*position.shape[:-1], 3, 3))
    pose[..., :3, 3], pose[..., 3, 3] = position, 1.0
    return pose


def world_from_camera(
    model: mujoco.MjModel, states: SceneStates, fields: Fields | None = None, *, cameras: Sequence[str] | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return the poses ``(n, 4, 4)`` of cameras in every state, in OpenCV's axes; None: of all cameras.

    Args:
        fields: model fields as for `Renderer.render`, of one world or one per frame.

    Raises:
        UnknownNameError: a camera that the model does not have.
        InputError: states or fields do not fit the model.
    """
    ids, posed = camera_ids(model, cameras), PosedScene(model)
    posed.check(states)
    posed.set_fields(fields, len(states))
    rows = list(ids.values())
    poses = np.empty((len(states), len(rows), 4, 4))
    for frame in range(len(states)):
        posed.pose(states, frame)
        poses[frame] = opencv_pose(posed.data.cam_xpos[rows], posed.data.cam_xmat[rows])
    return {name: poses[:, i] for i, name in enumerate(ids)}
