"""Read one episode as time series for an export: images, features, sensor signals, and data of the simulator.

Times are true times: from the simulator, the recorded log or ``observation.time``; if none exists, LeRobot's nominal
``frame / fps``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.records import LoggedSignal, StoredSimulation
from twinloop.core.units import UnitMap
from twinloop.dataset.export.protocol import ExportOptions
from twinloop.dataset.export.source import VideoClip
from twinloop.dataset.lerobot.layout import INFO, resolve_inside
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.importers.protocol import frame_times
from twinloop.dataset.media.depth import is_depth
from twinloop.dataset.media.image_sources import open_images
from twinloop.dataset.media.images import EpisodeImages
from twinloop.dataset.signals import column_units, read_generated_signals, read_stored_signals
from twinloop.dataset.spec import INDEX_FEATURES, STATE, TRUE_TIME

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """A text at a time of the episode; ``time`` is in s."""

    time: float
    text: str
    level: Literal["info", "warning", "error"] = "info"


@dataclass(frozen=True, kw_only=True)
class BodyShape:
    """Shape of a body for display.

    Attributes:
        body: Name of the body.
        kind: Type of the shape.
        size: Sizes in m, with MuJoCo's meaning of ``size`` for this type.
        position: Position in the body's frame in m.
        quaternion: Orientation in the body's frame, wxyz.
        rgba: Colour and opacity, from 0 to 1.
        vertices: Vertices of a mesh in m, shape ``(number of vertices, 3)``.
        faces: Vertex indices of the triangles of a mesh, shape ``(number of triangles, 3)``.
    """

    body: str
    kind: Literal["box", "sphere", "ellipsoid", "capsule", "cylinder", "mesh"]
    size: tuple[float, float, float]
    position: tuple[float, float, float]
    quaternion: tuple[float, float, float, float]
    rgba: tuple[float, float, float, float]
    vertices: NDArray[np.float32] | None = None
    faces: NDArray[np.int32] | None = None


@dataclass(frozen=True, kw_only=True)
class BodyPoses:
    """World poses of n bodies in T frames.

    Attributes:
        names: Names of the bodies.
        position: Positions in m, shape ``(T, n, 3)``.
        quaternion: Orientations wxyz, shape ``(T, n, 4)``.
        shapes: Shapes of the bodies.
    """

    names: tuple[str, ...]
    position: Array
    quaternion: Array
    shapes: tuple[BodyShape, ...] = ()


def _return_none(_index: int) -> None:
    return None


def _no_events(_index: int) -> Sequence[StreamEvent]:
    return ()


@dataclass(frozen=True, kw_only=True)
class GroundTruth:
    """Functions that provide data of an episode that the dataset itself does not have; they take the episode index.

    Attributes:
        simulation: Returns states and MuJoCo model of an episode, or None.
        bodies: Returns the world poses of all bodies, or None.
        events: Returns events such as labels.
        command: Command type of the twin: ``position`` or ``torque``.
        notes: Remarks for the user, which are added to the result of an export.
    """

    simulation: Callable[[int], StoredSimulation | None] = _return_none
    bodies: Callable[[int], BodyPoses | None] = _return_none
    events: Callable[[int], Sequence[StreamEvent]] = _no_events
    command: str = "position"
    notes: tuple[str, ...] = ()


NO_GROUND_TRUTH = GroundTruth()


IMAGES = "observation.images."
ACTION, SUCCESS, REWARD = "action", "next.success", "next.reward"
_NUMBERS = ("float", "int", "uint", "bool")
ARROW_M_PER_N = 0.005  # length of a contact's arrow: gravity on 1 kg is 5 cm, a gripper's 20 N are 10 cm
_CHUNK = 32  # images that are decoded at once: 7 MB of 240×320


@dataclass(frozen=True, kw_only=True)
class TimeSeries:
    """Time series of T samples with k columns.

    Attributes:
        name: Name of the series, such as a feature key.
        time: Times in s, shape ``(T,)``.
        values: Values, shape ``(T, k)``.
        columns: Name of each column.
        units: Unit of each column; empty if unknown.
    """

    name: str
    time: Array
    values: Array
    columns: tuple[str, ...]
    units: tuple[str, ...]

    def split_columns(self) -> Iterator[TimeSeries]:
        """Yield each column as a separate time series."""
        for i, (column, unit) in enumerate(zip(self.columns, self.units, strict=True)):
            values = self.values[:, i : i + 1]
            yield TimeSeries(name=self.name, time=self.time, values=values, columns=(column,), units=(unit,))


class EpisodeStreams:
    """Time series of one episode; data are read at first access.

    Args:
        reader: The dataset.
        index: ``episode_index`` of the episode.

    Attributes:
        written_by_twinloop: Whether twinloop wrote the episode. It is then either recorded or simulated.
        recorded: Whether twinloop wrote the episode from a recorded log.
        simulated: Whether twinloop simulated the episode.
        length: Number of frames.
    """

    def __init__(self, reader: DatasetReader, index: int) -> None:
        self.reader, self.index = reader, index
        self.written_by_twinloop = reader.written_by_twinloop and not reader.is_appended(index)
        self.recorded = self.written_by_twinloop and reader.has_log(index)
        self.simulated = self.written_by_twinloop and not self.recorded
        self.length = int(reader.row(index)["length"])

    @property
    def name(self) -> str:
        """Id of the episode if twinloop wrote it, else ``episode_N`` with its index N."""
        return self.reader.episode_ids[self.index] if self.written_by_twinloop else f"episode_{self.index:06d}"

    @functools.cached_property
    def tasks(self) -> tuple[str, ...]:
        """Task texts of the episode."""
        return tuple(map(str, self.reader.row(self.index).get("tasks") or ()))

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """Provenance of the episode as a JSON-compatible dictionary; empty if twinloop did not write the episode."""
        return self.reader.provenance(self.index).to_json() if self.written_by_twinloop else {}

    @functools.cached_property
    def time(self) -> Array:
        """True time of each of T frames in s, shape ``(T,)``."""
        if self.recorded:
            return np.array(self.reader.log_episode(self.index).time)
        if self.simulated:
            return self.states[:-1, 0]
        key = TRUE_TIME if TRUE_TIME in self.reader.info["features"] else "timestamp"
        return frame_times(self.reader.array(self.index, key).reshape(-1), self.reader.fps)

    @functools.cached_property
    def states(self) -> Array:
        """Simulator states of T frames and after the last frame, shape ``(T + 1, n)``; only for simulated episodes.

        Each state has n values and begins with the time.
        """
        return self.reader.states(self.index)

    @property
    def units(self) -> UnitMap | None:
        """Unit map of the joint columns; None if the dataset has no unit map."""
        return self.reader.units

    def features(self) -> Iterator[TimeSeries]:
        """Yield each numeric feature in the dataset's own units."""
        for key, entry in self.reader.info["features"].items():
            if key in INDEX_FEATURES or not str(entry["dtype"]).startswith(_NUMBERS):
                continue
            values = self.reader.array(self.index, key).reshape(self.length, -1)
            columns = column_names(self.reader, key, values.shape[1])
            units = feature_units(self.reader, key, values.shape[1])
            yield TimeSeries(name=key, time=self.time, values=values, columns=columns, units=units)

    def joints_si(self, command: str = "position") -> Iterator[TimeSeries]:
        """Yield commanded and measured joint values in SI units; nothing if the joint units are unknown.

        Args:
            command: Command type (`core.units.CommandKind`) that is assumed if the episode does not declare it.
        """
        map_ = self.units
        if map_ is None or not map_.known:
            return
        command = self.provenance.get("extra", {}).get("command", command)
        slides = [unit.unit in ("m", "cm", "mm") for unit in map_.joints]
        pairs = {"position": ("m", "rad"), "velocity": ("m/s", "rad/s"), "torque": ("N", "N·m")}
        for name, key in (("commanded", ACTION), ("measured", STATE)):
            if name == "commanded" and command == "none":
                continue
            kind = command if name == "commanded" else "position"
            values = self.read_exact(key)[:, : len(map_.names)]
            values = map_.of_commands(kind).to_si(values)
            units = tuple(np.where(slides, *pairs[kind]).tolist())
            yield TimeSeries(name=name, time=self.time, values=values, columns=map_.names, units=units)

    def signals(self) -> Iterator[TimeSeries]:
        """Yield sensor signals with their own sample times, in SI units.

        Examples of their names are ``joint_velocity``, and ``wrench/SITE`` for force and torque at the MuJoCo site
        SITE.
        """
        found: dict[str, LoggedSignal] = {}
        if self.recorded:
            found = read_stored_signals(self.reader, self.index)
        elif self.simulated:
            found = read_generated_signals(self.reader, self.index)
        for name, signal in found.items():
            units = column_units(name, signal)
            yield TimeSeries(name=name, time=signal.time, values=signal.values, columns=signal.columns, units=units)

    def rows(self, table: str, columns: Sequence[str]) -> pa.Table | None:
        """Return the episode's rows of a side table (additional Parquet table of twinloop); None if it does not exist.

        Args:
            table: Name of the side table.
            columns: Columns to read.
        """
        if not self.written_by_twinloop or table not in self.reader.side_tables:
            return None
        return self.reader.side_rows(table, self.index, columns)

    def events(self) -> list[StreamEvent]:
        """Return the events in the dataset: tasks, invalid simulation, and each change of ``next.success``."""
        start = float(self.time[0])
        found = [StreamEvent(time=start, text=f"task: {task}") for task in self.tasks]
        if (reason := str(self.provenance.get("invalid_reason") or "")) or self.provenance.get("valid") is False:
            found.append(StreamEvent(time=start, text=f"invalid: {reason}", level="error"))
        if SUCCESS in self.reader.info["features"]:
            held = self.reader.array(self.index, SUCCESS).reshape(-1) > 0
            for frame in np.flatnonzero(np.diff(held, prepend=False)).tolist():
                text = "success" if held[frame] else "success lost"
                found.append(StreamEvent(time=float(self.time[frame]), text=f"{text} after this frame's command"))
        return found

    def clip(self, camera: str) -> VideoClip | None:
        """Return the location of a camera's images in a video file; None if the images are in the data table."""
        key = IMAGES + camera
        if self.reader.info["features"][key]["dtype"] != "video":
            return None
        row = self.reader.row(self.index)
        values = {"chunk_index": row[f"videos/{key}/chunk_index"], "file_index": row[f"videos/{key}/file_index"]}
        path = resolve_inside(self.reader.path, self.reader.info["video_path"], {**values, "video_key": key})
        start = float(row[f"videos/{key}/from_timestamp"])
        return VideoClip(path=path, start_s=start, frames=self.length, fps=self.reader.fps)

    def decode_images(self, camera: str) -> Iterator[NDArray[np.uint8]]:
        """Yield the images of a camera in order, decoded in batches."""
        read = images_by_episode(self.reader, camera)[self.index].read
        for start in range(0, self.length, _CHUNK):
            yield from read(range(start, min(start + _CHUNK, self.length)))

    def read_exact(self, key: str) -> Array:
        """Return actions or states, shape ``(T, columns)``; ``key`` is their feature key.

        For recorded episodes, these are the unrounded values of the log.
        """
        if not self.recorded:
            return self.reader.array(self.index, key)
        log = self.reader.log_episode(self.index)
        return np.array(log.action if key == ACTION else log.state)


