"""Which sensors a rendering sees through: the twin's own sensors, or devices that are put before its cameras."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.generate.render_settings import CLEAN, DEVICE, RenderConfig
from twinloop.rollout.camera import KIND, camera_sensors
from twinloop.twin import Twin
from twinloop.twin.spec import SensorSpec
from twinloop.twin.variant import equipped


@dataclass(frozen=True, kw_only=True)
class SensorChoice:
    """What sees: the twin with its sensors, and the sensor of each camera that is not clean.

    ``replaced`` are the sensors that are not the twin's own: what an episode drew for the others is not theirs.
    ``ranging`` are the depth cameras and lidars that are read beside.
    """

    twin: Twin
    sensors: dict[str, str]
    replaced: tuple[str, ...] = ()
    ranging: tuple[str, ...] = ()


def choose_sensors(settings: RenderConfig, twin: Twin, cameras: Sequence[str]) -> SensorChoice:
    """The sensors, of the cameras that are rendered.

    Raises:
        UnknownNameError: a camera that is not rendered, or a device that does not exist.
        InputError: a device of another kind, or the twin carries no sensors where its own are asked for.
    """
    words = settings.sensors
    if isinstance(words, dict):
        for camera in words:
            if camera not in cameras:
                raise UnknownNameError(
                    "camera", camera, cameras, where="the cameras to render, which it gives a sensor"
                )
    asked = {camera: words if isinstance(words, str) else words.get(camera, CLEAN) for camera in cameras}
    own = camera_sensors(twin)
    found = {camera: own[camera] for camera, word in asked.items() if word == DEVICE and camera in own}
    ranging = ranging_sensors(twin) if words == DEVICE else ()
    lacking = [camera for camera, word in asked.items() if word == DEVICE and camera not in own]
    if lacking and (isinstance(words, dict) or not (found or ranging)):
        raise InputError(
            f"The twin {twin.name} carries no camera sensor that looks from {', '.join(lacking)}. Add `sensors:` to "
            f"its YAML, or name a device: --sensors {lacking[0]}=uvc_webcam."
        )
    others = {camera: word for camera, word in asked.items() if word not in (CLEAN, DEVICE)}
    if not others:
        return SensorChoice(twin=twin, sensors=found, ranging=ranging)
    specs = {own.get(camera, camera): SensorSpec(device=device, camera=camera) for camera, device in others.items()}
    changed = equipped(twin, specs)
    for name in specs:
        device = changed.devices[name]
        if device.kind != KIND:
            raise InputError(f"The device {device.name} is a {device.kind}, and no {KIND}: it makes no pictures.")
    found |= {spec.camera: name for name, spec in specs.items()}
    return SensorChoice(twin=changed, sensors=found, replaced=tuple(specs), ranging=ranging)


def ranging_sensors(twin: Twin) -> tuple[str, ...]:
    """Names of a twin's depth cameras and lidars."""
    return tuple(name for name, device in twin.devices.items() if device.kind in ("depth", "lidar"))
