"""Build a twin's camera from its parameters: the views to render, their times, and the resulting images.

A renderer draws pinhole views at the camera's pose, wide enough for its lens (`sensors.camera.remap`), at times between
the exposures of the first and the last row (`sensors.camera.shutter`). The lens distorts each of these subframes, the
shutter combines them to one image of light, and the sensor develops it (`sensors.camera.chain`). The image at a control
step is the newest one that was taken and delivered by then.
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
    """Camera sensor of a twin in one world.

    ``camera`` is the model's camera; ``target`` is the pinhole of the images without lens distortion, ``view`` the
    wider pinhole that is rendered.
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
        """Make the camera of one world.

        Args:
            world: parameters of the world, one row, with the seed path if there are random effects.
            sensor: the name among the twin's sensors.
            height, width: size of the images in pixels.
            model: a variant of the twin's model, such as the one with textures.
            fields: the world's model fields; only the camera's field of view is used.

        Raises:
            UnknownNameError: the sensor, or a setting, does not exist.
            InputError: another kind of sensor, or a lens that cannot be rendered.
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
        """Map from each pixel behind the lens to its position in the view."""
        return Remap.of(self.lens, self.view, self.target)

    def view_fields(self, model: mujoco.MjModel, fields: Fields) -> dict[str, NDArray]:
        """Return one world's fields, or those of single frames, with the camera's pinhole replaced by the view."""
        row = camera_ids(model, [self.camera])[self.camera]
        fovy, sensor = (np.array(fields.get(name, getattr(model, name))) for name in ("cam_fovy", "cam_sensorsize"))
        fovy[..., row] = math.degrees(self.view.fovy)
        sensor[..., row, :] = 0.0  # a sensor size would define another pinhole
        return {**fields, "cam_fovy": fovy, "cam_sensorsize": sensor}

    def captures(self, time: NDArray[np.float64]) -> DeliveredCaptures:
        """Return the newest delivered capture at each of the times ``(nstep,)`` in s, ``(1, nstep)`` each.

        Raises:
            InputError: images are late or lost at random, and the world has no seed path.
        """
        return find_delivered_captures(
            time[None], self.clock, seeds=self.world.seeds, stream=f"sensor/{self.name}/captures"
        )

    def open(self) -> CameraPipeline:
        """Open the sensor behind the lens, at the start of the world.

        Raises:
            InputError: the sensor has noise, and the world has no seed path.
        """
        if not needs_seeds(self.model):
            return CameraPipeline(self.model)
        path = self.world.seed_path(f"The noise of {self.name} happens")
        return CameraPipeline(self.model, CameraSeeds(path=path, sensor=self.name, serial=self.model.serial))

    def make_exposed_shutter(self, seconds: float) -> Shutter:
        """Return the shutter with an exposure time in s."""
        return replace(self.shutter, exposure_time=seconds)

    def combine_light(self, subframes: NDArray[np.float32], shutter: Shutter) -> NDArray[np.float32]:
        """Return the sensor's linear light ``(height, width, 3)`` from subframes of the view ``(count, h', w', 3)``."""
        picture = combine_subframes(subframes, shutter, lens=None if self.remap.is_identity else self.remap)
        # A blur spot covers rows that are read within microseconds, so the image is blurred instead of every subframe.
        return blur_images(picture[None], self.lens.blur)[0]

    def to_json(self) -> dict[str, Any]:
        """Return the metadata for users of the images: device, intrinsics, distortion in OpenCV's order."""
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
    """Return the model's camera of a sensor."""
    return twin.spec.sensors[sensor].camera or sensor


def camera_sensors(twin: Twin) -> dict[str, str]:
    """Return the twin's sensors of kind camera, keyed by the model's camera.

    Raises:
        InputError: two sensors use the same camera.
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
    """Return the pinhole to render: the target itself if the lens has no effect."""
    plain = replace(target, cx=target.width / 2.0, cy=target.height / 2.0, fx=target.fy)
    if replace(lens, blur=0.0) == Lens() and target == plain:
        return target
    needed = rendered_view(lens, target)
    width, height = (-(-side // _GRANULE) * _GRANULE for side in (needed.width, needed.height))
    return replace(needed, width=width, height=height, cx=width / 2.0, cy=height / 2.0)
