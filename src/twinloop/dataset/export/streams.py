"""Read one episode as time series for an export: images, features, signals, and simulator data.

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
from twinloop.dataset.media.image_sources import open_images
from twinloop.dataset.media.images import EpisodeImages
from twinloop.dataset.signals import column_units, read_generated_signals, read_stored_signals
from twinloop.dataset.spec import INDEX_FEATURES, STATE, TRUE_TIME

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """A text at a time of the episode, in s."""

    time: float
    text: str
    level: Literal["info", "warning", "error"] = "info"


@dataclass(frozen=True, kw_only=True)
class BodyShape:
    """Shape of a body: MuJoCo's ``size`` for its kind in m, pose in the body's frame (wxyz), colours 0 to 1.

    A ``mesh`` has ``vertices`` ``(n, 3)`` in m and ``faces`` ``(m, 3)``.
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
    """World pose of each body at each frame: ``position`` ``(T, n, 3)`` in m, ``quaternion`` ``(T, n, 4)`` wxyz."""

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
    """Functions that return simulator data and labels of an episode, which the dataset itself does not have.

    ``command`` is the twin's command type, ``position`` or ``torque``. ``notes`` are added to the result of an export.
    """

    simulation: Callable[[int], StoredSimulation | None] = _return_none
    bodies: Callable[[int], BodyPoses | None] = _return_none
    events: Callable[[int], Sequence[StreamEvent]] = _no_events
    command: str = "position"
    notes: tuple[str, ...] = ()


NOTHING = GroundTruth()


PICTURES = "observation.images."
ACTION, SUCCESS, REWARD = "action", "next.success", "next.reward"
_NUMBERS = ("float", "int", "uint", "bool")
ARROW_M_PER_N = 0.005  # length of a contact's arrow: gravity on 1 kg is 5 cm, a gripper's 20 N are 10 cm
_CHUNK = 32  # images that are decoded at once: 7 MB of 240×320


@dataclass(frozen=True, kw_only=True)
class TimeSeries:
    """Time series ``values`` ``(T, k)`` at ``time`` ``(T,)`` in s, with a name and a unit ("": unknown) per column."""

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
    """Time series of one episode; data are read at first access."""

    def __init__(self, reader: DatasetReader, index: int) -> None:
        self.reader, self.index = reader, index
        self.ours = reader.ours and not reader.is_appended(index)
        self.recorded = self.ours and reader.has_log(index)
        self.simulated = self.ours and not self.recorded
        self.length = int(reader.row(index)["length"])

    @property
    def name(self) -> str:
        """Episode id in twinloop's datasets, else ``episode_N`` with its index."""
        return self.reader.episode_ids[self.index] if self.ours else f"episode_{self.index:06d}"

    @functools.cached_property
    def tasks(self) -> tuple[str, ...]:
        """Task texts of the episode."""
        return tuple(map(str, self.reader.row(self.index).get("tasks") or ()))

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """Provenance of the episode as a JSON-compatible dictionary; empty without provenance."""
        return self.reader.provenance(self.index).to_json() if self.ours else {}

    @functools.cached_property
    def time(self) -> Array:
        """True time of each frame in s, ``(T,)``."""
        if self.recorded:
            return np.array(self.reader.log_episode(self.index).time)
        if self.simulated:
            return self.states[:-1, 0]
        key = TRUE_TIME if TRUE_TIME in self.reader.info["features"] else "timestamp"
        return frame_times(self.reader.array(self.index, key).reshape(-1), self.reader.fps)

    @functools.cached_property
    def states(self) -> Array:
        """Simulator states ``(T+1, n)``; only for simulated episodes."""
        return self.reader.states(self.index)

    @property
    def units(self) -> UnitMap | None:
        """Unit map of the joint columns, or None."""
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
        """Yield commanded and measured joint values in SI; nothing if the joint units are unknown.

        Args:
            command: command type if the episode does not declare it: ``position`` or ``torque``.
        """
        map_ = self.units
        if map_ is None or not map_.known:
            return
        command = self.provenance.get("extra", {}).get("command", command)
        slides = [unit.unit in ("m", "cm", "mm") for unit in map_.joints]
        lengths, forces = (tuple(np.where(slides, *pair).tolist()) for pair in (("m", "rad"), ("N", "N·m")))
        for name, key in (("commanded", ACTION), ("measured", STATE)):
            if name == "commanded" and command == "none":
                continue
            torque = name == "commanded" and command == "torque"
            values = self.read_exact(key)[:, : len(map_.names)]
            values = values if torque and self.recorded else map_.to_si(values)  # a log's torques are SI
            units = forces if torque else lengths
            yield TimeSeries(name=name, time=self.time, values=values, columns=map_.names, units=units)

    def signals(self) -> Iterator[TimeSeries]:
        """Yield sensor signals with their own times in SI, under twinloop's names (``wrench/SITE``)."""
        found: dict[str, LoggedSignal] = {}
        if self.recorded:
            found = read_stored_signals(self.reader, self.index)
        elif self.simulated:
            found = read_generated_signals(self.reader, self.index)
        for name, signal in found.items():
            units = column_units(name, signal)
            yield TimeSeries(name=name, time=signal.time, values=signal.values, columns=signal.columns, units=units)

    def rows(self, table: str, columns: Sequence[str]) -> pa.Table | None:
        """Return columns of the episode's rows of a side table, or None if there is no such table."""
        if not self.ours or table not in self.reader.side_tables:
            return None
        return self.reader.side_rows(table, self.index, columns)

    def events(self) -> list[StreamEvent]:
        """Return events of the dataset: tasks, invalid state, and each change of ``next.success``."""
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
        """Return the location of a camera's images in a video file, or None for images in a table."""
        key = PICTURES + camera
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
        """Return actions or states, for recorded episodes with the unrounded values of the log."""
        if not self.recorded:
            return self.reader.array(self.index, key)
        log = self.reader.log_episode(self.index)
        return np.array(log.action if key == ACTION else log.state)


