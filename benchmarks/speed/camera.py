"""Measure the cost of a camera's image from light to 8 bits at 640×480: CPU milliseconds, compiled and in numpy.

The cameras are measured with their own settings (the webcam: automatic exposure, noise, mosaic, MJPEG), without lens
and shutter. Then the webcam is measured with its lens, in wall-clock time on all cores. Each time is the minimum of
several captures, because other work on the machine only adds time. CPU time includes all threads.
"""

from __future__ import annotations

import time

import numpy as np

from twinloop.core.params import ParamTable, SeedPath
from twinloop.core.pool import count_cores
from twinloop.rollout.camera import TwinCamera
from twinloop.sensors.camera import CameraModel, CameraPipeline, CameraSeeds
from twinloop.sensors.compiled import has_numba
from twinloop.twin import load_twin
from twinloop.twin.devices import device_presets
from twinloop.twin.spec import SensorSpec
from twinloop.twin.variant import add_twin_sensors

HEIGHT, WIDTH, CAPTURES = 480, 640, 40
TARGET_MS = 15.0


def run() -> dict:
    """Return milliseconds of every preset, compiled and in numpy, and their ratio."""
    rows = {
        name: _row(CameraModel.from_values({key: rated.value for key, rated in device.values.items()}, device.settings))
        for name, device in device_presets().items()
        if device.kind == "camera"
    }
    return {
        "name": f"a camera's image from light to 8 bits, {WIDTH}x{HEIGHT}, one of {CAPTURES}",
        "target_ms": TARGET_MS,
        "rows": rows,
        "webcam": _with_lens("uvc_webcam"),
    }


def _with_lens(device: str) -> dict[str, float]:
    """Return milliseconds of an image of so101_tabletop, from one rendered frame to the delivered image."""
    twin = add_twin_sensors(load_twin("so101_tabletop"), {"front": SensorSpec(device=device, camera="front")})
    world = ParamTable(names=(), values=np.zeros((1, 0)), seeds=SeedPath.of(0, 0))
    camera = TwinCamera.of(twin, world, "front", height=HEIGHT, width=WIDTH)
    sensor, shutter, look = (
        camera.open(),
        camera.make_exposed_shutter(0.0),
        _light(camera.view.height, camera.view.width),
    )
    clock, busy = [], []
    for number in range(CAPTURES):
        began, spent = time.perf_counter(), time.process_time()
        sensor.develop(camera.combine_light(look, shutter)[None], time=[number / 30.0], numbers=[number])
        clock.append(time.perf_counter() - began)
        busy.append(time.process_time() - spent)
    return {"clock_ms": 1e3 * min(clock), "processor_ms": 1e3 * min(busy), "cores": count_cores()}


def _row(model: CameraModel) -> dict[str, float]:
    plain = _milliseconds(model, compiled=False, captures=CAPTURES // 8)
    if not has_numba():
        return {"numpy_ms": plain}
    fast = _milliseconds(model, compiled=True, captures=CAPTURES)
    return {"compiled_ms": fast, "numpy_ms": plain, "ratio": plain / fast}


def _milliseconds(model: CameraModel, *, compiled: bool, captures: int) -> float:
    camera = CameraPipeline(model, CameraSeeds(path=SeedPath.of(0, 0), sensor="bench"), compiled=compiled)
    light, spent = _light(), []
    for number in range(captures):
        began = time.process_time()
        camera.develop(light, time=[number / 30.0], numbers=[number])
        spent.append(time.process_time() - began)
    return 1e3 * min(spent)


def _light(height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Return a synthetic image ``(1, height, width, 3)`` in linear light, with colours, edges and shadows."""
    y, x = np.mgrid[:height, :width] / height
    light = np.stack(
        [0.35 + 0.3 * np.sin(9 * x + 5 * y), 0.3 + 0.25 * np.sin(7 * y), 0.2 + 0.15 * np.cos(6 * x)], axis=-1
    )
    light[height // 3 : height // 2, width // 4 : width // 2] *= 0.05
    return light[None].astype(np.float32)


if __name__ == "__main__":
    metrics = run()
    for name, row in {**metrics["rows"], "uvc_webcam with its lens": metrics["webcam"]}.items():
        print(name, {key: round(value, 1) for key, value in row.items()})
