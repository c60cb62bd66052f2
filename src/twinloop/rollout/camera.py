"""A twin's camera from its parameters: what has to be drawn for it, when, and what becomes of that.

What a renderer draws is a pinhole at the camera's place, wide enough for its lens (`sensors.camera.view`), at moments
between its first row's and its last row's exposure (`sensors.camera.shutter`). The lens bends each of these
subframes, the shutter makes one picture of light of them, and the sensor develops it (`sensors.camera.chain`).
What stands before the robot at a control step is the newest picture that had been taken and delivered
(`sensors.camera.capture`).
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
from twinloop.sensors.camera.blur import blurred
from twinloop.sensors.camera.lens import Lens
from twinloop.sensors.camera.model import clock_of, lens_of, shutter_of
from twinloop.sensors.camera.remap import Remap, rendered_view
from twinloop.sensors.camera.shutter import CaptureClock, DeliveredCaptures, Shutter, captures, combine
from twinloop.sensors.camera.stages import needs_chance
from twinloop.twin import Twin

KIND = "camera"
# Views have sides of whole multiples of this, so that worlds whose lenses differ little share a renderer.
_GRANULE = 32  # pixels


@dataclass(frozen=True, kw_only=True)
class TwinCamera:
    """One camera sensor of a twin in one world.

    ``camera`` is the model's camera that it looks from; ``target`` the pinhole of its pictures without the lens's
    distortion, ``view`` the wider one that has to be drawn.
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
        """The camera of one world.

        Args:
            world: its parameters, one row, with the seed path where something happens by chance.
            sensor: the name among the twin's sensors.
            height, width: of its pictures in pixels.
            model: a variant of the twin's model, such as that with textures.
            fields: the world's model fields, of which the camera's field of view counts.

        Raises:
            UnknownNameError: no such sensor, or a setting that cameras do not have.
            InputError: another kind of sensor, or a lens that cannot be drawn.
        """
        settings = sensor_settings(twin, sensor, KIND)
        values = twin.sensor_values(world, sensor)
        camera = sensor_camera(twin, sensor)
        target = intrinsics(model or twin.model, camera, height=height, width=width, fields=fields)
        lens = lens_of(values, settings)
        return cls(
            name=sensor,
            camera=camera,
            world=world,
            model=CameraModel.from_values(values, settings),
            lens=lens,
            shutter=shutter_of(values, settings),
            clock=clock_of(values),
            target=target,
            view=_view(lens, target),
        )

    @cached_property
    def remap(self) -> Remap:
        """Where each pixel behind the lens looks in the view."""
        return Remap.of(self.lens, self.view, self.target)

    def view_fields(self, model: mujoco.MjModel, fields: Fields) -> dict[str, NDArray]:
        """One world's fields, or those of single frames, with the camera's pinhole in place of its own."""
        row = camera_ids(model, [self.camera])[self.camera]
        fovy, sensor = (np.array(fields.get(name, getattr(model, name))) for name in ("cam_fovy", "cam_sensorsize"))
        fovy[..., row] = math.degrees(self.view.fovy)
        sensor[..., row, :] = 0.0  # a camera with a sensor size would have a pinhole of its own
        return {**fields, "cam_fovy": fovy, "cam_sensorsize": sensor}

    def captures(self, time: NDArray[np.float64]) -> DeliveredCaptures:
        """What stands before the robot at each of the times ``(nstep,)`` in s, ``(1, nstep)`` each.

        Raises:
            InputError: pictures are late or lost by chance, and the world has no seed path.
        """
        return captures(time[None], self.clock, seeds=self.world.seeds, stream=f"sensor/{self.name}/captures")

    def open(self) -> CameraPipeline:
        """The sensor behind the lens, at the beginning of the world.

        Raises:
            InputError: it has noise, and the world no seed path.
        """
        if not needs_chance(self.model):
            return CameraPipeline(self.model)
        path = self.world.seed_path(f"The noise of {self.name} happens")
        return CameraPipeline(self.model, CameraSeeds(path=path, sensor=self.name, serial=self.model.serial))

    def exposed(self, seconds: float) -> Shutter:
        """The shutter with an exposure."""
        return replace(self.shutter, exposure_time=seconds)

    def light(self, subframes: NDArray[np.float32], shutter: Shutter) -> NDArray[np.float32]:
        """Linear light on the sensor ``(height, width, 3)`` of subframes of the view ``(count, h', w', 3)``."""
        picture = combine(subframes, shutter, lens=None if self.remap.identity else self.remap)
        # A spot reaches over rows that are read within microseconds, so the picture is spread and not every subframe.
        return blurred(picture[None], self.lens.blur)[0]

    def to_json(self) -> dict[str, Any]:
        """What a reader of the pictures needs to know: device, intrinsics, distortion in OpenCV's order."""
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
    """The model's camera that a sensor looks from."""
    return twin.spec.sensors[sensor].camera or sensor


def camera_sensors(twin: Twin) -> dict[str, str]:
    """The twin's sensors of kind camera by the model's camera that they look from.

    Raises:
        InputError: two of them look from one camera.
    """
    found: dict[str, str] = {}
    for name, device in twin.devices.items():
        if device.kind != KIND:
            continue
        camera = sensor_camera(twin, name)
        if camera in found:
            raise InputError(
                f"The sensors {found[camera]} and {name} of {twin.name} look from the same camera {camera}. Give one "
                "of them a camera of its own."
            )
        found[camera] = name
    return found


def _view(lens: Lens, target: Intrinsics) -> Intrinsics:
    """The pinhole to draw: the target's own where the lens does nothing to it."""
    plain = replace(target, cx=target.width / 2.0, cy=target.height / 2.0, fx=target.fy)
    if replace(lens, blur=0.0) == Lens() and target == plain:
        return target
    needed = rendered_view(lens, target)
    width, height = (-(-side // _GRANULE) * _GRANULE for side in (needed.width, needed.height))
    return replace(needed, width=width, height=height, cx=width / 2.0, cy=height / 2.0)