def open_reader(source: Path) -> DatasetReader:
    """Open a LeRobot v3.0 folder.

    Raises:
        InputError: it has version 2; the message explains how to convert it.
        DatasetError: it is not a dataset.
    """
    info = source / INFO
    if info.is_file() and str(read_json(info).get("codebase_version", "")).startswith("v2"):
        raise InputError(
            f"{source} is a LeRobot v2 folder. Make it v3.0 first: twinloop export lerobot {source} --output NEW."
        )
    return DatasetReader(source)


def images_by_episode(reader: DatasetReader, camera: str) -> dict[int, EpisodeImages]:
    """Return the image readers of a camera by ``episode_index``."""
    return {int(row.name.rpartition(" ")[2]): row for row in open_images(reader.path, camera).episodes}


def camera_names(reader: DatasetReader) -> list[str]:
    """Return the names of a dataset's cameras, stored as videos or in tables."""
    features = reader.info["features"]
    named = {key: entry["dtype"] for key, entry in features.items() if key.startswith(PICTURES)}
    return [key.removeprefix(PICTURES) for key, dtype in named.items() if dtype in ("video", "image")]


def select_cameras(reader: DatasetReader, words: str | None) -> list[str]:
    """Return the cameras that a setting selects: all by default, ``none``, or names separated by commas.

    Raises:
        InputError: the dataset has no cameras.
        UnknownNameError: there is no camera of that name.
    """
    present = camera_names(reader)
    if words is None or words == "all":
        return present
    if words == "none":
        return []
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    if wanted and not present:
        raise InputError(f"{reader.path} has no images, so none from {', '.join(wanted)}. Leave cameras out.")
    for name in wanted:
        if name not in present:
            raise UnknownNameError("camera", name, present, where=str(reader.path))
    return wanted


def require_absent(output: Path) -> None:
    """Check that an output does not exist and is not inside a dataset's folder.

    Raises:
        InputError: it exists or is inside a dataset.
    """
    if output.exists():
        raise InputError(f"{output} exists. Nothing is written over: choose another output.")
    for above in output.resolve().parents:
        if (above / INFO).is_file():
            raise InputError(f"{output} lies inside the dataset {above}. Choose an output outside it.")


def column_names(reader: DatasetReader, key: str, width: int) -> tuple[str, ...]:
    """Return a feature's column names without LeRobot's ``.pos``; column numbers if the metadata has no names."""
    names = [name.removesuffix(".pos") for name in reader.feature_names(key)]
    if len(set(names)) == width:
        return tuple(names)
    return (key.rpartition(".")[2],) if width == 1 else tuple(str(column) for column in range(width))


def feature_units(reader: DatasetReader, key: str, width: int) -> tuple[str, ...]:
    """Return the unit of each column of a feature, "" if unknown."""
    known: list[str] = []
    if key in (ACTION, STATE) and reader.units is not None:
        known = [unit.unit for unit in reader.units.joints]
    elif reader.ours:
        known = next((list(reading.units) for reading in reader.spec.readings if reading.key == key), [])
    return tuple((known + [""] * width)[:width])


STREAM_SETTINGS = {
    "cameras": "camera names separated by commas, all (default) or none",
    "pictures": "format of images: video (default, packets copied if possible) or jpeg",
}
_PICTURES = ("video", "jpeg")


@dataclass(frozen=True, kw_only=True)
class ExportSelection:
    """Content of an export: dataset, cameras, whether video packets are copied, and data of the simulator."""

    reader: DatasetReader
    cameras: list[str]
    copied: bool
    truth: GroundTruth


def read_selection(reader: DatasetReader, options: ExportOptions, truth: GroundTruth, *, name: str) -> ExportSelection:
    """Parse the settings ``pictures`` and ``cameras`` of an export.

    Args:
        name: name of the format, for messages.

    Raises:
        UnknownNameError: no such camera or image format.
    """
    pictures = options.settings.get("pictures", _PICTURES[0])
    if pictures not in _PICTURES:
        raise UnknownNameError("kind of pictures", pictures, _PICTURES, where=f"the format {name}")
    cameras = select_cameras(reader, options.settings.get("cameras"))
    return ExportSelection(reader=reader, cameras=cameras, copied=pictures == "video", truth=truth)
