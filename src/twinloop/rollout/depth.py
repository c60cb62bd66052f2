"""Compute the readings of a twin's depth cameras from rendered images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.imaging import LUMA, Intrinsics
from twinloop.core.params import ParamTable
from twinloop.core.seeds import generator
from twinloop.render.protocol import decode_srgb
from twinloop.sensors.depth import (
    DepthFrames,
    DepthReading,
    StereoDepth,
    StereoSpec,
    StructuredLightDepth,
    StructuredLightSpec,
    TimeOfFlightDepth,
    TimeOfFlightSpec,
)
from twinloop.twin import Twin

DepthModelName = Literal["stereo", "structured_light", "time_of_flight"]
DepthModel = StereoDepth | StructuredLightDepth | TimeOfFlightDepth

# Channels of a renderer that a reading uses. The first is required; effects of a missing channel are left out.
DEPTH_CHANNELS = ("depth", "normal", "linear", "geom")

_MODELS: Mapping[str, tuple[Any, Any]] = {
    "stereo": (StereoDepth, StereoSpec),
    "structured_light": (StructuredLightDepth, StructuredLightSpec),
    "time_of_flight": (TimeOfFlightDepth, TimeOfFlightSpec),
}


def depth_reading(
    twin: Twin,
    table: ParamTable,
    sensor: str,
    channels: Mapping[str, NDArray],
    intrinsics: Intrinsics,
    *,
    frames: ArrayLike,
) -> DepthReading:
    """Return the depth images that one depth camera measures in ``n`` frames.

    Args:
        twin: twin with the camera.
        table: parameters, one row for all frames or one row per frame. Its seed path (run seed, episode, attempt)
            seeds the random effects.
        sensor: name of the camera among the twin's sensors.
        channels: rendered images of the camera by channel, from `Renderer.observe` with the names in `DEPTH_CHANNELS`.
            ``depth`` is required; effects that need a missing channel are left out. The sRGB image ``rgb`` may replace
            ``linear`` (linear light).
        intrinsics: intrinsics of the images.
        frames: number of each frame in its episode, ``(n,)``. The random numbers of a reading depend on run seed,
            episode, attempt, sensor and frame. If a parameter changes at every control step, frame k uses its value at
            step k.

    Returns:
        Depth in counts ``(n, h, w)`` uint16, 0 for pixels that have no measurement; and the distance in m of one count.

    Raises:
        UnknownNameError: If the twin has no such sensor.
        InputError: If the sensor is not a depth camera, the channel ``depth`` or the seed path is missing, or the
            shapes do not match.
    """
    depth = channels.get("depth")
    if depth is None:
        raise InputError(f"The depth camera {sensor} needs the channel depth, but was given {', '.join(channels)}.")
    number = np.atleast_1d(np.asarray(frames, dtype=np.int64))
    if len(number) != len(depth) or table.nworld not in (1, len(depth)):
        raise InputError(
            f"{len(number)} frame numbers and {table.nworld} rows of parameters for {len(depth)} images. Give one "
            "number for each, and one row for all or one for each."
        )
    if table.steps:
        table = table.take(np.zeros(len(number), dtype=np.intp) if table.nworld == 1 else np.arange(len(number)))
        table = table.at(number)
    model = depth_model(twin, table, sensor)
    seen = DepthFrames(
        depth=depth,
        intrinsics=intrinsics,
        normals=channels.get("normal"),
        brightness=_brightness(channels),
        shine=_mirror_reflectance(twin, table, channels.get("geom")),
    )
    return model.read(seen, frame_generators(table, sensor, number))


def depth_model(twin: Twin, table: ParamTable, sensor: str) -> DepthModel:
    """Return the model of a twin's depth camera, with the parameters of a table's worlds.

    Raises:
        UnknownNameError: If the twin has no such sensor, or the setting ``model`` of its device is not in
            `DepthModelName`.
        InputError: If the sensor is not a depth camera. Also if a setting of its device is negative, or if
            ``baseline``, ``unit`` or ``max_depth`` is 0.
    """
    values = twin.sensor_values(table, sensor)
    settings = sensor_settings(twin, sensor, "depth")
    name = str(settings.get("model"))
    if name not in _MODELS:
        raise UnknownNameError("depth model", name, get_args(DepthModelName), where=f"the device of {sensor}: model")
    model, spec = _MODELS[name]
    known = {key: settings[key] for key in spec.__dataclass_fields__ if key in settings}
    for key, value in known.items():
        if value < 0 or (value == 0 and key in ("baseline", "unit", "max_depth")):
            raise InputError(
                f"The device of {sensor}: {key} = {value:g} is too small for a depth camera. Give a larger value."
            )
    shared = {key: value[0] if table.nworld == 1 else value for key, value in values.items()}
    return model(spec=spec(**known), **{key: shared[key] for key in model.__dataclass_fields__ if key in shared})


def sensor_settings(twin: Twin, sensor: str, kind: str) -> dict[str, Any]:
    """Return the device settings of one of a twin's sensors, by name.

    Args:
        twin: twin with the sensor.
        sensor: name of the sensor.
        kind: kind that the sensor must have, such as ``depth``.

    Raises:
        UnknownNameError: If the twin has no such sensor.
        InputError: If the sensor has another kind.
    """
    if sensor not in twin.devices:
        raise UnknownNameError("sensor", sensor, twin.devices, where=f"twin {twin.name}")
    device = twin.devices[sensor]
    if device.kind != kind:
        raise InputError(
            f"The sensor {sensor} of {twin.name} is of the kind {device.kind} ({device.name}), and not {kind}."
        )
    return {key: setting.value for key, setting in device.settings.items()}


def frame_generators(table: ParamTable, sensor: str, frames: NDArray[np.int64]) -> list[Generator]:
    """Return one random generator for each frame or scan of a sensor.

    Args:
        table: parameters with a seed path (run seed, episode, attempt), one row for all frames or one row per frame.
        sensor: name of the sensor.
        frames: numbers of the frames or scans in their episodes, ``(n,)``.
    """
    seeds = table.require_seeds(f"Noise and losses of {sensor} happen")
    episodes, attempts = (np.broadcast_to(part, frames.shape) for part in (seeds.episodes, seeds.attempts))
    return [
        generator(seeds.run_seed, f"sensor/{sensor}/{attempt}/{frame}", int(episode))
        for episode, attempt, frame in zip(episodes, attempts, frames, strict=True)
    ]


def _brightness(channels: Mapping[str, NDArray]) -> NDArray[np.floating] | None:
    linear = channels.get("linear")
    if linear is None and "rgb" in channels:
        linear = decode_srgb(channels["rgb"])
    return None if linear is None else np.clip(linear @ LUMA, 0.0, 1.0)


def _mirror_reflectance(twin: Twin, table: ParamTable, geom: NDArray[np.int32] | None) -> NDArray[np.float64] | None:
    """Return the mirror reflectance of the material that each pixel shows, 0 to 1, ``(n, h, w)``.

    It is 0 for a pixel without a geom or material. The result is None if ``geom`` is None or the model has no
    materials.

    Args:
        twin: twin of the images, whose model has the materials.
        table: parameter values, which may change the materials; one row for all images or one row per image.
        geom: geom ids of the images, ``(n, h, w)``, -1 for none; None if unknown.
    """
    model = twin.model
    if geom is None or not model.nmat:
        return None
    fields = twin.fields(table, visual=True).arrays
    material = fields.get("geom_matid", model.geom_matid[None])
    reflectance = fields.get("mat_reflectance", model.mat_reflectance[None])
    world = np.broadcast_to(np.arange(table.nworld), len(geom))
    chosen = material[np.minimum(world, len(material) - 1)[:, None, None], geom]
    value = reflectance[np.minimum(world, len(reflectance) - 1)[:, None, None], chosen]
    return np.where((geom >= 0) & (chosen >= 0), value, 0.0).astype(np.float64)
