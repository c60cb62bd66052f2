"""Write and read side tables: additional data per episode as Parquet files in ``twinloop/NAME/``.

A dataset is written in blocks of consecutive episodes. The side tables of a block are committed together with
its episodes: one file per block, one Parquet row group per episode, and the same bytes for the same rows. The
caller identifies an episode by ``number``, its number in the generate run; the writer adds the column
``episode_index``. A table's name is a path such as ``annotations/frames``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.core.documents import parse_json
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.core.files import dumps
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import open_parquet

if TYPE_CHECKING:
    import pyarrow.dataset as pad

SideTable: TypeAlias = pa.Table | Iterable[pa.Table] | Path
"""Rows of one block of episodes: a table, an iterable of partial tables, or a Parquet file of another process."""

_NAME = re.compile(r"[a-z][a-z0-9_]*(/[a-z][a-z0-9_]*)*")
_TAKEN = {"states", "provenance", "log", "invalid"}
_INDEX, _NUMBER, _ABOUT = "episode_index", "number", b"twinloop"
_KEY = pa.field(_INDEX, pa.int64())


def check_name(name: str) -> None:
    """Check that a name can be used for a side table (additional Parquet table in ``twinloop/NAME/``).

    Raises:
        InputError: If the name is malformed or reserved.
    """
    if not _NAME.fullmatch(name) or name.partition("/")[0] in _TAKEN:
        raise InputError(
            f"{name!r} cannot name a side table. A name consists of lower-case words separated by slashes "
            f"(annotations/frames) and does not begin with {', '.join(sorted(_TAKEN))}."
        )


def write_side_tables(
    stage: Path,
    block: int,
    tables: Mapping[str, SideTable],
    *,
    episodes: Mapping[int, int],
    known: Mapping[str, Sequence[str]] | None,
) -> dict[str, list[str]]:
    """Write the side tables of one block of episodes into a snapshot of the dataset that is not yet committed.

    Args:
        stage: Folder of the snapshot.
        block: Number of the block.
        tables: Rows of the block by table name, sorted by ``number``.
        episodes: ``episode_index`` of each episode of the block by its ``number``, in order.
        known: Columns of each side table of the dataset, as this function returned them for an earlier block; None
            for the first block with episodes.

    Returns:
        Columns of each table as ``name: type``.

    Raises:
        InputError: If a table name is invalid, or rows belong to episodes outside the block or are not in its
            order.
        DatasetError: If a table of the dataset is missing, or its columns differ from those of earlier blocks.
    """
    if known is not None and set(known) != set(tables):
        raise DatasetError(
            f"Block {block} comes with the side tables {_format_names(tables)}; earlier blocks have "
            f"{_format_names(known)}. Give "
            "every block the same tables (a table may have no rows), or write another "
            "dataset."
        )
    columns: dict[str, list[str]] = {}
    for name, rows in tables.items():
        check_name(name)
        path = stage / layout.block_path(layout.SIDE_PATH, block, table=name)
        columns[name] = _write_side_table(path, name, rows, episodes)
        if known is not None and columns[name] != list(known[name]):
            raise DatasetError(
                f"The side table {name} of block {block} has the columns {', '.join(columns[name])}; earlier blocks "
                f"have {', '.join(known[name])}. Give the table the same columns in every block."
            )
    return columns


def side_table_names(root: Path) -> list[str]:
    """Return the names of the side tables that have a file in a dataset folder."""
    base = root / layout.SIDE
    found = {path.parent.parent.relative_to(base).as_posix() for path in base.glob("**/chunk-*/file-*.parquet")}
    return sorted(name for name in found if name.partition("/")[0] not in _TAKEN)


def open_side_table(root: Path, name: str) -> pad.Dataset:
    """Open a side table (additional Parquet table in ``twinloop/NAME/``) of all episodes, without reading its rows.

    Args:
        root: Folder of the dataset.
        name: Name of the table.

    Returns:
        The table as a PyArrow dataset.

    Raises:
        UnknownNameError: If the dataset has no such table.
        DatasetError: If a file is damaged, is outside the folder, or was written by a newer version.
    """
    import pyarrow.dataset as pad  # imports pandas if it is installed

    names = side_table_names(root)
    if name not in names:
        raise UnknownNameError("side table", name, names, where=str(root))
    found = sorted((root / layout.SIDE / name).glob("chunk-*/file-*.parquet"))
    paths = [_require_inside(root, path) for path in found]
    schema = _read_schema(paths[0])
    return pad.dataset([str(path) for path in paths], schema=schema, format="parquet")


def read_side_rows(root: Path, name: str, block: int, index: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the rows of one episode from a side table. Only the row groups of that episode are read.

    Args:
        root: Folder of the dataset.
        name: Name of the table.
        block: Number of the block of episodes (one file per table) that contains the episode.
        index: ``episode_index`` of the episode.
        columns: Columns to read; by default all.

    Raises:
        UnknownNameError: If the dataset has no such table, or the table no such column.
        DatasetError: If the file is damaged, is outside the folder, or was written by a newer version.
    """
    path = _require_inside(root, root / layout.block_path(layout.SIDE_PATH, block, table=name))
    if not path.is_file():
        raise UnknownNameError("side table", name, side_table_names(root), where=f"block {block} of {root}")
    schema = _read_schema(path)
    for column in columns or ():
        if column not in schema.names:
            raise UnknownNameError("column", column, schema.names, where=f"the side table {name}")
    with open_parquet(path) as file:
        groups = [i for i in range(file.num_row_groups) if _group_index(file, i) == index]
        return file.read_row_groups(groups, columns=None if columns is None else list(columns))


