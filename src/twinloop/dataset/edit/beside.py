"""What lies beside LeRobot's files of our episodes: exact states, logs, provenance, side tables, set-aside attempts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.core.documents import MOST_LINES_BYTES, parse_json, read_text
from twinloop.core.errors import DatasetError, InputError
from twinloop.core.files import dumps
from twinloop.core.records import Provenance
from twinloop.dataset import layout
from twinloop.dataset.aside import aside_numbers
from twinloop.dataset.edit.item import Item
from twinloop.dataset.edit.source import Source
from twinloop.dataset.parquet import open_parquet, read_rows
from twinloop.dataset.side_tables import about, side_rows, side_table_names, side_writer
from twinloop.dataset.snapshot import link_or_copy, replace_bytes

_INDEX = "episode_index"
_ABOUT = b"twinloop"


def record(item: Item) -> Provenance | None:
    """The provenance of the source's episode, if we wrote it."""
    if not item.source.kept(item.index):
        return None
    source, block = item.source, int(item.source.files[item.index])
    path = source.path / layout.of_block(layout.PROVENANCE_PATH, block)
    lines = _lines(path)
    position = int(source.positions[item.index])
    if position >= len(lines):
        raise DatasetError(f"{path} has {len(lines)} lines; {item.where} should be line {position + 1}. Restore it.")
    with layout.understood(f"Line {position + 1} of {path}"):
        value = parse_json(lines[position], where=f"Line {position + 1} of {path}")
        if value.pop(_INDEX) != item.index:
            raise DatasetError(f"Line {position + 1} of {path} is not of episode {item.index}. Restore the file.")
        return Provenance.from_json(value)


@functools.lru_cache(maxsize=4)
def _lines(path: Path) -> list[str]:
    try:
        return read_text(path, MOST_LINES_BYTES).splitlines()
    except InputError as error:
        raise DatasetError(f"{error} Restore the file.") from error


def table_schemas(sources: Sequence[Source], leave_out: Sequence[str] = ()) -> dict[str, pa.Schema]:
    """The side tables of the result with their columns, from all sources that have one of that name.

    Raises:
        InputError: two sources have one table with columns of other types; names it and how to leave it out.
    """
    schemas: dict[str, pa.Schema] = {}
    for source in sources:
        for name in side_table_names(source.path) if source.reader.ours else ():
            if name in leave_out:
                continue
            found = source.reader.side_table(name).schema
            try:
                known = schemas.get(name, found)
                schemas[name] = pa.unify_schemas([known, found.remove_metadata()]).with_metadata(known.metadata)
            except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
                raise InputError(
                    f"The side table {name} of {source} has columns of other types than that of another folder "
                    f"({error}). Leave it out, as in --leave-out {name}."
                ) from error
    return schemas


class Beside:
    """One block's files beside LeRobot's, being written episode after episode."""

    def __init__(self, stage: Path, block: int, templates: Sequence[str], tables: Mapping[str, pa.Schema]) -> None:
        self._stage, self._block = stage, block
        self._exact: dict[str, pq.ParquetWriter | None] = dict.fromkeys(templates)
        self._lines: list[str] = []
        self._tables = {
            name: side_writer(
                stage / layout.of_block(layout.SIDE_PATH, block, table=name),
                schema if _ABOUT in (schema.metadata or {}) else schema.with_metadata(about(name, {})),
            )
            for name, schema in tables.items()
        }
        self._schemas = dict(tables)

    def add(self, item: Item, index: int, provenance: Provenance) -> None:
        """Add what is known of one of our episodes, which becomes episode ``index``."""
        for template in self._exact:
            self._add_exact(template, item, index)
        self._lines.append(dumps({_INDEX: index, **provenance.to_json()}))
        for name, writer in self._tables.items():
            rows = _rows_of(item, name)
            if rows is not None and len(rows):
                whole = _as(_renumbered(rows, index), self._schemas[name])
                writer.write_table(whole, row_group_size=len(whole))

    def close(self, *, whole: bool = True) -> None:
        """Write what makes them files; ``whole`` is False where the edit failed, and only handles are to be freed."""
        for writer in (*self._exact.values(), *self._tables.values()):
            if writer is not None:
                writer.close()
        if whole:
            text = "\n".join(self._lines) + "\n"
            replace_bytes(self._stage / layout.of_block(layout.PROVENANCE_PATH, self._block), text.encode())

    def _add_exact(self, template: str, item: Item, index: int) -> None:
        path = item.source.path / layout.of_block(template, int(item.source.files[item.index]))
        position = int(item.source.positions[item.index])
        row = read_rows(path, position, position + 1)
        if row[_INDEX].to_pylist() != [item.index]:
            raise DatasetError(
                f"{path} holds episode {row[_INDEX].to_pylist()[0]} where episode {item.index} should be."
            )
        row = _renumbered(row, index)
        writer = self._exact[template]
        if writer is None:
            target = self._stage / layout.of_block(template, self._block)
            target.parent.mkdir(parents=True, exist_ok=True)
            writer = self._exact[template] = pq.ParquetWriter(target, row.schema, compression="none")
        writer.write_table(row, row_group_size=1)


def _rows_of(item: Item, name: str) -> pa.Table | None:
    """An episode's rows of a side table; None where its block has none."""
    block = int(item.source.files[item.index])
    if not (item.source.path / layout.of_block(layout.SIDE_PATH, block, table=name)).is_file():
        return None
    return side_rows(item.source.path, name, block, item.index)


def _renumbered(rows: pa.Table, index: int) -> pa.Table:
    at = rows.column_names.index(_INDEX)
    return rows.set_column(at, rows.schema.field(at), pa.array(np.full(len(rows), index), pa.int64()))


def _as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns: list[Any] = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def carry_aside(stage: Path, sources: Sequence[Source], whole: Sequence[bool]) -> list[str]:
    """Take along the set-aside attempts of the folders that are taken whole; returns what a person should know."""
    notes: list[str] = []
    block, numbers = 0, list[int]()
    for source, all_of_it in zip(sources, whole, strict=True):
        found = aside_numbers(source.path) if source.reader.ours else []
        if found and not all_of_it:
            notes.append(f"{len(found)} set-aside attempts stay with {source}, of which only a part is taken")
        elif found:
            for path in sorted((source.path / layout.INVALID).glob("chunk-*/file-*.parquet")):
                target = stage / layout.of_block(layout.INVALID_PATH, block)
                target.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(path, target)
                block += 1
            numbers += found
    if twice := len(numbers) - len(set(numbers)):
        notes.append(f"{twice} set-aside attempts share their number with one of another folder; the first is found")
    return notes


def carry_documents(stage: Path, sources: Sequence[Source], names: Sequence[str]) -> list[str]:
    """Take along files that hold for a whole folder where all folders have them alike; returns those left out."""
    left: list[str] = []
    for name in names:
        contents = {path.read_bytes() if (path := source.path / name).is_file() else b"" for source in sources}
        if len(contents) == 1:
            replace_bytes(stage / name, contents.pop())
        else:
            left.append(name)
    return left


def rows_match(path: Path, expected: int) -> None:
    """Refuse a file of the result that has not the rows that were given to it.

    Raises:
        DatasetError: names the file and both counts.
    """
    with open_parquet(path) as file:
        if file.metadata.num_rows != expected:
            raise DatasetError(f"{path} has {file.metadata.num_rows} rows after writing; {expected} were given.")
