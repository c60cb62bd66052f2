"""Write the blocks of an edited dataset: frames, rows of the episode table, and twinloop's additional files."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.core.documents import MOST_LINES_BYTES, parse_json, read_text
from twinloop.core.errors import DatasetError, InputError
from twinloop.core.files import dumps
from twinloop.core.records import Provenance
from twinloop.dataset.edit.rows import (
    BlockRow,
    DataFile,
    EpisodeRecord,
    SourceEpisode,
    build_episode_rows,
    derive_episode_record,
    list_used_tasks,
    remap_tasks,
    renumber_frames,
    to_feature_arrays,
)
from twinloop.dataset.edit.source import EditSource
from twinloop.dataset.edit.statistics import FrameTotals, PixelCounts
from twinloop.dataset.edit.videos import VideoLocation
from twinloop.dataset.invalid_worlds import invalid_world_numbers
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import open_parquet, read_rows, write_groups
from twinloop.dataset.lerobot.progress import BlockEntry
from twinloop.dataset.side_tables import open_side_writer, read_side_rows, side_table_names, table_metadata
from twinloop.dataset.storage.snapshot import link_or_copy, replace_bytes

_INDEX = "episode_index"
_ABOUT = b"twinloop"


def read_provenance(item: SourceEpisode) -> Provenance | None:
    """Read the provenance of a source episode; None if another program wrote it. Damaged files raise DatasetError."""
    if not item.source.has_provenance(item.index):
        return None
    source, block = item.source, int(item.source.files[item.index])
    path = source.path / layout.block_path(layout.PROVENANCE_PATH, block)
    lines = _read_lines(path)
    position = int(source.positions[item.index])
    if position >= len(lines):
        raise DatasetError(f"{path} has {len(lines)} lines; {item.where} should be line {position + 1}. Restore it.")
    with layout.wrap_parse_errors(f"Line {position + 1} of {path}"):
        value = parse_json(lines[position], where=f"Line {position + 1} of {path}")
        if value.pop(_INDEX) != item.index:
            raise DatasetError(f"Line {position + 1} of {path} is not of episode {item.index}. Restore the file.")
        return Provenance.from_json(value)


@functools.lru_cache(maxsize=4)
def _read_lines(path: Path) -> list[str]:
    try:
        return read_text(path, MOST_LINES_BYTES).splitlines()
    except InputError as error:
        raise DatasetError(f"{error} Restore the file.") from error


def combine_side_table_schemas(sources: Sequence[EditSource], leave_out: Sequence[str] = ()) -> dict[str, pa.Schema]:
    """Return the schema of each side table of the result, unified over all sources that have the table.

    Raises:
        InputError: a table has different column types in two sources; explains how to leave it out.
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


class SideTableEdits:
    """Writer of one block's additional files (states or logs, provenance, side tables), one episode at a time."""

    def __init__(self, stage: Path, block: int, templates: Sequence[str], tables: Mapping[str, pa.Schema]) -> None:
        self._stage, self._block = stage, block
        self._exact: dict[str, pq.ParquetWriter | None] = dict.fromkeys(templates)
        self._lines: list[str] = []
        self._tables = {
            name: open_side_writer(
                stage / layout.block_path(layout.SIDE_PATH, block, table=name),
                schema if _ABOUT in (schema.metadata or {}) else schema.with_metadata(table_metadata(name, {})),
            )
            for name, schema in tables.items()
        }
        self._schemas = dict(tables)

    def add(self, item: SourceEpisode, index: int, provenance: Provenance) -> None:
        """Write the additional data of one episode of twinloop as episode ``index`` of the result."""
        for template in self._exact:
            self._add_exact(template, item, index)
        self._lines.append(dumps({_INDEX: index, **provenance.to_json()}))
        for name, writer in self._tables.items():
            rows = _read_episode_rows(item, name)
            if rows is not None and len(rows):
                whole = _cast_rows(_renumber_rows(rows, index), self._schemas[name])
                writer.write_table(whole, row_group_size=len(whole))

    def close(self, *, whole: bool = True) -> None:
        """Close all files and write the provenance; with ``whole`` False, after a failure, only close the files."""
        for writer in (*self._exact.values(), *self._tables.values()):
            if writer is not None:
                writer.close()
        if whole:
            text = "\n".join(self._lines) + "\n"
            replace_bytes(self._stage / layout.block_path(layout.PROVENANCE_PATH, self._block), text.encode())

    def _add_exact(self, template: str, item: SourceEpisode, index: int) -> None:
        path = item.source.path / layout.block_path(template, int(item.source.files[item.index]))
        position = int(item.source.positions[item.index])
        row = read_rows(path, position, position + 1)
        if row[_INDEX].to_pylist() != [item.index]:
            raise DatasetError(
                f"{path} holds episode {row[_INDEX].to_pylist()[0]} where episode {item.index} should be."
            )
        row = _renumber_rows(row, index)
        writer = self._exact[template]
        if writer is None:
            target = self._stage / layout.block_path(template, self._block)
            target.parent.mkdir(parents=True, exist_ok=True)
            writer = self._exact[template] = pq.ParquetWriter(target, row.schema, compression="none")
        writer.write_table(row, row_group_size=1)


