"""Render the images of an episode, directly or through a camera sensor model, with annotations and sensor readings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.dataset.media.png_coding import encode_png
from twinloop.dataset.side_tables import table_metadata
from twinloop.dataset.spec import CameraSpec
from twinloop.generate.pixels.source import StoredEpisode
from twinloop.generate.render_settings import CLEAN, DEVICE, RenderConfig
from twinloop.render import Fields, Renderer, SceneStates
from twinloop.render.annotate import AnnotationSettings, annotate_episode
from twinloop.render.cameras import intrinsics
from twinloop.rollout.camera import KIND, camera_sensors, sensor_camera
from twinloop.rollout.camera_captures import CameraCaptures
from twinloop.rollout.contacts import dynamics_tables
from twinloop.rollout.depth import DEPTH_CHANNELS, depth_reading, sensor_settings
from twinloop.rollout.lidar import lidar_scans
from twinloop.twin import Twin
from twinloop.twin.spec import SensorSpec
from twinloop.twin.variant import add_twin_sensors


@dataclass(frozen=True, kw_only=True)
class SensorChoice:
    """Sensor model of each rendered camera.

    Attributes:
        twin: twin with all chosen sensors.
        sensors: name of the sensor by camera; other cameras have no sensor model.
        replaced: sensors that are not part of the original twin, so that an episode's drawn parameters do not apply to
            them.
        ranging: depth cameras and lidars that are read in addition.
    """

    twin: Twin
    sensors: dict[str, str]
    replaced: tuple[str, ...] = ()
    ranging: tuple[str, ...] = ()


def choose_sensors(settings: RenderConfig, twin: Twin, cameras: Sequence[str]) -> SensorChoice:
    """Return the sensor model of each rendered camera, according to the setting ``sensors``.

    Args:
        settings: settings of the rendering.
        twin: twin of the dataset.
        cameras: names of the rendered cameras.

    Raises:
        UnknownNameError: If a camera is not rendered, or a device does not exist.
        InputError: If a device is not a camera, or ``device`` is requested for a twin without sensors.
    """
    words = settings.sensors
    if isinstance(words, dict):
        for camera in words:
            if camera not in cameras:
                raise UnknownNameError("camera", camera, cameras, where="the sensors of the cameras to render")
    asked = {camera: words if isinstance(words, str) else words.get(camera, CLEAN) for camera in cameras}
    own = camera_sensors(twin)
    found = {camera: own[camera] for camera, word in asked.items() if word == DEVICE and camera in own}
    ranging = ranging_sensors(twin) if words == DEVICE else ()
    without_sensor = [camera for camera, word in asked.items() if word == DEVICE and camera not in own]
    if without_sensor and (isinstance(words, dict) or not (found or ranging)):
        raise InputError(
            f"The twin {twin.name} has no camera sensor for {', '.join(without_sensor)}. Add `sensors:` to "
            f"its YAML, or name a device: --sensors {without_sensor[0]}=uvc_webcam."
        )
    others = {camera: word for camera, word in asked.items() if word not in (CLEAN, DEVICE)}
    if not others:
        return SensorChoice(twin=twin, sensors=found, ranging=ranging)
    specs = {own.get(camera, camera): SensorSpec(device=device, camera=camera) for camera, device in others.items()}
    changed = add_twin_sensors(twin, specs)
    for name in specs:
        device = changed.devices[name]
        if device.kind != KIND:
            raise InputError(f"The device {device.name} is of the kind {device.kind}, not {KIND}, so it has no images.")
    found |= {spec.camera: name for name, spec in specs.items()}
    return SensorChoice(twin=changed, sensors=found, replaced=tuple(specs), ranging=ranging)


def ranging_sensors(twin: Twin) -> tuple[str, ...]:
    """Return the names of a twin's depth cameras and lidars."""
    return tuple(name for name, device in twin.devices.items() if device.kind in ("depth", "lidar"))


class CameraView(Protocol):
    """Protocol of sources of the images of some cameras, episode by episode, in the order of the frames."""

    def begin(self, episode: StoredEpisode) -> None:
        """Start an episode; later calls of `frames` refer to it."""
        ...

    def frames(self, rows: range) -> dict[str, NDArray[np.uint8]]:
        """Return the images ``(n, height, width, 3)`` by camera at the next n control steps."""
        ...


