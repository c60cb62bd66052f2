"""Compute the images that a twin's camera delivers in an episode, with motion blur and rolling shutter.

Each image is combined from subframes, which are images rendered at different times of the exposure. Faster motion in
the image needs more subframes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.imaging import Intrinsics
from twinloop.render import Fields, SceneStates
from twinloop.render.cameras import opencv_pose
from twinloop.render.scene import PosedScene, camera_ids
from twinloop.rollout.camera import TwinCamera
from twinloop.sensors.camera.shutter import Shutter, subframe_times

STILL = 0.25  # pixels; with less motion one subframe is enough
_STRIDE = 1.0  # pixels between two subframes; with larger strides an edge shows visible steps
_NEAR = 0.02  # m; nearer points are ignored
# Points of a box, in halves of its sides, and directions in a view, in halves of its image: box points cover small
# geoms, ray hits cover large geoms and the background.
_LATTICE = np.array([[x, y, z] for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0) for z in (-1.0, 0.0, 1.0)])
_GRID = np.array([[x, y] for x in np.linspace(-1.0, 1.0, 5) for y in np.linspace(-1.0, 1.0, 5)])


def count_subframes(pixels: float, most: int) -> int:
    """Return the number of subframes for one image: 1 + ``pixels`` rounded up, but 1 below 0.25 pixels.

    Args:
        pixels: largest motion in the image during exposure and readout, in pixels.
        most: largest number of subframes.
    """
    if pixels < STILL or most == 1:
        return 1
    return min(most, 1 + math.ceil(pixels / _STRIDE))


class ImageMotion:
    """Measurement of the largest motion in the images of one camera."""

    def __init__(self, model: mujoco.MjModel, camera: str) -> None:
        self._posed, self._camera = PosedScene(model), camera_ids(model, [camera])[camera]
        plane = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
        boxed = np.flatnonzero(~plane & (model.geom_rgba[:, 3] > 0.0))
        middle, half = model.geom_aabb[boxed, :3], model.geom_aabb[boxed, 3:]
        self._geoms = np.repeat(boxed, len(_LATTICE))
        self._points = (middle[:, None] + half[:, None] * _LATTICE).reshape(-1, 3)  # in the geoms' axes

    def measure_motion(self, states: SceneStates, fields: Fields, view: Intrinsics) -> float:
        """Return the largest motion in the image from the first to the last state, in pixels.

        The motion is measured at points of the geoms' bounding boxes, at surface points that a grid of rays hits, and
        from the rotation of the camera, which moves distant objects.

        Args:
            states: poses of the frames.
            fields: model fields of all states, or one value per state.
            view: intrinsics of the image.
        """
        self._posed.set_fields(fields, len(states))
        self._posed.pose(states, 0)
        geoms, points = self._cast_grid(view)
        geoms, points = np.append(self._geoms, geoms), np.concatenate([self._points, points])
        before, axes = self._project_points(geoms, points, view)
        self._posed.pose(states, len(states) - 1)
        after, turned_axes = self._project_points(geoms, points, view)
        moved = np.linalg.norm(after - before, axis=-1)
        corners = view.unproject((_GRID + 1.0) / 2.0 * [view.width, view.height])
        turned = view.project(corners @ axes.T @ turned_axes) - view.project(corners)
        found = np.concatenate([moved, np.linalg.norm(turned, axis=-1)])
        return float(np.nanmax(found, initial=0.0))

    def _cast_grid(self, view: Intrinsics) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return the geoms ``(k,)`` that a grid of rays hits, and the hit points ``(k, 3)`` in the geoms' axes."""
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
        offset = eye + distance[met, None] * toward[met] - data.geom_xpos[geoms]
        return geoms, np.einsum("kij,ki->kj", data.geom_xmat[geoms].reshape(-1, 3, 3), offset)

    def _project_points(
        self, geoms: NDArray[np.intp], points: NDArray[np.float64], view: Intrinsics
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the image positions of points on geoms, ``(k, 2)`` in px, and the rotation of the camera ``(3, 3)``.

        A position is nan if it is behind the camera or far outside the image. The columns of the rotation are the
        camera's axes in the world.

        Args:
            geoms: ids of the geoms, ``(k,)``.
            points: positions in the geoms' axes, ``(k, 3)`` in m.
            view: intrinsics of the image.
        """
        data = self._posed.data
        world = np.einsum("kij,kj->ki", data.geom_xmat[geoms].reshape(-1, 3, 3), points) + data.geom_xpos[geoms]
        pose = opencv_pose(data.cam_xpos[self._camera], data.cam_xmat[self._camera])
        before = (world - pose[:3, 3]) @ pose[:3, :3]
        pixels = view.project(np.where(before[..., 2:] > _NEAR, before, np.nan))
        around = np.array([view.width, view.height]) / 2.0
        outside = (np.abs(pixels - around) > 1.5 * around).any(axis=-1)
        pixels[outside] = np.nan
        return pixels, pose[:3, :3]


MOST_SUBFRAMES = 16  # per image; more make no visible difference at 640×480

RenderView = Callable[[SceneStates, Fields], NDArray[np.float32]]
"""Function that renders one camera's view of n states as linear light, ``(n, view height, view width, 3)``."""


@dataclass(frozen=True, kw_only=True)
class MovingWorld:
    """World that a camera sees: poses at any time, and appearance at control steps.

    Attributes:
        model: model of the world.
        time: simulation times of the control steps in s, ``(nstep,)``, increasing.
        poses: function from times ``(k,)`` in s to the poses at these times.
        fields: function from numbers of control steps ``(k,)`` to model fields, shared or one value per step.
    """

    model: mujoco.MjModel
    time: NDArray[np.float64]
    poses: Callable[[NDArray[np.float64]], SceneStates]
    fields: Callable[[NDArray[np.intp]], Fields]

    def at(self, times: ArrayLike) -> tuple[SceneStates, Fields]:
        """Return poses and model fields at times ``(k,)`` in s.

        Before the first control step, the fields are those of the first control step.
        """
        moments = np.atleast_1d(np.asarray(times, dtype=np.float64))
        steps = np.clip(np.searchsorted(self.time, moments, side="right") - 1, 0, len(self.time) - 1)
        return self.poses(moments), self.fields(steps)


class CameraCaptures:
    """Images of one camera in one world, computed from the first control step to the last.

    An image that is the newest one at several control steps is computed once. The number of subframes follows from the
    motion in the image; see `ImageMotion`.

    Args:
        camera: camera of the world.
        world: the world.
        render_view: function that renders the camera's view of n states as linear light; see `RenderView`.
        most: largest number of subframes per image.
    """

    def __init__(
        self, camera: TwinCamera, world: MovingWorld, render_view: RenderView, *, most: int = MOST_SUBFRAMES
    ) -> None:
        self.camera, self.world = camera, world
        self._render_view, self._most = render_view, most
        self._sensor = camera.open()
        self.captures = camera.captures(world.time)
        self._motion = ImageMotion(world.model, camera.camera) if self._can_blur else None
        self._number, self._image = -1, np.zeros((0, 0, 3), dtype=np.uint8)

    @property
    def _can_blur(self) -> bool:
        """Whether motion during an image can matter: the camera has an exposure time or a rolling shutter."""
        model = self.camera.model
        return self._most > 1 and (self.camera.shutter.skew > 0.0 or model.exposure_time > 0.0)

    def take_images(self, rows: range) -> NDArray[np.uint8]:
        """Return the newest delivered image at each of the given control steps, ``(n, height, width, 3)`` uint8 sRGB.

        Calls must have ascending steps, because the sensor has a state.
        """
        target = self.camera.target
        out = np.empty((len(rows), target.height, target.width, 3), dtype=np.uint8)
        for place, row in enumerate(rows):
            number = int(self.captures.number[0, row])
            if number != self._number:
                self._image = self.take_capture(float(self.captures.capture_time[0, row]), number)
                self._number = number
            out[place] = self._image
        return out

    def take_capture(self, time: float, number: int) -> NDArray[np.uint8]:
        """Return one image ``(height, width, 3)`` uint8 sRGB.

        Args:
            time: time of the image in s, later than that of the previous image.
            number: number of the image, which determines its noise.
        """
        light = self.render_light(time)
        return self._sensor.develop(light[None], time=[time], numbers=[number])[0]

    def stages(self, light: NDArray[np.float32], time: float) -> list[tuple[str, NDArray[np.uint8]]]:
        """Return one image after each stage of the sensor, with the names of the stages.

        Args:
            light: linear light on the sensor, ``(height, width, 3)``; see `render_light`.
            time: time of the image in s.
        """
        return next(self._sensor.iterate_stages(light[None], time=[time], numbers=[self._number + 1]))

    def render_light(self, time: float) -> NDArray[np.float32]:
        """Return the linear light on the sensor for the next image, taken at ``time`` in s, ``(height, width, 3)``."""
        shutter, times = self.subframes_at(time)
        states, fields = self.world.at(times)
        subframes = self._render_view(states, self.camera.view_fields(self.world.model, fields))
        return self.camera.combine_light(subframes, shutter)

    def subframes_at(self, time: float) -> tuple[Shutter, NDArray[np.float64]]:
        """Return the shutter of the next image, and the times of its subframes ``(count,)`` in s.

        Args:
            time: time of the image in s.
        """
        shutter = self.camera.make_exposed_shutter(self._sensor.next_exposure_time(time) or 0.0)
        count = 1
        if self._motion is not None and shutter.span > 0.0:
            begin = time - shutter.middle
            states, fields = self.world.at([begin, begin + shutter.span])
            fields = self.camera.view_fields(self.world.model, fields)
            count = count_subframes(self._motion.measure_motion(states, fields, self.camera.view), self._most)
        return shutter, time - shutter.middle + subframe_times(shutter, count)