def open_reader(source: Path) -> DatasetReader:
    """Open a LeRobot v3.0 folder.

    Raises:
        InputError: If the folder has version 2. The message explains how to convert it.
        DatasetError: If the folder is not a dataset.
    """
    info = source / INFO
    if info.is_file() and str(read_json(info).get("codebase_version", "")).startswith("v2"):
        raise InputError(
            f"{source} is a LeRobot v2 folder. Make it v3.0 first: twinloop export lerobot {source} --output NEW."
        )
    return DatasetReader(source)


def images_by_episode(reader: DatasetReader, camera: str) -> dict[int, EpisodeImages]:
    """Return an object that reads a camera's images for each episode, by ``episode_index``."""
    return {int(row.name.rpartition(" ")[2]): row for row in open_images(reader.path, camera).episodes}


def camera_names(reader: DatasetReader) -> list[str]:
    """Return the names of all colour cameras of a dataset, whether their images are videos or in the data table."""
    features = reader.info["features"]
    named = {key: entry for key, entry in features.items() if key.startswith(IMAGES) and not is_depth(entry)}
    return [key.removeprefix(IMAGES) for key, entry in named.items() if entry["dtype"] in ("video", "image")]


def select_cameras(reader: DatasetReader, words: str | None) -> list[str]:
    """Return the names of the cameras that the setting ``cameras`` selects.

    Args:
        reader: The dataset.
        words: Value of the setting: None or ``all``, ``none``, or names separated by commas.

    Raises:
        InputError: If names are given and the dataset has no cameras.
        UnknownNameError: If no camera has that name.
    """
    present = camera_names(reader)
    if words is None or words == "all":
        return present
    if words == "none":
        return []
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    if wanted and not present:
        raise InputError(
            f"{reader.path} has no cameras, so {', '.join(wanted)} cannot be exported. Omit the setting cameras."
        )
    for name in wanted:
        if name not in present:
            raise UnknownNameError("camera", name, present, where=str(reader.path))
    return wanted


