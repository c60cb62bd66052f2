"""Read a LeRobot folder of version 2 or 3 for an export: all columns of its tables, and its videos as clips."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.documents import read_json, read_json_lines
from twinloop.core.errors import DatasetError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import read_table
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.media.video import decode
from twinloop.dataset.media.video_copy import PacketReader
from twinloop.dataset.spec import INDEX_FEATURES

_MOST_TASKS = 1_000_000  # our choice; a larger index in a malicious file would fill the memory
_TOLERANCE = 0.25  # of a frame's period, as `DatasetReader.images`
_PLACES = ("episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index")
_PREFIXES = ("stats/", "data/", "videos/", "meta/episodes/")
EPISODE_FACTS = "twinloop/episodes.jsonl"  # episode data of twinloop in a v2.1 folder that LeRobot's files do not have


@dataclass(frozen=True, kw_only=True)
class VideoClip:
    """Images of one episode in a video file: ``frames`` images from ``start_s`` on, ``fps`` per second."""

    path: Path
    start_s: float
    frames: int
    fps: float

    def decode_frames(self, frames: Sequence[int]) -> NDArray[np.uint8]:
        """Decode the given frames, in ascending order, as ``(n, height, width, 3)``."""
        times = [self.start_s + frame / self.fps for frame in frames]
        return decode(self.path, times, tolerance_s=_TOLERANCE / self.fps)


class ExportSource(Protocol):
    """A LeRobot folder, open for reading; episodes are numbered as in the folder."""

    path: Path
    info: dict[str, Any]
    tasks: list[str]

    @property
    def episodes(self) -> Sequence[int]:
        """Episodes whose files exist."""
        ...

    @property
    def absent(self) -> str:
        """Description of missing files; empty if the folder is complete."""
        ...

    def length(self, episode: int) -> int:
        """Return the number of frames of an episode."""
        ...

    def frames(self, episode: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return columns of an episode's table, by default all."""
        ...

    def clip(self, episode: int, key: str) -> VideoClip:
        """Return the location of an episode's images."""
        ...

    def read_extra_columns(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield further data of each episode, such as its provenance, by column of v3.0's episode table."""
        ...


def open_source(path: Path | str, *, pictures: bool = True) -> SourceV3 | SourceV21:
    """Open a LeRobot folder of version 2 or 3; its videos are ignored if ``pictures`` is false.

    Raises:
        DatasetError: it is not a LeRobot folder of these versions, or it is damaged.
    """
    path = Path(path)
    info = path / layout.INFO
    version = str(read_json(info).get("codebase_version", "")) if info.is_file() else ""
    if version.startswith("v2"):
        return SourceV21(path, pictures=pictures)
    return SourceV3(path, pictures=pictures)


class _Folder:
    """Properties that both versions share."""

    path: Path
    info: dict[str, Any]
    tasks: list[str]

    @property
    def fps(self) -> float:
        """Frames per second."""
        return float(self.info["fps"])

    @property
    def features(self) -> dict[str, Any]:
        """The features of ``info.json``."""
        return self.info["features"]

    @property
    def video_keys(self) -> list[str]:
        """Keys of features that are videos."""
        return [key for key, feature in self.features.items() if feature["dtype"] == "video"]

    @property
    def image_keys(self) -> list[str]:
        """Keys of features that are images in the table."""
        return [key for key, feature in self.features.items() if feature["dtype"] == "image"]

    def numeric_keys(self) -> list[str]:
        """Return the keys of numeric features; the index features come last."""
        own = [
            key
            for key, feature in self.features.items()
            if feature["dtype"] not in ("video", "image", "string", "language") and key not in INDEX_FEATURES
        ]
        return [*own, *INDEX_FEATURES]


class SourceV3(_Folder):
    """A LeRobot v3.0 folder as an `ExportSource`.

    Raises:
        DatasetError: it is not a v3.0 folder, or it is damaged.
    """

    def __init__(self, path: Path, *, pictures: bool = True) -> None:
        self.path, self.reader = path, DatasetReader(path)
        check_info(self.reader.info, where=path / layout.INFO)
        self.info = self.reader.info if pictures else _remove_videos(self.reader.info)
        self.tasks, self.absent = read_tasks(path / layout.TASKS), ""

    @property
    def episodes(self) -> Sequence[int]:
        """All episodes."""
        return range(len(self.reader))

    def length(self, episode: int) -> int:
        """Return the number of frames of an episode."""
        return int(self.reader.lengths[episode])

    def frames(self, episode: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return columns of an episode's table, by default all."""
        return self.reader.frames_table(episode, columns)

    def clip(self, episode: int, key: str) -> VideoClip:
        """Return the episode's part of a video file."""
        row = self.reader.row(episode)
        values = {name: row[f"videos/{key}/{name}"] for name in ("chunk_index", "file_index")}
        path = layout.resolve_inside(self.path, self.info["video_path"], {**values, "video_key": key})
        return VideoClip(path=path, start_s=row[f"videos/{key}/from_timestamp"], frames=row["length"], fps=self.fps)

    def read_extra_columns(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each episode's other columns of the episode table, such as its provenance."""
        for path in sorted((self.path / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
            table = read_table(path)
            own = [n for n in table.column_names if n not in _PLACES and not n.startswith(_PREFIXES)]
            index = table["episode_index"].to_pylist()
            yield from zip(index, table.select(own).to_pylist() if own else [{}] * len(index), strict=True)


class SourceV21(_Folder):
    """A LeRobot v2.0 or v2.1 folder as an `ExportSource`; it may be incomplete.

    Raises:
        DatasetError: its metadata is damaged, or all files are missing.
    """

    def __init__(self, path: Path, *, pictures: bool = True) -> None:
        self.path, self.info = path, read_json(path / layout.INFO)
        layout_keys = ("features", "fps", "data_path")
        if lacking := [key for key in layout_keys if key not in self.info]:
            raise DatasetError(f"{path / layout.INFO} lacks {', '.join(lacking)}. Restore the file.")
        check_info(self.info, where=path / layout.INFO)
        self.info = self.info if pictures else _remove_videos(self.info)
        rows = _json_lines(path / "meta" / "tasks.jsonl")
        tasks_file = path / "meta" / "tasks.jsonl"
        with layout.wrap_parse_errors(str(tasks_file)):
            self.tasks = _list_tasks({int(row["task_index"]): str(row["task"]) for row in rows}, tasks_file)
        described = _json_lines(path / "meta" / "episodes.jsonl")
        with layout.wrap_parse_errors(str(path / "meta" / "episodes.jsonl")):
            self._rows = {int(row["episode_index"]): row for row in described}
        self._present, self.absent = self._find_complete_episodes(list(self._rows))
        if not self._present:
            raise DatasetError(
                f"{path} describes {len(described)} episodes and holds none of them whole: {self.absent}. "
                "Copy the missing files."
            )

    @property
    def episodes(self) -> Sequence[int]:
        """Episodes whose table and videos exist."""
        return self._present

    def length(self, episode: int) -> int:
        """Return the number of rows in an episode's table."""
        return self._count_frames(episode)

    def frames(self, episode: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return columns of an episode's file, by default all."""
        return read_table(self._file(episode, "data_path"), columns)

    def clip(self, episode: int, key: str) -> VideoClip:
        """Return the episode's video file as one clip."""
        path = self._file(episode, "video_path", key)
        reader = PacketReader(path)
        begin = float((reader.stream.start_time or 0) * reader.stream.time_base)
        reader.close()
        return VideoClip(path=path, start_s=begin, frames=self.length(episode), fps=self.fps)

    def read_extra_columns(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each episode's other keys of ``episodes.jsonl``, and the data that twinloop's export added."""
        beside = self.path / EPISODE_FACTS
        told = {int(row.pop("episode_index")): row for row in (_json_lines(beside) if beside.is_file() else [])}
        for episode, row in self._rows.items():
            own = {key: value for key, value in row.items() if key not in ("episode_index", "tasks", "length")}
            yield episode, {**own, **told.get(episode, {})}

    @functools.cached_property
    def _count_frames(self) -> Any:
        @functools.cache
        def length(episode: int) -> int:
            return read_table(self._file(episode, "data_path"), ["frame_index"]).num_rows

        return length

    def _file(self, episode: int, template: str, key: str = "") -> Path:
        size = int(self.info.get("chunks_size", layout.FILES_PER_CHUNK))
        values = {"episode_chunk": episode // size, "episode_index": episode, "video_key": key}
        return layout.resolve_inside(self.path, self.info[template], values)

    def _find_complete_episodes(self, described: Sequence[int]) -> tuple[list[int], str]:
        without_table = [n for n in described if not self._file(n, "data_path").is_file()]
        rest = [n for n in described if n not in set(without_table)]
        blind = [n for n in rest if not all(self._file(n, "video_path", key).is_file() for key in self.video_keys)]
        words = []
        if without_table:
            words.append(f"{len(without_table)} of {len(described)} episodes have no table")
        if blind:
            words.append(f"{len(blind)} have a table and lack a video")
        return [n for n in rest if n not in set(blind)], ", ".join(words)


def check_info(info: Mapping[str, Any], *, where: Path) -> None:
    """Check rate, chunk size, shapes and feature names in ``info.json``; a feature name must not be a path.

    Raises:
        DatasetError: a value is invalid; names the key.
    """
    rate, chunk = info.get("fps"), info.get("chunks_size", layout.FILES_PER_CHUNK)
    if not isinstance(rate, int | float) or not 0 < rate < float("inf"):
        raise DatasetError(f"{where}: fps is {rate!r}, and frames have no times without a positive rate. Correct it.")
    if not isinstance(chunk, int) or chunk < 1:
        raise DatasetError(f"{where}: chunks_size is {chunk!r}; a chunk has at least one file. Correct it.")
    features = info.get("features")
    if not isinstance(features, Mapping):
        raise DatasetError(f"{where} has no table of features. Restore the file.")
    for key, feature in features.items():
        if not isinstance(feature, Mapping) or "dtype" not in feature:
            raise DatasetError(f"{where}: the feature {key} has no dtype. Restore the file.")
        shape = feature.get("shape") or [1]
        if not isinstance(shape, list | tuple) or not all(isinstance(size, int) and size > 0 for size in shape):
            raise DatasetError(f"{where}: the feature {key} has the shape {shape!r}, which is none. Correct it.")
        if "/" in key or "\\" in key or key.startswith("."):
            raise DatasetError(
                f"{where}: {key!r} cannot name a feature, LeRobot allows no '/' there, and it would lead out of the "
                "folder. Rename it."
            )
    if missing := [key for key in INDEX_FEATURES if key not in features]:
        raise DatasetError(f"{where} has no feature {', '.join(missing)}, which every LeRobot dataset has. Restore it.")
    if any(feature["dtype"] == "video" for feature in features.values()) and not info.get("video_path"):
        raise DatasetError(f"{where} has videos but no video_path. Restore it.")


def read_tasks(path: Path) -> list[str]:
    """Return task texts by index from ``tasks.parquet``, for any name of its index column.

    Raises:
        DatasetError: missing or damaged, or indices with gaps.
    """
    table = read_table(path, None)
    texts = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or not texts:
        raise DatasetError(f"{path} has the columns {', '.join(table.column_names)}; expected task_index and the text.")
    text = next((name for name in ("__index_level_0__", "task") if name in texts), texts[0])
    return _list_tasks(dict(zip(table["task_index"].to_pylist(), map(str, table[text].to_pylist()), strict=True)), path)


def _remove_videos(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``info.json`` without the video features."""
    kept = {key: feature for key, feature in info["features"].items() if feature["dtype"] != "video"}
    return {**info, "features": kept, "video_path": None}


def _list_tasks(tasks: Mapping[int, str], where: Path) -> list[str]:
    """Return the task texts in order of their index; a missing index gets an empty text."""
    if tasks and not (min(tasks) >= 0 and max(tasks) < _MOST_TASKS):
        raise DatasetError(
            f"{where} numbers tasks from {min(tasks)} to {max(tasks)}; they count from 0 and below {_MOST_TASKS}. "
            "Renumber them."
        )
    return [tasks.get(index, "") for index in range(max(tasks, default=-1) + 1)]


def _json_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise DatasetError(f"{path} is missing: a LeRobot v2 folder has it. Restore the file.")
    return [row for _, row in read_json_lines(path)]
