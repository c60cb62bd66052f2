"""Read and write Parquet files, with clear errors for damaged files, and convert columns to arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from twinloop.core.documents import require_regular
from twinloop.core.errors import DatasetError, InputError

# Most values that are read at once (2 GiB as float64), and most column chunks of a file.
_MOST_VALUES = 1 << 28
_MOST_CHUNKS = 100_000


@contextlib.contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for reading, as a context manager.

    Raises:
        DatasetError: If the file is missing, truncated, not Parquet, or has two columns with the same name.
    """
    if not path.exists():
        raise DatasetError(f"{path} is missing, although the dataset's metadata names it. Restore the file.")
    try:
        require_regular(path)
    except InputError as error:
        raise DatasetError(str(error)) from error
    try:
        with pq.ParquetFile(path) as file:
            _require_few_values(file.metadata, path, whole=False)
            names = file.schema_arrow.names
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DatasetError(f"{path} has {names.count(twice)} columns {twice}. Keep one of them.")
            yield file
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(
            f"{path} is truncated or damaged ({path.stat().st_size} bytes; {reason}). "
            "Copy or record it again; an interrupted recording has no footer and cannot be read."
        ) from error


def _require_few_values(metadata: pq.FileMetaData, path: Path, *, whole: bool) -> None:
    """Check that a table fits into memory before it is read.

    Equal values are compressed, so that even a small file can contain a huge table.

    Args:
        metadata: Metadata of the file.
        path: Path for messages.
        whole: True if the file is read at once, False if it is read one row group at a time.

    Raises:
        DatasetError: If the file has too many values or too many column chunks.
    """
    chunks = metadata.num_row_groups * metadata.num_columns
    if chunks > _MOST_CHUNKS:
        raise DatasetError(f"{path} has {chunks:,} parts; at most {_MOST_CHUNKS:,} are read of a file. Write it again.")
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    sizes = [sum(group.column(i).num_values for i in range(group.num_columns)) for group in groups]
    values = sum(sizes) if whole else max(sizes, default=0)
    if values > _MOST_VALUES:
        raise DatasetError(f"{path} has {values:,} values; at most {_MOST_VALUES:,} are read at once. Split the file.")


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file, or only some of its columns.

    Raises:
        DatasetError: If the file cannot be read (see `open_parquet`) or a column is missing.
    """
    with open_parquet(path) as file:
        _require_few_values(file.metadata, path, whole=True)
        require_columns(columns or (), file.schema_arrow.names, where=str(path))
        return file.read(columns=list(columns) if columns else None)


def read_rows(path: Path, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the rows from ``start`` to ``stop`` (exclusive) of a Parquet file; only their row groups are read.

    Raises:
        DatasetError: If the file cannot be read (see `read_table`) or has fewer rows.
    """
    with open_parquet(path) as file:
        require_columns(columns or (), file.schema_arrow.names, where=str(path))
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        ends = np.cumsum(sizes)
        if not len(ends) or stop > ends[-1] or start < 0:
            total = int(ends[-1]) if len(ends) else 0
            raise DatasetError(f"{path} has {total} rows; the episode table refers to rows {start} to {stop}.")
        first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop, side="left")
        table = file.read_row_groups(list(range(first, last + 1)), columns=list(columns) if columns else None)
        return table.slice(start - int(ends[first] - sizes[first]), stop - start)


def require_columns(required: Sequence[str], present: Sequence[str], *, where: str) -> None:
    """Check that a table has the required columns.

    Args:
        required: Names of the required columns.
        present: Names of the table's columns.
        where: Name of the table for messages.

    Raises:
        DatasetError: If columns are missing; the message names the missing and the present columns.
    """
    missing = [name for name in required if name not in present]
    if missing:
        raise DatasetError(f"{where} has no column {', '.join(missing)}. It has: {', '.join(present)}.")


def column_to_floats(column: pa.ChunkedArray, *, where: str) -> NDArray[np.float64]:
    """Convert a column to a float64 array: numbers to shape ``(nrow,)``, lists of n numbers to shape ``(nrow, n)``.

    Args:
        column: Column of numbers, flags, or lists of numbers.
        where: Name of the column for messages.

    Raises:
        DatasetError: If the column has nulls, lists of different lengths, or values that are not numbers.
    """
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if array.null_count:
        raise DatasetError(f"{where} has {array.null_count} empty values. Fill or remove those rows.")
    if not pa.types.is_nested(array.type):
        return _to_floats(array, where)
    values = _to_floats(array.flatten(), where)
    width = len(values) // len(array) if len(array) else 0
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        lengths = np.diff(np.asarray(array.offsets))
        if len(lengths) and (lengths != width).any():
            raise DatasetError(f"{where} has rows of different lengths ({lengths.min()} to {lengths.max()}).")
    return values.reshape(len(array), width)


def column_to_array(column: pa.ChunkedArray) -> NDArray[Any]:
    """Convert a column that twinloop wrote to an array of the same type, shape ``(nrow, width)``.

    The column has numbers (width 1) or lists of equal length. Nothing is checked.
    """
    array = column.combine_chunks()
    values = array.flatten() if pa.types.is_nested(array.type) else array
    return values.to_numpy(zero_copy_only=False).reshape(len(array), -1)


def _to_floats(array: Any, where: str) -> NDArray[np.float64]:
    if array.null_count:
        raise DatasetError(f"{where} has {array.null_count} empty values. Fill or remove those rows.")
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        raise DatasetError(f"{where} holds {array.type}, not numbers.")
    return array.to_numpy(zero_copy_only=False).astype(np.float64)


def to_fixed_lists(values: NDArray[np.float32]) -> pa.FixedSizeListArray:
    """Convert an array of shape ``(nrow, n)`` to a column of fixed-size lists, in which LeRobot stores vectors."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def to_lists(rows: Sequence[NDArray[np.float64]]) -> pa.ListArray:
    """Convert arrays to a column with one flat list of float64 per array; the lists may differ in length."""
    offsets = np.cumsum([0, *[row.size for row in rows]]).astype(np.int32)
    flat = np.concatenate([row.reshape(-1) for row in rows]) if rows else np.empty(0)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat.astype(np.float64)))


def write_groups(path: Path, table: pa.Table, sizes: Sequence[int], *, compression: str = "snappy") -> None:
    """Write a table to a Parquet file whose row groups have the given numbers of rows, in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, table.schema, compression=compression) as writer:
        start = 0
        for size in sizes:
            writer.write_table(table.slice(start, size), row_group_size=max(size, 1))
            start += size