def require_absent(output: Path) -> None:
    """Check that an output does not exist and is not inside a dataset folder.

    Raises:
        InputError: If the output exists or is inside a dataset folder.
    """
    if output.exists():
        raise InputError(f"{output} exists. Nothing is written over: choose another output.")
    for above in output.resolve().parents:
        if (above / INFO).is_file():
            raise InputError(f"{output} is inside the dataset {above}. Choose an output outside it.")


def column_names(reader: DatasetReader, key: str, width: int) -> tuple[str, ...]:
    """Return the column names of a feature, excluding LeRobot's suffix ``.pos``.

    If the metadata does not have a unique name for each column, column numbers are returned. For a single column, the
    name is then the last part of the feature key.

    Args:
        key: Feature key.
        width: Number of columns.
    """
    names = [name.removesuffix(".pos") for name in reader.feature_names(key)]
    if len(set(names)) == width:
        return tuple(names)
    return (key.rpartition(".")[2],) if width == 1 else tuple(str(column) for column in range(width))


def feature_units(reader: DatasetReader, key: str, width: int) -> tuple[str, ...]:
    """Return the unit of each column of a feature; empty text if unknown.

    Args:
        key: Feature key.
        width: Number of columns.
    """
    known: list[str] = []
    if key in (ACTION, STATE) and reader.units is not None:
        known = [unit.unit for unit in reader.units.joints]
    elif reader.written_by_twinloop:
        known = next((list(reading.units) for reading in reader.spec.readings if reading.key == key), [])
    return tuple((known + [""] * width)[:width])


