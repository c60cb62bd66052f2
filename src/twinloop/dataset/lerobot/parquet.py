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
    """Open a Parquet file for reading.

    Raises:
        DatasetError: missing, truncated, not Parquet, or two columns with one name; names the file.
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
    """Refuse a table that does not fit into memory; equal values need almost no space in a file.

    Args:
        metadata: the file's metadata.
        path: the file.
        whole: the file is read at once, not one row group at a time.

    Raises:
        DatasetError: names the file.
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
    """Read a whole Parquet file, or some of its columns.

    Raises:
        DatasetError: as `open_parquet`, or a column is missing.
    """
    with open_parquet(path) as file:
        _require_few_values(file.metadata, path, whole=True)
        require_columns(columns or (), file.schema_arrow.names, where=str(path))
        return file.read(columns=list(columns) if columns else None)


def read_rows(path: Path, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the rows ``start`` to ``stop`` (exclusive) of a Parquet file; only their row groups are read.

    Raises:
        DatasetError: as `read_table`, or the file has fewer rows.
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


def require_columns(wanted: Sequence[str], present: Sequence[str], *, where: str) -> None:
    """Check that a table has the required columns.

    Raises:
        DatasetError: names the missing and the present columns.
    """
    missing = [name for name in wanted if name not in present]
    if missing:
        raise DatasetError(f"{where} has no column {', '.join(missing)}. It has: {', '.join(present)}.")


def column_to_floats(column: pa.ChunkedArray, *, where: str) -> NDArray[np.float64]:
    """Convert a column of numbers to ``(T,)``, or of equally long lists of numbers to ``(T, n)``, as float64.

    Raises:
        DatasetError: nulls, lists of different lengths, or values that are not numbers.
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
    """Convert a column that twinloop wrote (numbers or equally long lists) to ``(n, width)``; keep its type."""
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
    """Convert rows ``(T, n)`` to the fixed-size lists in which LeRobot stores vectors."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def to_lists(rows: Sequence[NDArray[np.float64]]) -> pa.ListArray:
    """Return one list of float64 per row; the lists may differ in length."""
    offsets = np.cumsum([0, *[row.size for row in rows]]).astype(np.int32)
    flat = np.concatenate([row.reshape(-1) for row in rows]) if rows else np.empty(0)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat.astype(np.float64)))


def write_groups(path: Path, table: pa.Table, sizes: Sequence[int], *, compression: str = "snappy") -> None:
    """Write a table with row groups of the given sizes, in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, table.schema, compression=compression) as writer:
        start = 0
        for size in sizes:
            writer.write_table(table.slice(start, size), row_group_size=max(size, 1))
            start += size