def table_metadata(name: str, text: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Return the schema metadata of a side table: schema version, table name, and the entries of ``text``.

    Args:
        name: Name of the table.
        text: Further JSON-compatible entries, such as the meaning of the columns.
    """
    return {_ABOUT: dumps({"schema": layout.SCHEMA, "table": name, **text}).encode()}


def open_side_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a new side-table file for writing. The caller writes one row group per episode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Images are compressed already; a dictionary of them would be a second copy.
    codecs = {field.name: "none" if _is_binary(field.type) else "zstd" for field in schema}
    plain = [field.name for field in schema if not _is_binary(field.type)]
    return pq.ParquetWriter(path, schema, compression=codecs, use_dictionary=plain)  # pyright: ignore[reportArgumentType]


def _format_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _write_side_table(path: Path, name: str, rows: SideTable, episodes: Mapping[int, int]) -> list[str]:
    parts = _read_parts(rows)
    first = next(parts, None)
    if first is None:
        raise InputError(
            f"The side table {name} has no table. If it has no rows, give an empty table with its columns."
        )
    if _NUMBER not in first.column_names or _INDEX in first.column_names:
        raise InputError(
            f"The side table {name} needs a column {_NUMBER} and no {_INDEX}, which the writer adds; it "
            f"has {', '.join(first.column_names)}."
        )
    fields = [pa.field(field.name, _to_parquet_type(field.type)) for field in first.schema]
    schema = pa.schema([_KEY, *fields]).with_metadata({**table_metadata(name, {}), **(first.schema.metadata or {})})
    order, done = list(episodes), -1
    with open_side_writer(path, schema) as writer:
        for part in itertools.chain([first], parts):
            for number, group in _split_by_number(part):
                if number not in episodes or order.index(number) < done:
                    raise InputError(
                        f"The side table {name} has rows of episode number {number} where the block has the episodes "
                        f"{order}, in this order. Sort the rows by number, and drop episodes not in the block."
                    )
                done = order.index(number)
                index = pa.array(np.full(len(group), episodes[number]), pa.int64())
                whole = group.add_column(0, _KEY, index).cast(schema)
                writer.write_table(whole, row_group_size=max(len(whole), 1))
    return [f"{field.name}: {field.type}" for field in schema]


def _read_parts(rows: SideTable) -> Iterator[pa.Table]:
    if isinstance(rows, pa.Table):
        yield rows
    elif isinstance(rows, Path):
        with open_parquet(rows) as file:
            yield file.schema_arrow.empty_table()
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)
    else:
        yield from rows


def _split_by_number(part: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Split rows into runs of consecutive rows with the same ``number``; yield the number and the rows of each run."""
    numbers = part[_NUMBER].to_numpy()
    edges = np.flatnonzero(np.diff(numbers)) + 1
    bounds = [0, *edges.tolist(), len(numbers)] if len(numbers) else []
    for start, stop in itertools.pairwise(bounds):
        yield int(numbers[start]), part.slice(start, stop - start)


def _to_parquet_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with Parquet's name ``element`` for list elements.

    Tables from files and tables from memory are then written as the same bytes.
    """
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _to_parquet_type(kind.value_type)), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _to_parquet_type(kind.value_type)))
    return kind


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _read_schema(path: Path) -> pa.Schema:
    with open_parquet(path) as file:
        schema = file.schema_arrow
    with layout.wrap_parse_errors(str(path)):
        layout.require_keys(parse_json((schema.metadata or {})[_ABOUT], where=str(path)), (), where=str(path))
    return schema


def _require_inside(root: Path, path: Path) -> Path:
    if not path.resolve().is_relative_to(root.resolve()):
        raise DatasetError(
            f"{path} is a link to a file outside the dataset's folder, and such links are not read. Restore the file."
        )
    return path


def _group_index(file: pq.ParquetFile, group: int) -> int:
    """Return the ``episode_index`` of a row group from its statistics, because every row group belongs to one episode.

    It is -1 if the file has no statistics.
    """
    statistics = file.metadata.row_group(group).column(0).statistics
    return int(statistics.min) if statistics is not None and statistics.has_min_max else -1