STREAM_SETTINGS = {
    "cameras": "camera names separated by commas, all (default) or none",
    "images": "format of images: video (default, packets copied if possible) or jpeg",
}
_IMAGES = ("video", "jpeg")


@dataclass(frozen=True, kw_only=True)
class ExportSelection:
    """Content of an export.

    Attributes:
        reader: The dataset.
        cameras: Names of the cameras to export.
        copy_packets: Whether video packets are copied if possible. If false, images are stored as JPEG.
        truth: Data of the simulator that the dataset does not have.
    """

    reader: DatasetReader
    cameras: list[str]
    copy_packets: bool
    truth: GroundTruth


def read_selection(reader: DatasetReader, options: ExportOptions, truth: GroundTruth, *, name: str) -> ExportSelection:
    """Return the content of an export according to its settings ``images`` and ``cameras``.

    Args:
        name: Name of the format, for error messages.

    Raises:
        InputError: If cameras are named and the dataset has none.
        UnknownNameError: If no such camera or image format exists.
    """
    images = options.settings.get("images", _IMAGES[0])
    if images not in _IMAGES:
        raise UnknownNameError("image format", images, _IMAGES, where=f"the format {name}")
    cameras = select_cameras(reader, options.settings.get("cameras"))
    return ExportSelection(reader=reader, cameras=cameras, copy_packets=images == "video", truth=truth)
