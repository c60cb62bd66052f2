"""Model a twin's camera: the views that must be rendered, their times, and the image that results from them.

A renderer computes pinhole images at the camera's pose, wide enough for its lens (`sensors.camera.remap`), at several
times between the exposures of the first and the last row (`sensors.camera.shutter`). These pinhole images are called
subframes. The lens distorts each subframe, the shutter combines the subframes to one image in linear light, and the
sensor converts light to pixel values (`sensors.camera.chain`). At a control step, a policy gets the newest image that
has been delivered until then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.imaging import Intrinsics
from twinloop.core.params import ParamTable
from twinloop.render import Fields
from twinloop.render.cameras import intrinsics
from twinloop.render.scene import camera_ids
from twinloop.rollout.depth import sensor_settings
from twinloop.sensors.camera import CameraModel, CameraPipeline, CameraSeeds
from twinloop.sensors.camera.blur import blur_images
from twinloop.sensors.camera.lens import Lens
from twinloop.sensors.camera.model import make_clock, make_lens, make_shutter
from twinloop.sensors.camera.remap import Remap, rendered_view
from twinloop.sensors.camera.shutter import (
    CaptureClock,
    DeliveredCaptures,
    Shutter,
    combine_subframes,
    find_delivered_captures,
)
from twinloop.sensors.camera.stages import needs_seeds
from twinloop.twin import Twin

KIND = "camera"
# View sizes are rounded up to multiples of this, so that worlds with similar lenses share a renderer.
_GRANULE = 32  # pixels


@dataclass(frozen=True, kw_only=True)
class TwinCamera:
    """Camera of a twin in one world.

    Attributes:
        name: name of the sensor in the twin.
        camera: name of the camera in the MuJoCo model, which gives the sensor's pose.
        world: parameters of the world, one row.
        model: model of the image sensor and the processing (noise, exposure, colours, compression).
        lens: model of the lens.
        shutter: exposure and readout times.
        clock: times at which images are taken and delivered.
        target: pinhole intrinsics of the images as if the lens had no distortion.
        view: pinhole intrinsics of the rendered views, which are wider than the images.
    """

    name: str
    camera: str
    world: ParamTable
    model: CameraModel
    lens: Lens
    shutter: Shutter
    clock: CaptureClock
    target: Intrinsics
    view: Intrinsics

    @classmethod
    def of(
        cls,
        twin: Twin,
        world: ParamTable,
        sensor: str,
        *,
        height: int,
        width: int,
        model: mujoco.MjModel | None = None,
        fields: Fields | None = None,
    ) -> TwinCamera:
        """Return the camera of one world.

        Args:
            twin: twin of the world.
            world: parameters of the world, one row. Random effects also need its seed path (run seed, episode,
                attempt).
            sensor: name of the camera among the twin's sensors.
            height, width: size of the images in pixels.
            model: variant of the twin's model, such as the model with textures; None for the twin's model.
            fields: model fields of the world; only the camera's field of view is used.

        Raises:
            UnknownNameError: If the sensor or one of its settings does not exist.
            InputError: If the sensor is not a camera, or its lens cannot be rendered.
        """
        settings = sensor_settings(twin, sensor, KIND)
        values = twin.sensor_values(world, sensor)
        camera = sensor_camera(twin, sensor)
        target = intrinsics(model or twin.model, camera, height=height, width=width, fields=fields)
        lens = make_lens(values, settings)
        return cls(
            name=sensor,
            camera=camera,
            world=world,
            model=CameraModel.from_values(values, settings),
            lens=lens,
            shutter=make_shutter(values, settings),
            clock=make_clock(values),
            target=target,
            view=_view(lens, target),
        )

    @cached_property
    def remap(self) -> Remap:
        """Map from each pixel of the distorted image to its position in the rendered pinhole view."""
        return Remap.of(self.lens, self.view, self.target)

    def view_fields(self, model: mujoco.MjModel, fields: Fields) -> dict[str, NDArray]:
        """Return the model fields with the camera's intrinsics replaced by those of the rendered view.

        The rendered view is a pinhole image wider than the camera's image; the lens distortion is applied to it
        afterwards.

        Args:
            model: model that is rendered.
            fields: model fields of one world, or one value per frame.
        """
        row = camera_ids(model, [self.camera])[self.camera]
        fovy, sensor = (np.array(fields.get(name, getattr(model, name))) for name in ("cam_fovy", "cam_sensorsize"))
        fovy[..., row] = math.degrees(self.view.fovy)
        sensor[..., row, :] = 0.0  # a sensor size would define another pinhole
        return {**fields, "cam_fovy": fovy, "cam_sensorsize": sensor}

    def captures(self, time: NDArray[np.float64]) -> DeliveredCaptures:
        """Return the newest delivered image at each of the given times.

        Args:
            time: increasing times in s, ``(nstep,)``.

        Returns:
            Image numbers, capture times and arrival times. Each is ``(1, nstep)``, because the function that computes
            them supports many worlds.

        Raises:
            InputError: If images are late or lost at random, and the world has no seed path (run seed, episode,
                attempt).
        """
        return find_delivered_captures(
            time[None], self.clock, seeds=self.world.seeds, stream=f"sensor/{self.name}/captures"
        )

    def open(self) -> CameraPipeline:
        """Create the image pipeline (exposure, noise, colours, compression) in its state at time 0.

        Raises:
            InputError: If the sensor has noise, and the world has no seed path (run seed, episode, attempt).
        """
        if not needs_seeds(self.model):
            return CameraPipeline(self.model)
        path = self.world.require_seeds(f"The noise of {self.name} happens")
        return CameraPipeline(self.model, CameraSeeds(path=path, sensor=self.name, serial=self.model.serial))

    def make_exposed_shutter(self, seconds: float) -> Shutter:
        """Return a copy of the camera's shutter with another exposure time in s."""
        return replace(self.shutter, exposure_time=seconds)

    def combine_light(self, subframes: NDArray[np.float32], shutter: Shutter) -> NDArray[np.float32]:
        """Return the linear light on the sensor, ``(height, width, 3)``.

        Args:
            subframes: rendered views in linear light, ``(count, view height, view width, 3)``.
            shutter: shutter with the exposure time of this image.
        """
        image = combine_subframes(subframes, shutter, lens=None if self.remap.is_identity else self.remap)
        # A blur spot covers rows that are read within microseconds, so the image is blurred instead of every subframe.
        return blur_images(image[None], self.lens.blur)[0]

    def to_json(self) -> dict[str, Any]:
        """Return metadata of the images as JSON values: sensor, intrinsics, lens, distortion in OpenCV's order."""
        lens = self.lens
        k = [lens.lens_k1, lens.lens_k2, lens.lens_k3, lens.lens_k4, lens.lens_k5, lens.lens_k6]
        pinhole = [k[0], k[1], lens.lens_p1, lens.lens_p2, *k[2:]]
        return {
            "sensor": self.name,
            "intrinsics": self.target.to_json(),
            "lens": lens.model,
            "distortion": pinhole if lens.model == "pinhole" else k[:4],
        }


