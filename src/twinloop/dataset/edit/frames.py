"""Frames of an episode on their way into another dataset: new numbers, their figures, everything else as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.dataset.parquet import open_parquet

_NUMBERS = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool")
_CELLS_AT_ONCE = 1 << 22  # numbers in memory while quantiles are counted: 16 MB of float32; our choice


def numeric_features(features: Mapping[str, Any]) -> dict[str, int]:
    """Features that have statistics of their numbers, and how many numbers a frame has of each."""
    return {
        key: int(np.prod(entry.get("shape") or [1]))
        for key, entry in features.items()
        if entry.get("dtype") in _NUMBERS
    }


def column_slices(widths: Mapping[str, int]) -> dict[str, slice]:
    """Where each feature stands when all are put side by side."""
    ends = np.cumsum(list(widths.values()))
    return {key: slice(int(end - width), int(end)) for (key, width), end in zip(widths.items(), ends, strict=True)}


def placed_frames(
    table: pa.Table, schema: pa.Schema, *, index: int, start: int, tasks: NDArray[np.int64], where: str
) -> pa.Table:
    """One episode's frames as they stand in the result.

    Args:
        schema: the columns of the result.
        index: the episode's new ``episode_index``.
        start: the new ``index`` of its first frame.
        tasks: the new ``task_index`` of each frame.
        where: names the episode in messages.

    Raises:
        DatasetError: a column cannot be brought to the type that it has in the result.
    """
    length = len(table)
    new = {
        "episode_index": np.full(length, index, dtype=np.int64),
        "index": np.arange(start, start + length, dtype=np.int64),
        "task_index": tasks,
    }
    columns = []
    for field in schema:
        column = pa.chunked_array([new[field.name]]) if field.name in new else table[field.name]
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DatasetError(
                f"{where}: {field.name} is {column.type} and cannot become {field.type} ({error})."
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


def matrix(table: pa.Table, widths: Mapping[str, int], *, where: str) -> dict[str, NDArray[Any]]:
    """The numbers of some features, ``(T, width)`` of the type that they are stored in.

    Raises:
        DatasetError: empty cells, rows of other lengths, or something that is no finite number; names the frame.
    """
    found: dict[str, NDArray[Any]] = {}
    for name, width in widths.items():
        values = _flat(table[name], f"{where}: {name}")
        if values.size != len(table) * width:
            raise DatasetError(
                f"{where}: {name} has {values.size} numbers in {len(table)} frames; its shape says {width} in each."
            )
        found[name] = values.reshape(len(table), width)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            frame = int(np.argwhere(~np.isfinite(found[name]))[0][0])
            raise DatasetError(
                f"{where}: {name} is not finite at frame {frame}. Statistics of it would be of no use: leave the "
                "episode out, or mend the source."
            )
    return found


def _flat(column: pa.ChunkedArray, where: str) -> NDArray[Any]:
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


def side_by_side(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """All features of an episode in one matrix ``(T, columns)``."""
    return np.hstack([values.astype(np.float64) for values in columns.values()])


def chunks_of(paths: Sequence[Path], widths: Mapping[str, int]) -> Iterator[dict[str, NDArray[Any]]]:
    """The numbers of data files, a bounded number of rows at a time."""
    rows = max(1, _CELLS_AT_ONCE // max(1, sum(widths.values())))
    for path in paths:
        with open_parquet(path) as file:
            pending: list[pa.RecordBatch] = []
            for batch in file.iter_batches(batch_size=rows, columns=list(widths)):
                pending.append(batch)
                if sum(map(len, pending)) >= rows:
                    yield matrix(pa.Table.from_batches(pending), widths, where=str(path))
                    pending = []
            if pending:
                yield matrix(pa.Table.from_batches(pending), widths, where=str(path))


def remapped_tasks(
    table: pa.Table, names: Mapping[int, str], numbers: Mapping[str, int], *, where: str
) -> NDArray[np.int64]:
    """The new ``task_index`` of each frame: the same texts, numbered as in the result.

    Raises:
        DatasetError: a frame names a task that the folder's table has not.
    """
    old = table["task_index"].to_numpy().astype(np.int64)
    found, inverse = np.unique(old, return_inverse=True)
    unknown = [int(task) for task in found if int(task) not in names]
    if unknown:
        raise DatasetError(f"{where}: frames name the task_index {unknown[0]}, which meta/tasks.parquet has not.")
    return np.array([numbers[names[int(task)]] for task in found], dtype=np.int64)[inverse]


def used_tasks(table: pa.Table) -> list[int]:
    """The task numbers of some frames, in order of first appearance."""
    return pc.unique(table["task_index"].combine_chunks()).to_pylist()


class DataFile:
    """A data file of the result being written, one row group per episode."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(path, schema, compression="snappy")
        self.bytes = 0

    def add(self, table: pa.Table) -> None:
        """Append one episode."""
        self._writer.write_table(table, row_group_size=max(len(table), 1))
        self.bytes += table.nbytes

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()