class CleanView:
    """Rendered images without a sensor model; they show the scene at the time of each command."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self._episode: StoredEpisode | None = None

    def begin(self, episode: StoredEpisode) -> None:
        """Start an episode; later calls of `frames` refer to it."""
        self._episode = episode

    def frames(self, rows: range) -> dict[str, NDArray[np.uint8]]:
        """Render the images ``(n, height, width, 3)`` by camera at n control steps."""
        assert self._episode is not None  # noqa: S101 - an invariant: begin() was called
        states = self._episode.states.take(slice(rows.start, rows.stop))
        return self.renderer.render(states, self._episode.fields(rows))


class SensedView:
    """Images of one camera as a sensor of the twin delivers them.

    Args:
        opened: function that opens a renderer from height and width. The rendered size may be larger than that of the
            delivered images, because a lens distorts the image.
        sensor: name of the sensor.
        camera: name and size of the delivered images.
        most: largest number of rendered times (subframes) in one exposure.
    """

    def __init__(self, opened: Callable[[int, int], Renderer], sensor: str, camera: CameraSpec, *, most: int) -> None:
        self._opened = functools.cache(opened)
        self._sensor, self.camera, self._most = sensor, camera, most
        self.captures: CameraCaptures | None = None

    def begin(self, episode: StoredEpisode) -> None:
        """Prepare to render an episode with the sensor parameters that were drawn for it."""
        camera = episode.camera(self._sensor, self.camera)
        renderer = self._opened(camera.view.height, camera.view.width)

        def draw(states: SceneStates, fields: Fields) -> NDArray[np.float32]:
            return renderer.observe(states, fields, channels=("linear",))[camera.camera]["linear"]

        self.captures = CameraCaptures(camera, episode.world, draw, most=self._most)

    def frames(self, rows: range) -> dict[str, NDArray[np.uint8]]:
        """Return the delivered images ``(n, height, width, 3)`` of the camera, by its name, at n control steps."""
        assert self.captures is not None  # noqa: S101 - an invariant: begin() was called
        return {self.camera.name: self.captures.take_images(rows)}


Tables = dict[str, pa.Table]
OpenRenderer = Callable[[int, int, list[str]], Renderer]
READINGS = "sensors/{}"  # the side table of a sensor's readings
_FRAMES = 16  # rendered at once

DEPTH_COLUMNS: Mapping[str, tuple[pa.DataType, str]] = {
    "number": (pa.int64(), "the episode's number"),
    "frame_index": (pa.int64(), "frame, from 0"),
    "depth": (pa.binary(), "PNG, 16 bits: counts of unit along the optical axis; 0 without a measurement"),
    "unit": (pa.float64(), "m of one count"),
}


@dataclass
class TableFiles:
    """Writers of a block's side tables, one Parquet file per table, to which the rows of episodes are appended.

    Attributes:
        folder: folder of the files.
    """

    folder: Path
    _writers: dict[str, pq.ParquetWriter] = field(default_factory=dict)

    def add(self, tables: Mapping[str, pa.Table]) -> None:
        """Append the rows of an episode to the files.

        Args:
            tables: rows by name of the side table.
        """
        for name, table in tables.items():
            if name not in self._writers:
                path = self._path(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._writers[name] = pq.ParquetWriter(path, table.schema)
            self._writers[name].write_table(table, row_group_size=max(1, len(table)))

    def close(self) -> dict[str, Path]:
        """Close all files, and return their paths by name of the side table."""
        for writer in self._writers.values():
            writer.close()
        return {name: self._path(name) for name in self._writers}

    def _path(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '.')}.parquet"


class EpisodeTables:
    """Builder of an episode's side tables, which are tables of additional data: annotations and sensor readings.

    The annotations describe images. The readings are those of depth cameras and lidars.

    Args:
        opened: function that opens a renderer from height, width and cameras.
        wanted: requested annotations, for example masks or depth; None if no annotation is requested.
        ranging: names of depth cameras and lidars to read.
    """

    def __init__(self, opened: OpenRenderer, wanted: AnnotationSettings | None, ranging: Sequence[str]) -> None:
        self._opened, self._wanted, self._ranging = opened, wanted, ranging
        self._renderers: dict[tuple[int, int, str], Renderer] = {}

    def make_tables(self, episode: StoredEpisode, views: Sequence[CameraView]) -> Tables:
        """Return the side tables of one episode, by name.

        Args:
            episode: the episode.
            views: sources of its images, after all its images were taken.
        """
        tables: Tables = {}
        if self._wanted is not None:
            parts = [self._annotations(episode, view, self._wanted) for view in views]
            for name in dict.fromkeys(name for part in parts for name in part):
                tables[name] = pa.concat_tables(part[name] for part in parts if name in part).unify_dictionaries()
            tables |= dynamics_tables(episode.twin, episode.record, self._wanted.per_step)
        for sensor in self._ranging:
            kind = episode.twin.devices[sensor].kind
            tables[READINGS.format(sensor)] = (
                lidar_scans(episode.twin, episode.record, sensor)
                if kind == "lidar"
                else self._read_depth(episode, sensor)
            )
        return tables

    def _annotations(self, episode: StoredEpisode, view: CameraView, wanted: AnnotationSettings) -> Tables:
        """Return the annotations of a view's images.

        If the view has a sensor model, the annotations describe the undistorted image at the sensor's capture time.
        """
        states, fields = image_scenes(episode, view)
        return annotate_episode(
            self._true_renderer(view),
            episode.twin,
            states,
            fields,
            number=episode.record.number,
            settings=wanted,
            model=episode.model,
        )

    def _true_renderer(self, view: CameraView) -> Renderer:
        if isinstance(view, CleanView):
            return view.renderer
        assert isinstance(view, SensedView)  # noqa: S101 - there are only these two classes
        return self._renderer(view.camera.height, view.camera.width, view.camera.name)

    def _renderer(self, height: int, width: int, camera: str) -> Renderer:
        key = (height, width, camera)
        if key not in self._renderers:
            self._renderers[key] = self._opened(height, width, [camera])
        return self._renderers[key]

    def _read_depth(self, episode: StoredEpisode, sensor: str) -> pa.Table:
        """Return the readings of a depth camera at every control step, as a table of 16-bit images.

        A pixel is the distance along the optical axis in counts; 0 is no measurement. The column ``unit`` has the size
        of a count in m.
        """
        rows = list(self._depth_rows(episode, sensor))
        text = {"device": episode.twin.devices[sensor].name, "camera": sensor_camera(episode.twin, sensor)}
        meanings = {name: meaning for name, (_, meaning) in DEPTH_COLUMNS.items()}
        schema = pa.schema([pa.field(name, kind) for name, (kind, _) in DEPTH_COLUMNS.items()])
        described = schema.with_metadata(table_metadata(READINGS.format(sensor), {**text, "columns": meanings}))
        return pa.Table.from_pylist(rows, schema=described)

    def _depth_rows(self, episode: StoredEpisode, sensor: str) -> Iterator[dict[str, object]]:
        settings = sensor_settings(episode.twin, sensor, "depth")
        height, width, camera = int(settings["height"]), int(settings["width"]), sensor_camera(episode.twin, sensor)
        renderer = self._renderer(height, width, camera)
        channels = [name for name in DEPTH_CHANNELS if name in renderer.channels]
        for start in range(0, len(episode.states), _FRAMES):
            steps = np.arange(start, min(start + _FRAMES, len(episode.states)))
            fields = episode.fields(steps)
            seen = renderer.observe(episode.states.take(steps), fields, channels=channels)[camera]
            first = {name: value[0] if episode.changes_per_step else value for name, value in fields.items()}
            pinhole = intrinsics(episode.model, camera, height=height, width=width, fields=first)
            reading = depth_reading(episode.twin, episode.table, sensor, seen, pinhole, frames=steps)
            for step, counts in zip(steps.tolist(), reading.counts, strict=True):
                number = episode.record.number
                yield {"number": number, "frame_index": step, "depth": encode_png(counts), "unit": reading.unit}


def image_scenes(episode: StoredEpisode, view: CameraView) -> tuple[SceneStates, Fields]:
    """Return the poses of the scene and its appearance (randomized model fields) at the time of each image."""
    if isinstance(view, SensedView) and view.captures is not None:
        return episode.world.at(view.captures.captures.capture_time[0])
    return episode.states, episode.fields(np.arange(len(episode.states)))