def _read_episode_rows(item: SourceEpisode, name: str) -> pa.Table | None:
    """Read an episode's rows of a side table; None if its block has no such table."""
    block = int(item.source.files[item.index])
    if not (item.source.path / layout.block_path(layout.SIDE_PATH, block, table=name)).is_file():
        return None
    return read_side_rows(item.source.path, name, block, item.index)


def _renumber_rows(rows: pa.Table, index: int) -> pa.Table:
    at = rows.column_names.index(_INDEX)
    return rows.set_column(at, rows.schema.field(at), pa.array(np.full(len(rows), index), pa.int64()))


def _cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns: list[Any] = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def copy_invalid_worlds(stage: Path, sources: Sequence[EditSource], whole: Sequence[bool]) -> list[str]:
    """Copy the invalid attempts of the folders that are copied completely; return notes on the others."""
    notes: list[str] = []
    block, numbers = 0, list[int]()
    for source, all_of_it in zip(sources, whole, strict=True):
        found = invalid_world_numbers(source.path) if source.reader.ours else []
        if found and not all_of_it:
            notes.append(f"{len(found)} set-aside attempts stay with {source}, of which only a part is taken")
        elif found:
            for path in sorted((source.path / layout.INVALID).glob("chunk-*/file-*.parquet")):
                target = stage / layout.block_path(layout.INVALID_PATH, block)
                target.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(path, target)
                block += 1
            numbers += found
    if twice := len(numbers) - len(set(numbers)):
        notes.append(f"{twice} invalid attempts have the number of one in another folder; a replay finds the first")
    return notes


def copy_equal_documents(stage: Path, sources: Sequence[EditSource], names: Sequence[str]) -> list[str]:
    """Copy the named files if they are equal in all folders; return the names of the others."""
    left: list[str] = []
    for name in names:
        contents = {path.read_bytes() if (path := source.path / name).is_file() else b"" for source in sources}
        if len(contents) == 1:
            replace_bytes(stage / name, contents.pop())
        else:
            left.append(name)
    return left


def check_row_count(path: Path, expected: int) -> None:
    """Check that a written Parquet file has the expected number of rows.

    Raises:
        DatasetError: names the file and both counts.
    """
    with open_parquet(path) as file:
        if file.metadata.num_rows != expected:
            raise DatasetError(f"{path} has {file.metadata.num_rows} rows after writing; {expected} were given.")


_MOST_EPISODES = 64  # per block, as in `DatasetWriter`
_MOST_BYTES = 100_000_000  # of a data file, as LeRobot's data_files_size_in_mb


@dataclass(frozen=True, kw_only=True)
class EditPlan:
    """Settings that all blocks of an edited dataset share.

    ``frames``: columns of the data files; ``carried``: columns of the episode table that are copied from the sources;
    ``tables``: schemas of the side tables; ``places``: location of each episode's images, by video feature.
    """

    frames: pa.Schema
    carried: pa.Schema
    tables: Mapping[str, pa.Schema]
    places: Mapping[str, Sequence[VideoLocation]]
    fps: float


