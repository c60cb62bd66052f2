"""Cameras and light for tests of sensors."""

import numpy as np

from twinloop.core.params import SeedPath
from twinloop.sensors.camera import CameraModel, CameraSeeds
from twinloop.twin.devices import device_presets

CAMERAS = [name for name, device in device_presets().items() if device.kind == "camera"]


def camera_seeds(episode=3, *, run=0, sensor="front", serial=""):
    return CameraSeeds(path=SeedPath.of(run, [episode]), sensor=sensor, serial=serial)


def preset(name, **changes):
    device = device_presets()[name]
    settings = {**device.settings, **{key: changes.pop(key) for key in list(changes) if key in device.settings}}
    values = {key: rated.value for key, rated in device.values.items()}
    return CameraModel.from_values({**values, **changes}, settings)


def flat(level, height=100, width=100, count=1):
    return np.full((count, height, width, 3), level, dtype=np.float32)


def scene(height=61, width=75, count=1, seed=0):
    """Smooth colours with edges, dark to beyond white."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = [np.sin(8.0 * (a * x + b * y) + c) for a, b, c in rng.uniform(-1, 1, (3, 3))]
    light = 0.45 + 0.45 * np.stack(waves, axis=-1)
    light[height // 4 : height // 2, width // 4 : width // 2] = [0.02, 0.3, 0.9]
    light[-height // 4 :, -width // 4 :] *= 2.5
    return np.repeat(light[None], count, axis=0).astype(np.float32)
