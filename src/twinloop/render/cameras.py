"""Compute the intrinsics (in pixels) and the poses of a model's cameras, in OpenCV's camera axes.

OpenCV's camera axes are x right, y down, z forward. MuJoCo's are x right, y up, z backwards. Image coordinates begin
with (0, 0) at the outer corner of the first pixel; see `core.imaging.Intrinsics`.
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
"""Rotation from OpenCV's camera axes (x right, y down, z forward) to MuJoCo's (x right, y up, z backwards).

It is its own inverse.
"""


def intrinsics(
    model: mujoco.MjModel, camera: str, *, height: int, width: int, fields: Fields | None = None
) -> Intrinsics:
    """Return the pinhole intrinsics of a model's camera for an image size.

    A camera with ``fovy`` has a centred principal point and square pixels. The image of a camera with ``sensorsize``
    always covers the whole sensor, as in MuJoCo's renderer. So its pixels are square only if image and sensor have the
    same aspect ratio.

    The principal point (``principal``: x, y in m from the sensor's centre) shifts the image in the opposite direction:
    cx = width · (1/2 - x / sensor width), cy = height · (1/2 - y / sensor height). These signs were measured in images
    of MuJoCo 4.0.

    Args:
        model: compiled model with the camera.
        camera: name of the camera.
        height, width: size of the image in pixels.
        fields: model fields of one world; only ``cam_fovy``, ``cam_sensorsize`` and ``cam_intrinsic`` are used. None
            for the compiled model.

    Raises:
        UnknownNameError: If the model has no such camera.
        InputError: If the image size is outside the supported range, or the camera is orthographic.
    """
    check_size(height, width)
    row = camera_ids(model, [camera])[camera]

    def value(name: str) -> NDArray[np.float64]:
        return np.asarray((fields or {}).get(name, getattr(model, name)), dtype=np.float64)[row]

    if model.cam_projection[row] != mujoco.mjtProjection.mjPROJ_PERSPECTIVE:
        raise InputError(f"The camera {camera} is orthographic, so it has no pinhole intrinsics. Give it a fovy.")
    sensor = value("cam_sensorsize")
    if not sensor[1] > 0.0:
        return Intrinsics.from_fovy(math.radians(float(value("cam_fovy"))), height=height, width=width)
    pixels = np.array([width, height])
    lens = value("cam_intrinsic")  # focal lengths and principal point, in the unit of the sensor's size
    fx, fy = (pixels * lens[:2] / sensor).tolist()
    cx, cy = (pixels * (0.5 - lens[2:] / sensor)).tolist()
    return Intrinsics(fx=fx, fy=fy, cx=cx, cy=cy, width=width, height=height)


def opencv_pose(xpos: ArrayLike, xmat: ArrayLike) -> NDArray[np.float64]:
    """Convert MuJoCo's camera poses to homogeneous matrices ``world_from_camera`` in OpenCV's camera axes.

    Args:
        xpos: camera positions ``(…, 3)`` in m, MuJoCo's ``cam_xpos``.
        xmat: camera rotations ``(…, 9)`` or ``(…, 3, 3)``, MuJoCo's ``cam_xmat``.

    Returns:
        Matrices ``(…, 4, 4)``.
    """
    position = np.asarray(xpos, dtype=np.float64)
    pose = make_transforms(position, xmat)
    pose[..., :3, :3] = pose[..., :3, :3] @ MUJOCO_FROM_OPENCV
    return pose


def make_transforms(xpos: ArrayLike, xmat: ArrayLike) -> NDArray[np.float64]:
    """Return homogeneous matrices ``(…, 4, 4)`` from positions ``(…, 3)`` and rotations ``(…, 9)`` or ``(…, 3, 3)``."""
    position = np.asarray(xpos, dtype=np.float64)
    pose = np.zeros((*position.shape[:-1], 4, 4))
    pose[..., :3, :3] = np.reshape(xmat, (*position.shape[:-1], 3, 3))
    pose[..., :3, 3], pose[..., 3, 3] = position, 1.0
    return pose


def depth_from_buffer(buffer: NDArray[np.float32], camera: mujoco.MjvGLCamera) -> NDArray[np.float64]:
    """Convert a rasterizer's depth buffer to distances along the optical axis in m.

    Args:
        buffer: depth buffer, in which 1 is the near plane, and 0 is the far plane or no surface.
        camera: camera with the near and the far plane.

    Returns:
        Distances in m, inf for pixels that show no surface.
    """
    near, far, from_far = camera.frustum_near, camera.frustum_far, buffer.astype(np.float64)
    metres = far - from_far * (far - near) if camera.orthographic else near * far / (near + from_far * (far - near))
    return np.where(from_far > 0.0, metres, np.inf)


def world_from_camera(
    model: mujoco.MjModel, states: SceneStates, fields: Fields | None = None, *, cameras: Sequence[str] | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return the poses of cameras in every state, as homogeneous matrices in OpenCV's camera axes.

    Args:
        states: poses of n frames.
        fields: model fields of one world, or one value per frame; see `Renderer.render`.
        cameras: names of the cameras; None for all cameras of the model.

    Returns:
        Matrices ``(n, 4, 4)`` by camera name; they convert camera coordinates to world coordinates.

    Raises:
        UnknownNameError: If the model has no such camera.
        InputError: If the states or the fields do not fit the model.
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
