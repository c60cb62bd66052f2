"""What cannot be read of a dataset, as far as the footers of its tables and the boxes of its videos show it.

No frame is read. What only the frames show is found by `twinloop curate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.core.errors import DatasetError
from twinloop.dataset import layout
from twinloop.dataset.parquet import open_parquet, read_table, require_columns
from twinloop.dataset.video import open_video

_NO_NUMBERS = ("video", "image", "string")  # dtypes of features
_HEAD, _LARGE = 8, 16  # bytes of an MP4 box before its content, and of one whose size takes 64 bits


def unreadable_files(folder: Path, info: Mapping[str, Any], tables: Sequence[str]) -> list[str]:
    """Return a sentence for each file of some episodes, and each column of it, that cannot be read.

    Args:
        folder: of a v3.0 dataset.
        info: its ``info.json``.
        tables: files of its episode table, by their path in the folder; the files that these name are looked at.
    """
    found = list[str]()
    for name in tables:
        with open_parquet(folder / name) as file:
            present = file.schema_arrow.names
        found += _data(folder, info, folder / name)
        keys = [key for key, entry in info["features"].items() if entry["dtype"] == "video"]
        for key in keys:
            columns = [f"videos/{key}/chunk_index", f"videos/{key}/file_index"]
            try:
                require_columns(columns, present, where=str(folder / name))
                found += _videos(folder, info, key, folder / name)
            except DatasetError as error:
                found.append(str(error))
    return list(dict.fromkeys(found))


def _frames_by_file(table: Path, columns: Sequence[str]) -> Counter[tuple[int, int]]:
    """Return how many frames the episode table places in each file, by chunk and file."""
    rows = read_table(table, ["length", *columns])
    frames = Counter[tuple[int, int]]()
    for length, chunk, file in zip(*(rows[name].to_pylist() for name in ("length", *columns)), strict=True):
        if chunk is not None and file is not None:
            frames[chunk, file] += length or 0
    return frames


def _data(folder: Path, info: Mapping[str, Any], table: Path) -> Iterator[str]:
    features = {key: entry for key, entry in info["features"].items() if entry["dtype"] not in _NO_NUMBERS}
    for (chunk, number), frames in _frames_by_file(table, ("data/chunk_index", "data/file_index")).items():
        try:
            path = layout.inside(folder, info["data_path"], {"chunk_index": chunk, "file_index": number})
            with open_parquet(path) as file:
                yield from (f"{path} {what}." for what in _columns(file, features, frames))
        except DatasetError as error:
            yield str(error)


def _columns(file: pq.ParquetFile, features: Mapping[str, Any], frames: int) -> Iterator[str]:
    meta, schema = file.metadata, file.schema_arrow
    if meta.num_rows < frames:
        yield f"has {meta.num_rows} rows; the episode table asks for {frames}"
    for key, entry in features.items():
        if key not in schema.names:
            yield f"has no column {key}, which {layout.INFO} names"
            continue
        kind = schema.field(key).type
        while pa.types.is_nested(kind) and kind.num_fields == 1:
            kind = kind.field(0).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            yield f"holds {kind} in {key}, not numbers"
            continue
        empty, values = _counts(meta, key)
        wanted = meta.num_rows * int(np.prod(entry["shape"]))
        if empty:
            yield f"has {empty} empty values in {key}"
        elif values != wanted:
            yield f"has {values} values in {key}; {layout.INFO} asks for {wanted}"


def _counts(meta: pq.FileMetaData, key: str) -> tuple[int, int]:
    """Return the empty values and all values of a column."""
    empty = values = 0
    for group in range(meta.num_row_groups):
        for place in range(meta.num_columns):
            column = meta.row_group(group).column(place)
            if column.path_in_schema == key or column.path_in_schema.startswith(f"{key}.list."):
                values += column.num_values
                statistics = column.statistics
                empty += (statistics.null_count or 0) if statistics is not None and statistics.has_null_count else 0
    return empty, values


def _videos(folder: Path, info: Mapping[str, Any], key: str, table: Path) -> Iterator[str]:
    places = _frames_by_file(table, (f"videos/{key}/chunk_index", f"videos/{key}/file_index"))
    for (chunk, number), frames in places.items():
        values = {"chunk_index": chunk, "file_index": number, "video_key": key}
        try:
            path = layout.inside(folder, info["video_path"], values)
            _require_whole(path)
            _require_length(path, frames)
        except DatasetError as error:
            yield str(error)


def _require_whole(path: Path) -> None:
    """Refuse an MP4 file that is missing, ends within a box, or has no index."""
    if not path.is_file():
        raise DatasetError(f"{path} is missing: the dataset's metadata names it. Restore the file.")
    size, at, kinds = path.stat().st_size, 0, list[bytes]()
    with path.open("rb") as file:
        while at + _HEAD <= size:
            file.seek(at)
            head = file.read(_LARGE)
            length, kind = int.from_bytes(head[:4], "big"), head[4:8]
            length = int.from_bytes(head[8:16], "big") if length == 1 else length or size - at
            if not kinds and kind != b"ftyp":
                return  # of another format
            kinds.append(kind)
            if length < _HEAD or at + length > size:
                name = kind.decode("ascii", "replace")
                raise DatasetError(f"{path} is cut off: its box {name} has {length} bytes, and {size - at} are there.")
            at += length
    missing = [name for name, kind in (("index", b"moov"), ("content", b"mdat")) if kind not in kinds]
    if missing:
        raise DatasetError(f"{path} is cut off or empty: it has {size} bytes and no {missing[0]} of frames.")


def _require_length(path: Path, frames: int) -> None:
    import av

    try:
        with open_video(path) as container:
            found = container.streams.video[0].frames
    except (av.error.FFmpegError, IndexError) as error:
        raise DatasetError(f"{path} cannot be read as a video ({error}). Write it again or restore it.") from error
    if found and found < frames:
        raise DatasetError(f"{path} has {found} frames; the episode table asks for {frames}.")