def sensor_camera(twin: Twin, sensor: str) -> str:
    """Return the name of the model's camera that a sensor of the twin uses."""
    return twin.spec.sensors[sensor].camera or sensor


def camera_sensors(twin: Twin) -> dict[str, str]:
    """Return the names of the twin's camera sensors, by the name of the model's camera.

    Raises:
        InputError: If two sensors use the same camera.
    """
    found: dict[str, str] = {}
    for name, device in twin.devices.items():
        if device.kind != KIND:
            continue
        camera = sensor_camera(twin, name)
        if camera in found:
            raise InputError(
                f"The sensors {found[camera]} and {name} of {twin.name} use the same camera {camera}. Give one "
                "of them another camera."
            )
        found[camera] = name
    return found


def _view(lens: Lens, target: Intrinsics) -> Intrinsics:
    """Return the intrinsics of the pinhole view to render, wide enough for the lens distortion that follows.

    Args:
        lens: lens of the camera.
        target: intrinsics of the camera's image as if the lens had no distortion; returned unchanged if the lens has no
            effect.
    """
    plain = replace(target, cx=target.width / 2.0, cy=target.height / 2.0, fx=target.fy)
    if replace(lens, blur=0.0) == Lens() and target == plain:
        return target
    needed = rendered_view(lens, target)
    width, height = (-(-side // _GRANULE) * _GRANULE for side in (needed.width, needed.height))
    return replace(needed, width=width, height=height, cx=width / 2.0, cy=height / 2.0)
