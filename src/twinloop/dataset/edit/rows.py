"""Compute the tables of an edited dataset: renumbered frames, and episode rows with ids, parents and transforms.

A transform is a recorded change of an episode's content, such as re-encoded images or a new task text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.core.files import dumps, sha256_bytes, sha256_json
from twinloop.core.records import Provenance, SimEpisode
from twinloop.dataset.edit.source import EditSource
from twinloop.dataset.lerobot.parquet import column_to_floats, open_parquet
from twinloop.dataset.lerobot.tables import content_hash


@dataclass(frozen=True, kw_only=True)
class SourceEpisode:
    """An episode of a source folder, with the changes that an edit makes to it.

    Attributes:
        source: The folder.
        index: ``episode_index`` in that folder.
        texts: New task text for each old text that changes.
        transforms: Changes of the content, in order (see `make_transform_entry`). If there are any, the result is a new
            episode with its own id.
    """

    source: EditSource
    index: int
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    transforms: tuple[Mapping[str, Any], ...] = ()

    @property
    def length(self) -> int:
        """Number of frames."""
        return int(self.source.lengths[self.index])

    @property
    def tasks(self) -> list[str]:
        """Task texts after the edit; each text occurs once."""
        found = self.source.reader.row(self.index).get("tasks") or []
        return list(dict.fromkeys(self.texts.get(text, text) for text in found))

    @property
    def where(self) -> str:
        """Index and folder of the episode as text, for error messages."""
        return f"episode {self.index} of {self.source}"


ID, PARENTS, TRANSFORMS = "provenance/episode_id", "provenance/parent_episode_ids", "provenance/transforms"
KEY = "transforms"  # in Provenance.extra
_NOTHING = np.empty((0, 0))


def make_transform_entry(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return one transform of an episode as stored in provenance: name, twinloop version, parameters and their hash."""
    plain = dict(parameters)
    return {
        "name": name,
        "version": version("twinloop"),
        "parameters": plain,
        "parameters_hash": sha256_json(plain),
    }


@dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """New metadata of a changed episode: its id, the id of its source episode (parent), and its changes (transforms).

    Attributes:
        columns: New values for columns of the episode table, which contain this metadata.
        provenance: New provenance, which contains the parent and the transforms, too; None if the source episode has
            none.
    """

    columns: Mapping[str, Any]
    provenance: Provenance | None


def derive_episode_record(
    item: SourceEpisode, record: Provenance | None, parent: str, frames: pa.Table
) -> EpisodeRecord:
    """Return the record of a changed episode, with a new id and the source episode as its parent.

    Args:
        item: Source episode with at least one transform.
        record: Provenance of the source episode, or None.
        parent: Id of the source episode.
        frames: Frames of the source episode.
    """
    new = [dict(one) for one in item.transforms]
    if record is None:
        name = sha256_bytes(parent.encode(), dumps(new).encode(), _content_bytes(frames))
        return EpisodeRecord(columns={ID: name, PARENTS: dumps([parent]), TRANSFORMS: dumps(new)}, provenance=None)
    done = [*record.extra.get(KEY, ()), *new]
    changed = replace(
        record,
        parents=(parent,),
        content_hash="",
        task=item.texts.get(record.task, record.task),
        extra={**record.extra, KEY: done},
    )
    changed = replace(changed, content_hash=content_hash(_build_sim_episode(item, changed, frames)))
    columns = {
        ID: changed.content_hash,
        PARENTS: dumps([parent]),
        TRANSFORMS: dumps(done),
        "provenance/task": changed.task,
    }
    return EpisodeRecord(columns=columns, provenance=changed)


def _content_bytes(frames: pa.Table) -> bytes:
    """Return actions and states of the frames as bytes; a hash of these bytes does not depend on frame indices."""
    names = [name for name in ("action", "observation.state") if name in frames.column_names]
    return b"".join(column_to_floats(frames[name], where=name).astype("<f8").tobytes() for name in names)


def _build_sim_episode(item: SourceEpisode, record: Provenance, frames: pa.Table) -> SimEpisode:
    """Return the stored episode as a `SimEpisode`, from which its content hash is computed."""
    reader = item.source.reader
    simulated = any("states" in template for template in item.source.exact_templates(item.index))

    def column(name: str) -> np.ndarray:
        return column_to_floats(frames[name], where=f"{item.where}: {name}")

    return SimEpisode(
        number=int(reader.numbers[item.index]),
        commands=reader.commands(item.index) if simulated else _NOTHING,
        states=reader.states(item.index) if simulated else _NOTHING,
        action=column("action"),
        observation=column("observation.state"),
        next_success=np.zeros(len(frames), dtype=np.bool_),
        provenance=record,
        readings={reading.key: column(reading.key) for reading in reader.spec.readings},
    )


