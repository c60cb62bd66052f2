"""Take the images of an episode, clean or through a sensor model, with annotations and readings."""

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
    """The twin with its sensors, and the sensor of each camera that is not clean.

    ``replaced`` are the sensors that are not the twin's own, for which an episode's draws do not apply. ``ranging`` are
    the depth cameras and lidars that are read in addition.
    """

    twin: Twin
    sensors: dict[str, str]
    replaced: tuple[str, ...] = ()
    ranging: tuple[str, ...] = ()


def choose_sensors(settings: RenderConfig, twin: Twin, cameras: Sequence[str]) -> SensorChoice:
    """Return the sensors of the rendered cameras.

    Raises:
        UnknownNameError: a camera is not rendered, or a device does not exist.
        InputError: a device is no camera, or ``device`` is requested for a twin without sensors.
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
    changed = add_twin_sensors(twin, specs)
    for name in specs:
        device = changed.devices[name]
        if device.kind != KIND:
            raise InputError(f"The device {device.name} is a {device.kind}, and no {KIND}: it makes no pictures.")
    found |= {spec.camera: name for name, spec in specs.items()}
    return SensorChoice(twin=changed, sensors=found, replaced=tuple(specs), ranging=ranging)


def ranging_sensors(twin: Twin) -> tuple[str, ...]:
    """Return the names of a twin's depth cameras and lidars."""
    return tuple(name for name, device in twin.devices.items() if device.kind in ("depth", "lidar"))


class CameraView(Protocol):
    """Source of the images of some cameras, episode by episode, in the order of the frames."""

    def begin(self, episode: StoredEpisode) -> None:
        """Start an episode."""
        ...

    def frames(self, rows: range) -> dict[str, NDArray[np.uint8]]:
        """Return images ``(n, height, width, 3)`` by camera at the next control steps."""
        ...


class CleanView:
    """Rendered images without a sensor model, of the world at the time of each command."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self._episode: StoredEpisode | None = None

    def begin(self, episode: StoredEpisode) -> None:
        """Start an episode."""
        self._episode = episode

    def frames(self, rows: range) -> dict[str, NDArray[np.uint8]]:
        """Render images ``(n, height, width, 3)`` by camera at control steps."""
        assert self._episode is not None  # noqa: S101 - our own invariant: begun first
        states = self._episode.states.take(slice(rows.start, rows.stop))
        return self.renderer.render(states, self._episode.fields(rows))


class SensedView:
    """Images as delivered by a sensor of the twin, each camera separately.

    Args:
        opened: function from height and width to a renderer; the lens of another world may need another size.
        sensor: name of the sensor.
        camera: size of the delivered images.
        most: largest number of subframes of an image.
    """

    def __init__(self, opened: Callable[[int, int], Renderer], sensor: str, camera: CameraSpec, *, most: int) -> None:
        self._opened = functools.cache(opened)
        self._sensor, self.camera, self._most = sensor, camera, most
        self.shots: CameraCaptures | None = None

    def begin(self, episode: StoredEpisode) -> None:
        """Start an episode with its sensor parameters."""
        camera = episode.camera(self._sensor, self.camera)
        renderer = self._opened(camera.view.height, camera.view.width)

        def draw(states: SceneStates, fields: Fields) -> NDArray[np.float32]:
            return renderer.observe(states, fields, channels=("linear",))[camera.camera]["linear"]

        self.shots = CameraCaptures(camera, episode.world, draw, most=self._most)

    def frames(self, rows: range) -> dict[str, NDArray[np.uint8]]:
        """Return the delivered images ``(n, height, width, 3)`` by camera at control steps."""
        assert self.shots is not None  # noqa: S101 - our own invariant: begun first
        return {self.camera.name: self.shots.take_images(rows)}


Tables = dict[str, pa.Table]
Opened = Callable[[int, int, list[str]], Renderer]
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
    """Writers of a block's side tables, one file per table, to which episodes are appended."""

    folder: Path
    _writers: dict[str, pq.ParquetWriter] = field(default_factory=dict)

    def add(self, tables: Mapping[str, pa.Table]) -> None:
        """Append the rows of an episode."""
        for name, table in tables.items():
            if name not in self._writers:
                path = self._path(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._writers[name] = pq.ParquetWriter(path, table.schema)
            self._writers[name].write_table(table, row_group_size=max(1, len(table)))

    def close(self) -> dict[str, Path]:
        """Close all files; return them by the names of the tables."""
        for writer in self._writers.values():
            writer.close()
        return {name: self._path(name) for name in self._writers}

    def _path(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '.')}.parquet"


class EpisodeTables:
    """Computation of the side tables of episodes.

    Args:
        opened: function from height, width and cameras to a renderer.
        wanted: requested annotations.
        ranging: names of depth cameras and lidars to read.
    """

    def __init__(self, opened: Opened, wanted: AnnotationSettings | None, ranging: Sequence[str]) -> None:
        self._opened, self._wanted, self._ranging = opened, wanted, ranging
        self._renderers: dict[tuple[int, int, str], Renderer] = {}

    def make_tables(self, episode: StoredEpisode, views: Sequence[CameraView]) -> Tables:
        """Return the tables of one episode whose images the views have taken."""
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
        """Return the annotations of a view's images; with a sensor, of the undistorted camera at its time."""
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
        assert isinstance(view, SensedView)  # noqa: S101 - there are these two
        return self._renderer(view.camera.height, view.camera.width, view.camera.name)

    def _renderer(self, height: int, width: int, camera: str) -> Renderer:
        key = (height, width, camera)
        if key not in self._renderers:
            self._renderers[key] = self._opened(height, width, [camera])
        return self._renderers[key]

    def _read_depth(self, episode: StoredEpisode, sensor: str) -> pa.Table:
        """Return the readings of a depth camera at every control step, as 16-bit images."""
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
    """Return poses and appearance at the time of each image of a view."""
    if isinstance(view, SensedView) and view.shots is not None:
        return episode.world.at(view.shots.captures.taken[0])
    return episode.states, episode.fields(np.arange(len(episode.states)))
