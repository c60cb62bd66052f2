"""What a camera's picture costs from light to 8 bits at 640×480: processor milliseconds, compiled and in numpy.

The webcam is measured as it is (automatic exposure, noise, mosaic, MJPEG), without lens and shutter. Least of several
captures, since other work on the machine only ever adds; processor time of all threads counts.
"""

from __future__ import annotations

import time

import numpy as np

from twinloop.core.params import SeedPath
from twinloop.sensors.camera import Camera, CameraModel, CameraSeeds
from twinloop.sensors.compiled import has_numba
from twinloop.twin.devices import device_presets

HEIGHT, WIDTH, CAPTURES = 480, 640, 40
TARGET_MS = 15.0


def run() -> dict:
    """Milliseconds of every preset, both ways, and their ratio."""
    rows = {
        name: _row(CameraModel.from_values({key: rated.value for key, rated in device.values.items()}, device.settings))
        for name, device in device_presets().items()
        if device.kind == "camera"
    }
    return {
        "name": f"a camera's picture from light to 8 bits, {WIDTH}x{HEIGHT}, one of {CAPTURES}",
        "target_ms": TARGET_MS,
        "rows": rows,
    }


def _row(model: CameraModel) -> dict[str, float]:
    plain = _milliseconds(model, compiled=False, captures=CAPTURES // 8)
    if not has_numba():
        return {"numpy_ms": plain}
    fast = _milliseconds(model, compiled=True, captures=CAPTURES)
    return {"compiled_ms": fast, "numpy_ms": plain, "ratio": plain / fast}


def _milliseconds(model: CameraModel, *, compiled: bool, captures: int) -> float:
    camera = Camera(model, CameraSeeds(path=SeedPath.of(0, 0), sensor="bench"), compiled=compiled)
    light, spent = _light(), []
    for number in range(captures):
        began = time.process_time()
        camera.develop(light, time=[number / 30.0], numbers=[number])
        spent.append(time.process_time() - began)
    return 1e3 * min(spent)


def _light() -> np.ndarray:
    """A picture with colours, edges and shadows."""
    y, x = np.mgrid[:HEIGHT, :WIDTH] / HEIGHT
    light = np.stack(
        [0.35 + 0.3 * np.sin(9 * x + 5 * y), 0.3 + 0.25 * np.sin(7 * y), 0.2 + 0.15 * np.cos(6 * x)], axis=-1
    )
    light[HEIGHT // 3 : HEIGHT // 2, WIDTH // 4 : WIDTH // 2] *= 0.05
    return light[None].astype(np.float32)


if __name__ == "__main__":
    for name, row in run()["rows"].items():
        print(name, {key: round(value, 1) for key, value in row.items()})