_MADE = frozenset({"episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index"})
_MADE_SERIES = ("data/", "videos/", "meta/episodes/")


def is_recomputed(name: str, numeric: Sequence[str]) -> bool:
    """Return whether an edit always computes a column of the episode table again instead of copying it.

    Args:
        name: Name of the column.
        numeric: Keys of the numeric features, whose statistics are computed again.
    """
    if name in _MADE or name.startswith(_MADE_SERIES):
        return True
    return name.startswith("stats/") and name.removeprefix("stats/").rpartition("/")[0] in numeric


@dataclass(frozen=True, kw_only=True)
class BlockRow:
    """Content of one row of the episode table.

    Attributes:
        item: The source episode.
        computed: Computed values (indices, tasks, file numbers), by column name.
        statistics: Statistics of the numeric features, as arrays of one element, by column name.
        replacements: Values that replace those of the source, by column name.
    """

    item: SourceEpisode
    computed: Mapping[str, Any]
    statistics: Mapping[str, pa.Array]
    replacements: Mapping[str, Any]


def build_episode_rows(rows: Sequence[BlockRow], carried: pa.Schema) -> pa.Table:
    """Build the episode table of one block (episodes with the same file number).

    Args:
        rows: Content of the rows, in order.
        carried: Schema of the columns that are copied from the sources.
    """
    after = [name for name in rows[0].computed if name.startswith("meta/episodes/")]
    columns: dict[str, Any] = {}
    for name in rows[0].computed:
        if name not in after:
            columns[name] = _cells(name, [row.computed[name] for row in rows])
    for name in rows[0].statistics:
        columns[name] = pa.concat_arrays([row.statistics[name] for row in rows])
    taken = _read_carried_columns([row.item for row in rows], carried)
    for kept in carried:
        values = taken[kept.name]
        if any(kept.name in row.replacements for row in rows):
            old = values.to_pylist()
            new = [row.replacements.get(kept.name, cell) for row, cell in zip(rows, old, strict=True)]
            values = pa.chunked_array([pa.array(new, kept.type)])
        columns[kept.name] = values
    for name in after:
        columns[name] = _cells(name, [row.computed[name] for row in rows])
    return pa.table(columns)


def _cells(name: str, values: Sequence[Any]) -> pa.Array:
    kind = pa.list_(pa.string()) if name == "tasks" else pa.float64() if name.endswith("_timestamp") else pa.int64()
    return pa.array(values, kind)


def _read_carried_columns(items: Sequence[SourceEpisode], schema: pa.Schema) -> pa.Table:
    """Read the columns of ``schema`` from the sources; values are null if a source does not have the column."""
    parts, at = [], 0
    while at < len(items):
        source = items[at].source
        run = [item.index for item in items[at:] if item.source is source]
        stop = next((i for i in range(at, len(items)) if items[i].source is not source), len(items))
        table = source.rows(run[: stop - at])
        columns: list[Any] = [
            table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
            for field in schema
        ]
        parts.append(pa.Table.from_arrays(columns, schema=schema))
        at = stop
    return pa.concat_tables(parts)


_NUMBERS = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool")
_CELLS_AT_ONCE = 1 << 22  # numbers in memory while quantiles are computed: 16 MB of float32; our choice


def numeric_features(features: Mapping[str, Any]) -> dict[str, int]:
    """Return the keys of the numeric features, each with its number of values per frame."""
    return {
        key: int(np.prod(entry.get("shape") or [1]))
        for key, entry in features.items()
        if entry.get("dtype") in _NUMBERS
    }


def column_slices(widths: Mapping[str, int]) -> dict[str, slice]:
    """Return the columns of each feature in a matrix that contains all features side by side.

    Args:
        widths: Number of columns of each feature, in order.
    """
    ends = np.cumsum(list(widths.values()))
    return {key: slice(int(end - width), int(end)) for (key, width), end in zip(widths.items(), ends, strict=True)}