class BlockWriter:
    """Writer of consecutive blocks; a block ends when it is full or when the next episode has other additional files.

    Simulated episodes have states, recorded episodes have logs, and episodes of other programs have no additional
    files.
    """

    def __init__(self, stage: Path, plan: EditPlan, totals: FrameTotals, pixels: PixelCounts) -> None:
        self._stage, self._plan, self._totals, self._pixels = stage, plan, totals, pixels
        self._kind: tuple[str, ...] | None = None
        self._data: DataFile | None = None
        self._beside: SideTableEdits | None = None
        self._rows: list[BlockRow] = []
        self.tasks: dict[str, int] = {}
        self.entries: list[BlockEntry] = []
        self.episodes = self.frames = 0

    @property
    def paths(self) -> list[Path]:
        """Paths of the written data files."""
        return [self._stage / layout.block_path(layout.DATA_PATH, entry.block) for entry in self.entries]

    def add(self, item: SourceEpisode) -> None:
        """Append one episode."""
        data = self._open_data_file(item)
        frames = item.source.frames(item.index)
        tasks = self._number_tasks(item, frames)
        placed = renumber_frames(
            frames, self._plan.frames, index=self.episodes, start=self.frames, tasks=tasks, where=item.where
        )
        statistics = self._totals.add(to_feature_arrays(placed, self._totals.widths, where=item.where))
        data.add(placed)
        found = read_provenance(item)
        made: EpisodeRecord | None = None
        if item.transforms:
            made = derive_episode_record(item, found, item.source.episode_id(item.index), frames)
            found = made.provenance
        if self._beside is not None and found is not None:
            self._beside.add(item, self.episodes, found)
        replaced = {} if made is None else made.columns
        replaced = {**replaced, **self._pixels.count_episode(self.episodes, item, frames)}
        self._rows.append(BlockRow(item=item, made=self._compute_cells(item), statistics=statistics, replaced=replaced))
        self.episodes, self.frames = self.episodes + 1, self.frames + item.length

    def finish(self) -> None:
        """Close the open block: write its rows of the episode table, and check its number of frames."""
        if self._data is None:
            return
        block = len(self.entries)
        self._data.close()
        if self._beside is not None:
            self._beside.close()
        table = build_episode_rows(self._rows, self._plan.carried)
        self._pixels.add_rows(table)
        write_groups(self._stage / layout.block_path(layout.EPISODES_PATH, block), table, [len(table)])
        frames = sum(row.item.length for row in self._rows)
        check_row_count(self._stage / layout.block_path(layout.DATA_PATH, block), frames)
        self.entries.append(BlockEntry(block=block, episodes=len(self._rows), frames=frames))
        self._data, self._beside, self._rows, self._kind = None, None, [], None

    def abandon(self) -> None:
        """Close all open files after a failure."""
        if self._data is not None:
            self._data.close()
        if self._beside is not None:
            self._beside.close(whole=False)

    def _open_data_file(self, item: SourceEpisode) -> DataFile:
        """Return the data file for an episode; start a new block if the open one is full or has other files."""
        kind = (*item.source.exact_templates(item.index), "ours" if item.source.has_provenance(item.index) else "")
        held = self._data
        if held is not None and kind == self._kind and len(self._rows) < _MOST_EPISODES and held.bytes <= _MOST_BYTES:
            return held
        self.finish()
        block, self._kind = len(self.entries), kind
        held = self._data = DataFile(self._stage / layout.block_path(layout.DATA_PATH, block), self._plan.frames)
        if kind[-1]:
            self._beside = SideTableEdits(self._stage, block, kind[:-1], self._plan.tables)
        return held

    def _number_tasks(self, item: SourceEpisode, frames: pa.Table) -> Any:
        """Return the new ``task_index`` of each frame; task texts are numbered in order of first appearance."""
        names = {number: item.texts.get(text, text) for number, text in item.source.tasks.items()}
        for old in list_used_tasks(frames):
            if old in names:
                self.tasks.setdefault(names[old], len(self.tasks))
        return remap_tasks(frames, names, self.tasks, where=item.where)

    def _compute_cells(self, item: SourceEpisode) -> dict[str, Any]:
        where = layout.chunk_and_file(len(self.entries))
        made: dict[str, Any] = {
            "episode_index": self.episodes,
            "tasks": item.tasks,
            "length": item.length,
            **{f"data/{name}": number for name, number in where.items()},
            "dataset_from_index": self.frames,
            "dataset_to_index": self.frames + item.length,
        }
        for key, places in self._plan.places.items():
            place = places[self.episodes]
            made |= {f"videos/{key}/{name}": number for name, number in layout.chunk_and_file(place.file).items()}
            made[f"videos/{key}/from_timestamp"] = place.start_s
            made[f"videos/{key}/to_timestamp"] = place.start_s + item.length / self._plan.fps
        return {**made, **{f"meta/episodes/{name}": number for name, number in where.items()}}
