"""Read a source folder of an edit: complete rows of the episode table, frames, tasks and locations of videos."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError, InputError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.content_ids import compute_content_ids
from twinloop.dataset.lerobot.parquet import open_parquet, read_table, require_columns
from twinloop.dataset.lerobot.reader import DatasetReader

_EXACT = (layout.STATES_PATH, layout.LOGS_PATH)
_TASK_COLUMNS = ("__index_level_0__", "task")  # name of the index column in pandas: unnamed, or named


class EditSource:
    """Source folder of an edit, as a LeRobot v3.0 dataset; data are read at first access.

    Raises:
        DatasetError: If the folder is not a LeRobot v3.0 dataset, or its metadata is inconsistent.
    """

    def __init__(self, path: Path | str) -> None:
        self.reader = DatasetReader(path)
        self.path, self.info = self.reader.path, self.reader.info
        self._frames = _FrameFiles()

    def __len__(self) -> int:
        return len(self.reader)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def features(self) -> dict[str, Any]:
        """Entry ``features`` of ``info.json``, limited to the features that `keep_features` keeps."""
        return self.info["features"]

    @property
    def excluded_features(self) -> list[str]:
        """Keys of the features that `keep_features` excluded."""
        return [key for key in self.reader.info["features"] if key not in self.features]

    def keep_features(self, names: Collection[str]) -> None:
        """Limit `features` to the given keys; affects this object only, no file."""
        features = {key: entry for key, entry in self.features.items() if key in names}
        self.info = {**self.info, "features": features}

    def feature_keys(self, dtype: str) -> list[str]:
        """Return the keys of the features with one ``dtype`` of LeRobot, such as ``video`` or ``image``."""
        return [key for key, entry in self.features.items() if entry.get("dtype") == dtype]

    @functools.cached_property
    def tasks(self) -> dict[int, str]:
        """Task texts by ``task_index``.

        Raises:
            DatasetError: If the file with the tasks is missing or damaged.
        """
        path = self.path / layout.TASKS
        table = read_table(path, ["task_index"])
        with open_parquet(path) as file:
            names = file.schema_arrow.names
        column = next((name for name in _TASK_COLUMNS if name in names), None)
        if column is None:
            raise DatasetError(f"{path} has no column {' or '.join(_TASK_COLUMNS)}. It has: {', '.join(names)}.")
        texts = read_table(path, [column])[column].to_pylist()
        return dict(zip(table["task_index"].to_pylist(), map(str, texts), strict=True))

    @functools.cached_property
    def columns(self) -> pa.Schema:
        """Arrow schema of the episode table, combined from all its files."""
        schemas = []
        for path in self._episode_files:
            with open_parquet(path) as file:
                schemas.append(file.schema_arrow.remove_metadata())
        return pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])

    def rows(self, indices: Sequence[int]) -> pa.Table:
        """Return rows of the episode table with all columns, statistics included, in the given order."""
        places = [self._row_places[index] for index in indices]
        tables, order = [], np.empty(len(places), dtype=np.int64)
        for file in sorted({file for file, _ in places}):
            here = [i for i, place in enumerate(places) if place[0] == file]
            order[here] = sum(map(len, tables)) + np.arange(len(here))
            tables.append(_read_whole_table(self._episode_files[file]).take([places[i][1] for i in here]))
        return pa.concat_tables(tables, promote_options="permissive").take(pa.array(order))

    def frames(self, index: int) -> pa.Table:
        """Return the frames of one episode with all columns.

        Raises:
            DatasetError: If the data file is missing or damaged, or if its rows belong to another episode.
        """
        file, start, length = int(self.data_files[index]), int(self._start_rows[index]), int(self.lengths[index])
        path = layout.resolve_inside(self.path, self.info["data_path"], layout.chunk_and_file(file))
        table = self._frames.read(path, start, start + length)
        require_columns(("episode_index", "index", "timestamp"), table.column_names, where=str(path))
        found = np.unique(table["episode_index"].to_numpy())
        if found.tolist() != [index]:
            raise DatasetError(
                f"{path}: rows {start} to {start + length} should be episode {index} and are {found.tolist()}. "
                "The episode table and the data files contradict each other. Export the dataset again."
            )
        return table

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the frames, from the data file of the first episode."""
        path = layout.resolve_inside(self.path, self.info["data_path"], layout.chunk_and_file(int(self.data_files[0])))
        with open_parquet(path) as file:
            return file.schema_arrow

    @functools.cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Number of frames of each episode, shape ``(number of episodes,)``."""
        return self.reader.lengths

    @functools.cached_property
    def data_files(self) -> NDArray[np.int64]:
        """Number of each episode's data file, counted over all chunks: chunk index × 1000 + file index.

        In twinloop's datasets, the files with the episode's states, recorded log and provenance have the same number.
        """
        return self._file_numbers("data")

    @functools.cached_property
    def positions(self) -> NDArray[np.int64]:
        """Position of each episode among the episodes in its data file, counted from 0."""
        order = np.argsort(self.data_files, kind="stable")
        ordered = self.data_files[order]
        first = np.searchsorted(ordered, ordered, side="left")
        result = np.empty(len(order), dtype=np.int64)
        result[order] = np.arange(len(order)) - first
        return result

    def video_files(self, key: str) -> NDArray[np.int64]:
        """Return the number of the video file of each episode, for the video feature ``key``."""
        return self._file_numbers(f"videos/{key}")

    def video_path(self, key: str, file: int) -> Path:
        """Return the path of video file number ``file`` of the video feature ``key``.

        Raises:
            DatasetError: If the path is outside the dataset folder.
        """
        values = {**layout.chunk_and_file(file), "video_key": key}
        return layout.resolve_inside(self.path, self.info["video_path"], values)

    def video_starts(self, key: str) -> NDArray[np.float64]:
        """Return the start time of each episode in its video file in s, for the video feature ``key``."""
        return self._column(f"videos/{key}/from_timestamp").astype(np.float64)

    def exact_templates(self, index: int) -> tuple[str, ...]:
        """Return the path templates of the files with unrounded data of an episode (simulator states or recorded log).

        An example is ``twinloop/states/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet``. The result is empty if
        the episode has no such file or if another program wrote it.
        """
        if not self.reader.written_by_twinloop or self.reader.is_appended(index):
            return ()
        block = int(self.data_files[index])
        return tuple(path for path in _EXACT if (self.path / layout.block_path(path, block)).is_file())

    def has_provenance(self, index: int) -> bool:
        """Return whether twinloop wrote the episode and therefore its provenance."""
        return self.reader.written_by_twinloop and not self.reader.is_appended(index)

    @functools.cached_property
    def ids(self) -> list[str]:
        """Stored id of each episode; an empty text if no id is stored."""
        names = self.columns.names
        return self.reader.episode_ids if "provenance/episode_id" in names else [""] * len(self)

    def episode_id(self, index: int) -> str:
        """Return the stored id of an episode. If no id is stored, return a hash of its content, as the catalog does."""
        return self.ids[index] or self._content_ids[index]

    @functools.cached_property
    def _content_ids(self) -> list[str]:
        return compute_content_ids(self.path, self.info, self._episode_table, "real")

    def column(self, name: str) -> list[Any]:
        """Return the values of one column of the episode table, ordered by ``episode_index``.

        Raises:
            InputError: If no such column exists.
        """
        if name not in self.columns.names:
            plain = [one for one in self.columns.names if not one.startswith(("stats/", "videos/", "data/", "meta/"))]
            raise InputError(f"{self.path} has no episode column {name}. It has: {', '.join(plain)}.")
        return self._episode_table[name].to_pylist()

    def close(self) -> None:
        """Close the open data file."""
        self._frames.close()

    @functools.cached_property
    def _episode_table(self) -> pa.Table:
        names = [name for name in self.columns.names if not name.startswith("stats/")]
        schema = pa.schema([self.columns.field(name) for name in names])
        tables = []
        for path in self._episode_files:
            with open_parquet(path) as file:
                present = [name for name in names if name in file.schema_arrow.names]
                tables.append(file.read(columns=present).replace_schema_metadata(None))
        table = pa.concat_tables([*tables, schema.empty_table()], promote_options="permissive")
        return table.sort_by("episode_index")

    def _column(self, name: str) -> NDArray[Any]:
        require_columns([name], self.columns.names, where=f"{self.path}: the episode table")
        return self._episode_table[name].to_numpy()

    def _file_numbers(self, series: str) -> NDArray[np.int64]:
        chunk, file = self._column(f"{series}/chunk_index"), self._column(f"{series}/file_index")
        return (chunk * layout.FILES_PER_CHUNK + file).astype(np.int64)

    @functools.cached_property
    def _start_rows(self) -> NDArray[np.int64]:
        """Row of the first frame of each episode within its data file."""
        begins = self._column("dataset_from_index").astype(np.int64)
        files, inverse = np.unique(self.data_files, return_inverse=True)
        first = np.full(len(files), np.iinfo(np.int64).max)
        np.minimum.at(first, inverse, begins)
        return begins - first[inverse]

    @functools.cached_property
    def _episode_files(self) -> list[Path]:
        return sorted((self.path / "meta" / "episodes").glob("chunk-*/file-*.parquet"))

    @functools.cached_property
    def _row_places(self) -> list[tuple[int, int]]:
        """For each episode, the number of its file of the episode table and the row in this file."""
        places: dict[int, tuple[int, int]] = {}
        for number, path in enumerate(self._episode_files):
            for row, index in enumerate(read_table(path, ["episode_index"])["episode_index"].to_pylist()):
                places[index] = (number, row)
        return [places[index] for index in range(len(places))]


@functools.lru_cache(maxsize=4)
def _read_cached_table(path: Path, changed: int) -> pa.Table:
    del changed
    return read_table(path).replace_schema_metadata(None)


def _read_whole_table(path: Path) -> pa.Table:
    return _read_cached_table(path, path.stat().st_mtime_ns)


class _FrameFiles:
    """Reader of frames that keeps the last data file open and its last row group in memory.

    In files converted from LeRobot v2.1, one row group contains all episodes. Reading it again for every episode would
    take quadratic time.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: pq.ParquetFile | None = None
        self._ends = np.empty(0, dtype=np.int64)
        self._group: tuple[int, pa.Table] | None = None

    def read(self, path: Path, start: int, stop: int) -> pa.Table:
        file = self._open_file(path)
        if not len(self._ends) or stop > self._ends[-1]:
            total = int(self._ends[-1]) if len(self._ends) else 0
            raise DatasetError(f"{path} has {total} rows; the episode table needs rows {start} to {stop}.")
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, stop, side="left"))
        offset = int(self._ends[first - 1]) if first else 0
        table = pa.concat_tables([self._read_row_group(file, group) for group in range(first, last + 1)])
        return table.slice(start - offset, stop - start)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._path, self._file, self._group = None, None, None

    def _open_file(self, path: Path) -> pq.ParquetFile:
        if self._file is not None and path == self._path:
            return self._file
        self.close()
        with open_parquet(path):
            pass  # raises an error that names a file that cannot be opened
        self._path, self._file = path, pq.ParquetFile(path)
        meta = self._file.metadata
        self._ends = np.cumsum([meta.row_group(i).num_rows for i in range(meta.num_row_groups)]).astype(np.int64)
        return self._file

    def _read_row_group(self, file: pq.ParquetFile, group: int) -> pa.Table:
        if self._group is None or self._group[0] != group:
            try:
                self._group = (group, file.read_row_group(group))
            except (pa.ArrowException, OSError) as error:
                raise DatasetError(
                    f"{self._path} is damaged (row group {group}; {str(error).splitlines()[0]}). Restore the file."
                ) from error
        return self._group[1]