def renumber_frames(
    table: pa.Table, schema: pa.Schema, *, index: int, start: int, tasks: NDArray[np.int64], where: str
) -> pa.Table:
    """Return one episode's frames with the indices and column types of the edited dataset.

    Args:
        table: Frames of the source episode.
        schema: Columns of the edited dataset.
        index: New ``episode_index``.
        start: New ``index`` of the first frame.
        tasks: New ``task_index`` of each frame, shape ``(T,)``.
        where: Description of the episode, for error messages.

    Raises:
        DatasetError: If a column cannot be converted to its new type.
    """
    length = len(table)
    new = {
        "episode_index": np.full(length, index, dtype=np.int64),
        "index": np.arange(start, start + length, dtype=np.int64),
        "task_index": tasks,
    }
    columns = []
    for kept in schema:
        column = pa.chunked_array([new[kept.name]]) if kept.name in new else table[kept.name]
        try:
            columns.append(column if column.type == kept.type else column.cast(kept.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DatasetError(
                f"{where}: {kept.name} is {column.type} and cannot become {kept.type} ({error})."
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


def to_feature_arrays(table: pa.Table, widths: Mapping[str, int], *, where: str) -> dict[str, NDArray[Any]]:
    """Return features of T frames as arrays of shape ``(T, width)``, with their stored types.

    Args:
        table: Frames.
        widths: Keys of the features to return, each with its number of values per frame.
        where: Description of the frames, for error messages.

    Raises:
        DatasetError: If a cell is empty, a value is not finite, or the number of values does not match ``widths``.
    """
    found: dict[str, NDArray[Any]] = {}
    for name, width in widths.items():
        values = _flatten_column(table[name], f"{where}: {name}")
        if values.size != len(table) * width:
            raise DatasetError(
                f"{where}: {name} has {values.size} numbers in {len(table)} frames, but its shape requires "
                f"{width} per frame."
            )
        found[name] = values.reshape(len(table), width)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            frame = int(np.argwhere(~np.isfinite(found[name]))[0][0])
            raise DatasetError(
                f"{where}: {name} is not finite at frame {frame}. Its statistics would be invalid. Leave the episode "
                "out, or correct the source."
            )
    return found


def _flatten_column(column: pa.ChunkedArray, where: str) -> NDArray[Any]:
    array: Any = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    while True:
        if array.null_count:
            raise DatasetError(f"{where} has {array.null_count} empty values. Leave the episode out, or fill them.")
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif pa.types.is_nested(array.type) and not pa.types.is_struct(array.type):
            array = array.flatten()
        else:
            return array.to_numpy(zero_copy_only=False)


def stack_features(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Concatenate the features of T frames to one float64 matrix of shape ``(T, total width)``."""
    return np.hstack([values.astype(np.float64) for values in columns.values()])


def read_chunks(paths: Sequence[Path], widths: Mapping[str, int]) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the features in data files as arrays, with a limited number of rows at a time.

    Args:
        paths: Parquet files.
        widths: Keys of the features to read, each with its number of values per frame.
    """
    rows = max(1, _CELLS_AT_ONCE // max(1, sum(widths.values())))
    for path in paths:
        with open_parquet(path) as file:
            pending: list[pa.RecordBatch] = []
            for batch in file.iter_batches(batch_size=rows, columns=list(widths)):
                pending.append(batch)
                if sum(map(len, pending)) >= rows:
                    yield to_feature_arrays(pa.Table.from_batches(pending), widths, where=str(path))
                    pending = []
            if pending:
                yield to_feature_arrays(pa.Table.from_batches(pending), widths, where=str(path))


def remap_tasks(
    table: pa.Table, names: Mapping[int, str], numbers: Mapping[str, int], *, where: str
) -> NDArray[np.int64]:
    """Return the new ``task_index`` of each frame, shape ``(T,)``.

    Args:
        table: T frames with the old ``task_index``.
        names: Task text of each old index.
        numbers: New index of each task text.
        where: Description of the episode, for error messages.

    Raises:
        DatasetError: If a frame has a ``task_index`` that is not in ``names``.
    """
    old = table["task_index"].to_numpy().astype(np.int64)
    found, inverse = np.unique(old, return_inverse=True)
    unknown = [int(task) for task in found if int(task) not in names]
    if unknown:
        raise DatasetError(
            f"{where}: frames have the task_index {unknown[0]}, which is not in the dataset's list of tasks."
        )
    return np.array([numbers[names[int(task)]] for task in found], dtype=np.int64)[inverse]


def list_used_tasks(table: pa.Table) -> list[int]:
    """Return the distinct values of ``task_index`` in a table of frames, in order of first appearance."""
    return pc.unique(table["task_index"].combine_chunks()).to_pylist()


class DataFile:
    """Open data file of a new dataset, with one row group per episode.

    Args:
        path: The Parquet file to write.
        schema: Columns of the file.

    Attributes:
        bytes: Size of all added tables in memory, by which the caller decides when to start a new file.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(path, schema, compression="snappy")
        self.bytes = 0

    def add(self, table: pa.Table) -> None:
        """Append the frames of one episode."""
        self._writer.write_table(table, row_group_size=max(len(table), 1))
        self.bytes += table.nbytes

    def close(self) -> None:
        """Write the Parquet footer and close the file."""
        self._writer.close()
