"""Read a LeRobot folder of version 2 or 3 for an export: all table columns, and the video clip of each episode."""

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
    """Images of one episode in a video file.

    Attributes:
        path: The video file.
        start_s: Time of the first image in the file, in s.
        frames: Number of images.
        fps: Frame rate in Hz.
    """

    path: Path
    start_s: float
    frames: int
    fps: float

    def decode_frames(self, frames: Sequence[int]) -> NDArray[np.uint8]:
        """Decode the images of n given frames (ascending), shape ``(n, height, width, 3)``."""
        times = [self.start_s + frame / self.fps for frame in frames]
        return decode(self.path, times, tolerance_s=_TOLERANCE / self.fps)


class ExportSource(Protocol):
    """A LeRobot folder, open for reading; episodes have the numbers that they have in the folder.

    Attributes:
        path: The folder.
        info: Content of ``info.json``.
        tasks: Task texts by task index.
    """

    path: Path
    info: dict[str, Any]
    tasks: list[str]

    @property
    def episodes(self) -> Sequence[int]:
        """Numbers of the episodes whose files exist."""
        ...

    @property
    def missing_files(self) -> str:
        """Description of missing files; empty if the folder is complete."""
        ...

    def length(self, episode: int) -> int:
        """Return the number of frames of an episode."""
        ...

    def frames(self, episode: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return columns of an episode's frames; all columns by default."""
        ...

    def clip(self, episode: int, key: str) -> VideoClip:
        """Return the location of an episode's images in a video file; ``key`` is the feature key of the camera."""
        ...

    def read_extra_columns(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each episode and its additional data, such as provenance.

        The data have the column names of LeRobot v3.0's episode table.
        """
        ...


def open_source(path: Path | str, *, images: bool = True) -> SourceV3 | SourceV21:
    """Open a LeRobot folder of version 2 or 3; if ``images`` is false, its videos are ignored.

    Raises:
        DatasetError: If the folder has another format or version, or is damaged.
    """
    path = Path(path)
    info = path / layout.INFO
    version = str(read_json(info).get("codebase_version", "")) if info.is_file() else ""
    if version.startswith("v2"):
        return SourceV21(path, images=images)
    return SourceV3(path, images=images)


class _Folder:
    """Properties that LeRobot folders of versions 2 and 3 share.

    Attributes:
        path: The folder.
        info: Content of ``info.json``.
        tasks: Task texts by task index.
    """

    path: Path
    info: dict[str, Any]
    tasks: list[str]

    @property
    def fps(self) -> float:
        """Frames per second."""
        return float(self.info["fps"])

    @property
    def features(self) -> dict[str, Any]:
        """Entry ``features`` of ``info.json``."""
        return self.info["features"]

    @property
    def video_keys(self) -> list[str]:
        """Keys of features that are videos."""
        return [key for key, feature in self.features.items() if feature["dtype"] == "video"]

    @property
    def image_keys(self) -> list[str]:
        """Keys of features that are images in the data table."""
        return [key for key, feature in self.features.items() if feature["dtype"] == "image"]

    def numeric_keys(self) -> list[str]:
        """Return the keys of numeric features; indices and timestamps come last."""
        own = [
            key
            for key, feature in self.features.items()
            if feature["dtype"] not in ("video", "image", "string", "language") and key not in INDEX_FEATURES
        ]
        return [*own, *INDEX_FEATURES]


class SourceV3(_Folder):
    """A LeRobot v3.0 folder as an `ExportSource`; if ``images`` is false, its videos are ignored.

    Raises:
        DatasetError: If the folder has another format or version, or is damaged.
    """

    def __init__(self, path: Path, *, images: bool = True) -> None:
        self.path, self.reader = path, DatasetReader(path)
        check_info(self.reader.info, where=path / layout.INFO)
        self.info = self.reader.info if images else _remove_videos(self.reader.info)
        self.tasks, self.missing_files = read_tasks(path / layout.TASKS), ""

    @property
    def episodes(self) -> Sequence[int]:
        """Numbers of all episodes."""
        return range(len(self.reader))

    def length(self, episode: int) -> int:
        """Return the number of frames of an episode."""
        return int(self.reader.lengths[episode])

    def frames(self, episode: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return columns of an episode's frames; all columns by default."""
        return self.reader.frames_table(episode, columns)

    def clip(self, episode: int, key: str) -> VideoClip:
        """Return the location of an episode's images in a video file; ``key`` is the feature key of the camera."""
        row = self.reader.row(episode)
        values = {name: row[f"videos/{key}/{name}"] for name in ("chunk_index", "file_index")}
        path = layout.resolve_inside(self.path, self.info["video_path"], {**values, "video_key": key})
        return VideoClip(path=path, start_s=row[f"videos/{key}/from_timestamp"], frames=row["length"], fps=self.fps)

    def read_extra_columns(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each episode and its additional columns of the episode table, such as provenance."""
        for path in sorted((self.path / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
            table = read_table(path)
            own = [n for n in table.column_names if n not in _PLACES and not n.startswith(_PREFIXES)]
            index = table["episode_index"].to_pylist()
            yield from zip(index, table.select(own).to_pylist() if own else [{}] * len(index), strict=True)


class SourceV21(_Folder):
    """A LeRobot v2.0 or v2.1 folder as an `ExportSource`; episodes with missing files are excluded.

    If ``images`` is false, videos are ignored.

    Raises:
        DatasetError: If the metadata is damaged, or no episode is complete.
    """

    def __init__(self, path: Path, *, images: bool = True) -> None:
        self.path, self.info = path, read_json(path / layout.INFO)
        layout_keys = ("features", "fps", "data_path")
        if lacking := [key for key in layout_keys if key not in self.info]:
            raise DatasetError(f"{path / layout.INFO} lacks {', '.join(lacking)}. Restore the file.")
        check_info(self.info, where=path / layout.INFO)
        self.info = self.info if images else _remove_videos(self.info)
        rows = _json_lines(path / "meta" / "tasks.jsonl")
        tasks_file = path / "meta" / "tasks.jsonl"
        with layout.wrap_parse_errors(str(tasks_file)):
            self.tasks = _list_tasks({int(row["task_index"]): str(row["task"]) for row in rows}, tasks_file)
        described = _json_lines(path / "meta" / "episodes.jsonl")
        with layout.wrap_parse_errors(str(path / "meta" / "episodes.jsonl")):
            self._rows = {int(row["episode_index"]): row for row in described}
        self._present, self.missing_files = self._find_complete_episodes(list(self._rows))
        if not self._present:
            raise DatasetError(
                f"{path} describes {len(described)} episodes, but none of them is complete: {self.missing_files}. "
                "Copy the missing files."
            )

    @property
    def episodes(self) -> Sequence[int]:
        """Numbers of the episodes whose table and videos exist."""
        return self._present

    def length(self, episode: int) -> int:
        """Return the number of rows in an episode's table."""
        return self._count_frames(episode)

    def frames(self, episode: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return columns of an episode's frames; all columns by default."""
        return read_table(self._file(episode, "data_path"), columns)

    def clip(self, episode: int, key: str) -> VideoClip:
        """Return the episode's video file as one clip; ``key`` is the feature key of the camera."""
        path = self._file(episode, "video_path", key)
        reader = PacketReader(path)
        begin = float((reader.stream.start_time or 0) * reader.stream.time_base)
        reader.close()
        return VideoClip(path=path, start_s=begin, frames=self.length(episode), fps=self.fps)

    def read_extra_columns(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each episode and its additional data.

        These are further keys of ``episodes.jsonl``, and data that an export of twinloop added to the folder.
        """
        facts_file = self.path / EPISODE_FACTS
        facts = {
            int(row.pop("episode_index")): row for row in (_json_lines(facts_file) if facts_file.is_file() else [])
        }
        for episode, row in self._rows.items():
            own = {key: value for key, value in row.items() if key not in ("episode_index", "tasks", "length")}
            yield episode, {**own, **facts.get(episode, {})}

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
        without_video = [
            n for n in rest if not all(self._file(n, "video_path", key).is_file() for key in self.video_keys)
        ]
        reasons = []
        if without_table:
            reasons.append(f"{len(without_table)} of {len(described)} episodes have no table")
        if without_video:
            reasons.append(f"{len(without_video)} have a table and lack a video")
        return [n for n in rest if n not in set(without_video)], ", ".join(reasons)


def check_info(info: Mapping[str, Any], *, where: Path) -> None:
    """Check the content of ``info.json``: rate, chunk size, features with their shapes, and video path.

    A feature name must not be a path, so that no file outside the folder is read.

    Args:
        info: Content of the file.
        where: Path of the file, for error messages.

    Raises:
        DatasetError: If a value is invalid.
    """
    rate, chunk = info.get("fps"), info.get("chunks_size", layout.FILES_PER_CHUNK)
    if not isinstance(rate, int | float) or not 0 < rate < float("inf"):
        raise DatasetError(f"{where}: fps is {rate!r}; it must be a positive number. Correct it.")
    if not isinstance(chunk, int) or chunk < 1:
        raise DatasetError(f"{where}: chunks_size is {chunk!r}; it must be a positive integer. Correct it.")
    features = info.get("features")
    if not isinstance(features, Mapping):
        raise DatasetError(f"{where} has no table of features. Restore the file.")
    for key, feature in features.items():
        if not isinstance(feature, Mapping) or "dtype" not in feature:
            raise DatasetError(f"{where}: the feature {key} has no dtype. Restore the file.")
        shape = feature.get("shape") or [1]
        if not isinstance(shape, list | tuple) or not all(isinstance(size, int) and size > 0 for size in shape):
            raise DatasetError(
                f"{where}: the shape of the feature {key} is {shape!r}, not a list of positive integers. Correct it."
            )
        if "/" in key or "\\" in key or key.startswith("."):
            raise DatasetError(
                f"{where}: {key!r} cannot name a feature. LeRobot allows no '/' in names, and such a name could lead "
                "out of the folder. Rename it."
            )
    if missing := [key for key in INDEX_FEATURES if key not in features]:
        raise DatasetError(f"{where} has no feature {', '.join(missing)}, which every LeRobot dataset has. Restore it.")
    if any(feature["dtype"] == "video" for feature in features.values()) and not info.get("video_path"):
        raise DatasetError(f"{where} has videos but no video_path. Restore it.")


def read_tasks(path: Path) -> list[str]:
    """Return task texts by task index from ``tasks.parquet``, whose text column may have any name.

    Raises:
        DatasetError: If the file is missing or damaged, or a task index is out of range.
    """
    table = read_table(path, None)
    texts = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or not texts:
        raise DatasetError(f"{path} has the columns {', '.join(table.column_names)}; expected task_index and the text.")
    text = next((name for name in ("__index_level_0__", "task") if name in texts), texts[0])
    return _list_tasks(dict(zip(table["task_index"].to_pylist(), map(str, table[text].to_pylist()), strict=True)), path)


def _remove_videos(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``info.json`` excluding video features."""
    kept = {key: feature for key, feature in info["features"].items() if feature["dtype"] != "video"}
    return {**info, "features": kept, "video_path": None}


def _list_tasks(tasks: Mapping[int, str], where: Path) -> list[str]:
    """Return the task texts in order of their index; a missing index gets an empty text.

    Raises:
        DatasetError: If an index is negative or at least one million.
    """
    if tasks and not (min(tasks) >= 0 and max(tasks) < _MOST_TASKS):
        raise DatasetError(
            f"{where} numbers tasks from {min(tasks)} to {max(tasks)}; they must be from 0 to {_MOST_TASKS - 1}. "
            "Renumber them."
        )
    return [tasks.get(index, "") for index in range(max(tasks, default=-1) + 1)]


def _json_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise DatasetError(f"{path} is missing. Every LeRobot v2 folder has this file: restore it.")
    return [row for _, row in read_json_lines(path)]
