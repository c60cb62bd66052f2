"""Show the processing stages of a twin's camera or depth sensor while the robot moves, and list built-in devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Column, Table

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable, SeedPath
from twinloop.generate.render_settings import parse_image_size
from twinloop.hardware.teleop_motion import teleop_commands
from twinloop.render import Fields, SceneStates, contact_sheet, encode_srgb, open_renderer, write_png
from twinloop.render.cameras import intrinsics
from twinloop.rollout.camera import KIND, TwinCamera, camera_sensors, sensor_camera
from twinloop.rollout.camera_captures import CameraCaptures, ImageMotion, MovingWorld
from twinloop.rollout.depth import DEPTH_CHANNELS, depth_reading
from twinloop.rollout.substeps import PhysicsStepper
from twinloop.sensors.camera.blur import blur_images
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.protocol import state_poses
from twinloop.twin import Twin, load_twin
from twinloop.twin.devices import device_presets
from twinloop.twin.spec import SensorSpec
from twinloop.twin.variant import add_twin_sensors
from twinloop.workflows.twin.requests import SensorsListRequest, SensorsShowRequest

_SECONDS = 4.0  # duration of the motion: one reach and return
_EARLIEST = 0.5  # s; before, the robot still accelerates, and cameras with latency have no image
_BUSY = 0.95  # quantile of the motion; its maximum is an outlier


class MovingTwin:
    """Twin whose robot moves from home as in teleoperation, as the scene of a camera or depth sensor.

    A twin without a robot keeps its home command, so that only its free bodies move.

    Args:
        twin: the twin.
        seed: seed of the motion and of the sensor noise.

    Attributes:
        twin: the twin.
        table: its nominal parameters.
        world: the moving scene as cameras see it.
        states: poses at each control step.
    """

    def __init__(self, twin: Twin, *, seed: int = 0) -> None:
        self.twin = twin
        self.table: ParamTable = twin.table(1).with_seeds(SeedPath.of(seed, [0]))
        initial, commands = InitialState.home(twin, 1), _make_motion_commands(twin, seed)
        found = rollout(open_backend(nthread=1), twin, self.table, initial, commands[None], len(commands))
        states = found.states[0]
        again = PhysicsStepper(twin, self.table, states, commands, initial.command[0])
        self.world = MovingWorld(
            model=twin.model, time=states[:-1, 0], poses=again.poses_at, fields=_make_constant_fields(twin, self.table)
        )
        self.states = SceneStates(**state_poses(twin.model, states[:-1]))

    def find_motion_time(self, camera: str, *, height: int, width: int) -> float:
        """Return a time in s at which the images of a camera change much.

        For each pair of successive images, the largest motion in pixels is computed. The time is that of the pair whose
        motion is nearest to the 95 % quantile over time.

        Args:
            camera: name of the camera.
            height: height of its images in pixels.
            width: width of its images in pixels.
        """
        motion, fields = ImageMotion(self.twin.model, camera), self.world.fields(np.array([0]))
        pinhole = intrinsics(self.twin.model, camera, height=height, width=width, fields=fields)
        first = int(np.searchsorted(self.world.time, _EARLIEST))
        moved = np.array(
            [
                motion.measure_motion(self.states.take([i - 1, i]), fields, pinhole)
                for i in range(first, len(self.states))
            ]
        )
        return float(self.world.time[first + int(np.argmin(np.abs(moved - np.quantile(moved, _BUSY))))])


def _make_motion_commands(twin: Twin, seed: int) -> NDArray[np.float64]:
    """Return commands of an example motion as in teleoperation, in SI units; home commands if the twin has no robot.

    The shape is ``(nstep, nu)`` for nstep control steps and nu actuators.
    """
    if twin.spec.robot is None:
        home = InitialState.home(twin, 1).command
        return np.tile(home, (round(_SECONDS * twin.control_hz), 1))
    return twin.units.to_si(teleop_commands(twin, seed=seed, episodes=[0], seconds=_SECONDS)[0])


def _make_constant_fields(twin: Twin, table: ParamTable) -> Callable[[NDArray[np.intp]], Fields]:
    arrays = {name: values[0] for name, values in twin.fields(table, visual=True).arrays.items()}
    return lambda _: arrays  # constant in time


_COLUMNS = 4
_FOLLOWED = 0.8  # s; time for the automatic exposure to adapt before the shown image
# From near to far: dark blue to yellow through green, evenly spaced in lightness; our choice.
_NEAR_TO_FAR = np.array(
    [[255, 236, 90], [110, 205, 100], [30, 150, 140], [50, 90, 145], [60, 15, 95]], dtype=np.float64
)
_NOTHING = (0, 0, 0)


def show_sensor(request: SensorsShowRequest, console: Console) -> dict[str, Any]:
    """Write an image file with the processing stages of a sensor, at a moment in which the scene moves.

    Returns:
        A JSON-compatible dictionary with sensor, device, camera, time, stages and file.

    Raises:
        UnknownNameError: If there is no such twin, camera, sensor, device or renderer.
        InputError: If the camera has no sensor and no device is given, or the device does not make images.
    """
    twin, name = _select_sensor(load_twin(request.twin), request.camera, request.sensor, request.device)
    kind, seen_from = twin.devices[name].kind, sensor_camera(twin, name)
    moving, (width, height) = MovingTwin(twin), parse_image_size(request.size)
    time = moving.find_motion_time(seen_from, height=height, width=width)
    made = _camera_stages if kind == KIND else _depth_stages
    stages = made(moving, name, time, height=height, width=width, renderer=request.renderer)
    labels = [label for label, _ in stages]
    path = request.output or Path(f"{twin.name}-{name}-{twin.devices[name].name}.png".replace("/", "-"))
    write_png(path, contact_sheet([image for _, image in stages], labels, columns=_COLUMNS))
    console.print(
        f"{twin.name}, {name} as {twin.devices[name].name} from {seen_from}, {time:.2f} s after home: "
        f"{', '.join(labels)}: {path}",
        soft_wrap=True,
    )
    return {"sensor": name, "device": twin.devices[name].name, "camera": seen_from, "time": time, "stages": labels,
            "output": str(path)}  # fmt: skip


def list_devices(_: SensorsListRequest, console: Console) -> dict[str, Any]:
    """Print every built-in sensing device; return the devices with their settings, values and sources."""
    table = Table(Column("device", no_wrap=True), Column("kind", no_wrap=True), "description")
    devices = sorted(device_presets().values(), key=lambda device: device.kind)
    for device in devices:
        table.add_row(device.name, device.kind, device.description)
    console.print(table)
    rows = [
        {
            "name": device.name,
            "kind": device.kind,
            "description": device.description,
            "settings": {name: setting.value for name, setting in device.settings.items()},
            "values": {name: rated.value for name, rated in device.values.items()},
            "sources": {name: rated.source for name, rated in device.values.items()},
        }
        for device in devices
    ]
    return {"devices": rows}


def _select_sensor(twin: Twin, camera: str | None, sensor: str | None, device: str | None) -> tuple[Twin, str]:
    """Find the sensor to show, and add the requested device to the twin if one is given.

    Returns:
        The twin with the sensor, and the name of the sensor.

    Raises:
        UnknownNameError: If there is no such sensor, camera or device.
        InputError: If both camera and sensor are given, the twin has no camera, or the camera has no sensor.
    """
    if sensor is not None:
        if camera is not None:
            raise InputError(
                f"--camera {camera} and --sensor {sensor}: a sensor has its own camera. Name one of the two."
            )
        if sensor not in twin.devices:
            raise UnknownNameError("sensor", sensor, twin.devices, where=f"twin {twin.name}")
        if device is not None:
            twin = add_twin_sensors(twin, {sensor: SensorSpec(device=device, camera=sensor_camera(twin, sensor))})
        return _require_image_sensor(twin, sensor)
    cameras = twin.spec.cameras
    if not cameras:
        raise InputError(f"The twin {twin.name} names no camera. Add `cameras:` to its YAML.")
    camera = camera or cameras[0]
    if camera not in cameras:
        raise UnknownNameError("camera", camera, cameras, where=f"twin {twin.name}")
    own = camera_sensors(twin).get(camera)
    if device is not None:
        return _require_image_sensor(
            add_twin_sensors(twin, {own or camera: SensorSpec(device=device, camera=camera)}), own or camera
        )
    if own is None:
        raise InputError(
            f"The twin {twin.name} has no sensor at the camera {camera}. Name a device: --device uvc_webcam "
            "(`twinloop sensors list` shows them), or add `sensors:` to its YAML."
        )
    return twin, own


def _require_image_sensor(twin: Twin, sensor: str) -> tuple[Twin, str]:
    device = twin.devices[sensor]
    if device.kind not in (KIND, "depth"):
        raise InputError(
            f"The device {device.name} is of kind {device.kind}. Only cameras and depth cameras can be shown."
        )
    return twin, sensor


def _camera_stages(
    moving: MovingTwin, sensor: str, time: float, *, height: int, width: int, renderer: str
) -> list[tuple[str, NDArray[np.uint8]]]:
    """Return labelled images at one time: the clean one, one after each stage of the sensor, and the delivered one.

    Args:
        moving: twin with a simulated example motion, whose poses are known at any time.
        sensor: name of the sensor.
        time: time in s.
        height: height of the images in pixels.
        width: width of the images in pixels.
        renderer: name of the renderer.
    """
    twin = moving.twin
    camera = TwinCamera.of(
        twin, moving.table, sensor, height=height, width=width, fields=moving.world.fields(np.array([0]))
    )
    with (
        open_renderer(renderer, twin.model, height=height, width=width, cameras=[camera.camera]) as plain,
        open_renderer(
            renderer, twin.model, height=camera.view.height, width=camera.view.width, cameras=[camera.camera]
        ) as wide,
    ):

        def draw(states: SceneStates, fields: Fields) -> NDArray[np.float32]:
            return wide.observe(states, fields, channels=("linear",))[camera.camera]["linear"]

        states, fields = moving.world.at([time])
        stages = [("clean", plain.render(states, fields)[camera.camera][0])]
        shots = CameraCaptures(camera, moving.world, draw)
        first, now = np.searchsorted(moving.world.time, [time - _FOLLOWED, time])
        delivered = shots.take_images(range(int(first), int(now) + 1))[-1]
        shutter, times = shots.subframes_at(time)
        drawn = draw(states, camera.view_fields(moving.world.model, fields))
        bent = drawn if camera.remap.is_identity else camera.remap.apply(drawn)
        stages += [
            ("lens", encode_srgb(bent[0])),
            ("lens: blur", encode_srgb(blur_images(bent, camera.lens.blur)[0])),
        ]
        light = shots.render_light(time)
        exposure, readout = 1e3 * shutter.exposure_time, 1e3 * shutter.skew
        shown = f"shutter: {exposure:.3g} ms, readout {readout:.3g} ms, {len(times)} subframes"
        stages.append((shown, encode_srgb(light)))
        stages += shots.stages(light, time)
    age = time - float(shots.captures.capture_time[0, now])
    return [*stages, (f"delivered to the robot: {1e3 * age:.0f} ms old", delivered)]


def _depth_stages(
    moving: MovingTwin, sensor: str, time: float, *, height: int, width: int, renderer: str
) -> list[tuple[str, NDArray[np.uint8]]]:
    """Return labelled images at one time: colour, true depth, the depth that the device measures, and its error.

    Args:
        moving: twin with a simulated example motion, whose poses are known at any time.
        sensor: name of the sensor.
        time: time in s.
        height: height of the images in pixels.
        width: width of the images in pixels.
        renderer: name of the renderer.
    """
    twin, camera = moving.twin, sensor_camera(moving.twin, sensor)
    states, fields = moving.world.at([time])
    with open_renderer(renderer, twin.model, height=height, width=width, cameras=[camera]) as opened:
        depth = [name for name in DEPTH_CHANNELS if name in opened.channels]
        seen = opened.observe(states, fields, channels=("rgb", *depth))[camera]
    pinhole = intrinsics(twin.model, camera, height=height, width=width, fields=fields)
    channels = {name: value for name, value in seen.items() if name != "rgb"}
    read = depth_reading(twin, moving.table, sensor, channels, pinhole, frames=[0]).metres[0]
    true = np.where(np.isfinite(seen["depth"][0]), seen["depth"][0], np.nan)
    far = float(np.nanquantile(true, 0.98))
    off = np.abs(read - true)
    worst = float(np.nanquantile(off, 0.95)) if np.isfinite(off).any() else 1.0
    return [
        ("clean", seen["rgb"][0]),
        (f"true depth, to {far:.2g} m", _colorize(true, far)),
        (f"{twin.devices[sensor].name}, black: no reading", _colorize(read, far)),
        (f"error, to {1e3 * worst:.2g} mm", _colorize(worst - off, worst)),
    ]


def _colorize(values: NDArray[np.floating], most: float) -> NDArray[np.uint8]:
    """Return numbers from 0 to ``most`` as RGB colours from yellow to dark blue, and NaN in black."""
    place = np.clip(np.nan_to_num(values) / most, 0.0, 1.0) * (len(_NEAR_TO_FAR) - 1)
    low = np.minimum(place.astype(np.intp), len(_NEAR_TO_FAR) - 2)
    part = (place - low)[..., None]
    colour = _NEAR_TO_FAR[low] * (1.0 - part) + _NEAR_TO_FAR[low + 1] * part
    return np.where(np.isfinite(values)[..., None], colour, _NOTHING).astype(np.uint8)
