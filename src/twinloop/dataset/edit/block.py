"""Write the blocks of an edited dataset: frames, rows of the episode table, and twinloop's additional files.

A block is a group of at most 64 consecutive episodes whose files have the same chunk and file number.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.core.documents import MAX_LINES_BYTES, parse_json, read_text
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
_METADATA_KEY = b"twinloop"


def read_provenance(item: SourceEpisode) -> Provenance | None:
    """Read the provenance of a source episode; None if another program wrote the episode.

    Raises:
        DatasetError: If the provenance file is damaged or has no line for this episode.
    """
    if not item.source.has_provenance(item.index):
        return None
    source, block = item.source, int(item.source.data_files[item.index])
    path = source.path / layout.block_path(layout.PROVENANCE_PATH, block)
    lines = _read_lines(path)
    position = int(source.positions[item.index])
    if position >= len(lines):
        raise DatasetError(
            f"{path} has {len(lines)} lines, but the provenance of {item.where} should be in line {position + 1}. "
            "Restore the file."
        )
    with layout.wrap_parse_errors(f"Line {position + 1} of {path}"):
        value = parse_json(lines[position], where=f"Line {position + 1} of {path}")
        if value.pop(_INDEX) != item.index:
            raise DatasetError(f"Line {position + 1} of {path} does not belong to episode {item.index}. Restore it.")
        return Provenance.from_json(value)


@functools.lru_cache(maxsize=4)
def _read_lines(path: Path) -> list[str]:
    try:
        return read_text(path, MAX_LINES_BYTES).splitlines()
    except InputError as error:
        raise DatasetError(f"{error} Restore the file.") from error


def combine_side_table_schemas(sources: Sequence[EditSource], leave_out: Sequence[str] = ()) -> dict[str, pa.Schema]:
    """Return the Arrow schema of each side table (additional Parquet table of twinloop) of the edited dataset.

    Each schema combines the columns from all sources that have the table.

    Args:
        leave_out: Names of side tables that the edited dataset does not get.

    Raises:
        InputError: If a column has different types in two sources. The message explains how to leave the table out.
    """
    schemas: dict[str, pa.Schema] = {}
    for source in sources:
        for name in side_table_names(source.path) if source.reader.written_by_twinloop else ():
            if name in leave_out:
                continue
            found = source.reader.side_table(name).schema
            try:
                known = schemas.get(name, found)
                schemas[name] = pa.unify_schemas([known, found.remove_metadata()]).with_metadata(known.metadata)
            except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
                raise InputError(
                    f"The side table {name} of {source} has other column types than the same table of another folder "
                    f"({error}). Leave it out, as in --leave-out {name}."
                ) from error
    return schemas


class BlockSideFiles:
    """Writer of one block's additional files (states or logs, provenance, side tables), one episode at a time.

    Args:
        stage: Temporary folder of the edited dataset.
        block: Number of the block.
        templates: Path templates of the Parquet files with states or logs; empty if the episodes have neither.
        tables: Schemas of the side tables, by name.
    """

    def __init__(self, stage: Path, block: int, templates: Sequence[str], tables: Mapping[str, pa.Schema]) -> None:
        self._stage, self._block = stage, block
        self._exact: dict[str, pq.ParquetWriter | None] = dict.fromkeys(templates)
        self._lines: list[str] = []
        self._tables = {
            name: open_side_writer(
                stage / layout.block_path(layout.SIDE_PATH, block, table=name),
                schema if _METADATA_KEY in (schema.metadata or {}) else schema.with_metadata(table_metadata(name, {})),
            )
            for name, schema in tables.items()
        }
        self._schemas = dict(tables)

    def add(self, item: SourceEpisode, index: int, provenance: Provenance) -> None:
        """Write states or log, provenance and side tables of a source episode that twinloop wrote.

        Args:
            item: The source episode.
            index: Its new ``episode_index``.
            provenance: Its new provenance.
        """
        for template in self._exact:
            self._add_exact(template, item, index)
        self._lines.append(dumps({_INDEX: index, **provenance.to_json()}))
        for name, writer in self._tables.items():
            rows = _read_episode_rows(item, name)
            if rows is not None and len(rows):
                whole = _cast_rows(_renumber_rows(rows, index), self._schemas[name])
                writer.write_table(whole, row_group_size=len(whole))

    def close(self, *, whole: bool = True) -> None:
        """Close all files and write the provenance file. If ``whole`` is false (after a failure), do not write it."""
        for writer in (*self._exact.values(), *self._tables.values()):
            if writer is not None:
                writer.close()
        if whole:
            text = "\n".join(self._lines) + "\n"
            replace_bytes(self._stage / layout.block_path(layout.PROVENANCE_PATH, self._block), text.encode())

    def _add_exact(self, template: str, item: SourceEpisode, index: int) -> None:
        path = item.source.path / layout.block_path(template, int(item.source.data_files[item.index]))
        position = int(item.source.positions[item.index])
        row = read_rows(path, position, position + 1)
        if row[_INDEX].to_pylist() != [item.index]:
            raise DatasetError(
                f"{path} has episode {row[_INDEX].to_pylist()[0]} in the row of episode {item.index}. Restore the file."
            )
        row = _renumber_rows(row, index)
        writer = self._exact[template]
        if writer is None:
            target = self._stage / layout.block_path(template, self._block)
            target.parent.mkdir(parents=True, exist_ok=True)
            writer = self._exact[template] = pq.ParquetWriter(target, row.schema, compression="none")
        writer.write_table(row, row_group_size=1)


def _read_episode_rows(item: SourceEpisode, name: str) -> pa.Table | None:
    """Read an episode's rows of the side table ``name``; None if no such table exists for the episode's block."""
    block = int(item.source.data_files[item.index])
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
    """Copy the files with invalid worlds (diverged simulations) of each source whose episodes are all kept.

    Args:
        stage: Temporary folder of the edited dataset.
        sources: The source datasets.
        whole: For each source, whether all its episodes are in the edited dataset.

    Returns:
        Notes on invalid worlds that were not copied, and on world numbers that occur in several sources.
    """
    notes: list[str] = []
    block, numbers = 0, list[int]()
    for source, complete in zip(sources, whole, strict=True):
        found = invalid_world_numbers(source.path) if source.reader.written_by_twinloop else []
        if found and not complete:
            notes.append(
                f"{len(found)} invalid worlds of {source} are not copied, because only some of its episodes are"
            )
        elif found:
            for path in sorted((source.path / layout.INVALID).glob("chunk-*/file-*.parquet")):
                target = stage / layout.block_path(layout.INVALID_PATH, block)
                target.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(path, target)
                block += 1
            numbers += found
    if twice := len(numbers) - len(set(numbers)):
        notes.append(f"{twice} invalid worlds have the same number as one in another folder; a replay uses the first")
    return notes


def copy_equal_documents(stage: Path, sources: Sequence[EditSource], names: Sequence[str]) -> list[str]:
    """Copy the named files to ``stage`` if they are equal in all sources; return the names of files that differ.

    Args:
        names: Paths relative to the dataset folder.
    """
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
        DatasetError: If the numbers differ.
    """
    with open_parquet(path) as file:
        if file.metadata.num_rows != expected:
            raise DatasetError(f"{path} has {file.metadata.num_rows} rows after writing; {expected} were given.")


_MOST_EPISODES = 64  # per block, as in `DatasetWriter`
_MOST_BYTES = 100_000_000  # of a data file, as LeRobot's data_files_size_in_mb


@dataclass(frozen=True, kw_only=True)
class EditPlan:
    """Settings that all blocks of an edited dataset share.

    Attributes:
        frames: Schema of the data files.
        copied_columns: Columns of the episode table that are copied from the sources.
        tables: Schemas of the side tables, by name.
        video_locations: For each video feature, the location of each episode's images.
        fps: Frame rate in Hz.
    """

    frames: pa.Schema
    copied_columns: pa.Schema
    tables: Mapping[str, pa.Schema]
    video_locations: Mapping[str, Sequence[VideoLocation]]
    fps: float


class BlockWriter:
    """Writer of consecutive blocks of an edited dataset.

    A new block starts if the current one is full or if the next episode has another kind of additional files: simulated
    episodes have states, recorded episodes have logs, and episodes of other programs have none.

    Args:
        stage: Temporary folder of the edited dataset.
        plan: Settings of all blocks.
        totals: Statistics of the numeric features, to which each episode is added.
        pixels: Image statistics, to which each episode is added.

    Attributes:
        tasks: Task index by task text.
        entries: The written blocks, each with its numbers of episodes and frames.
        episodes: Number of added episodes.
        frames: Number of added frames.
    """

    def __init__(self, stage: Path, plan: EditPlan, totals: FrameTotals, pixels: PixelCounts) -> None:
        self._stage, self._plan, self._totals, self._pixels = stage, plan, totals, pixels
        self._kind: tuple[str, ...] | None = None
        self._data: DataFile | None = None
        self._side_files: BlockSideFiles | None = None
        self._rows: list[BlockRow] = []
        self.tasks: dict[str, int] = {}
        self.entries: list[BlockEntry] = []
        self.episodes = self.frames = 0

    @property
    def paths(self) -> list[Path]:
        """Paths of the written data files."""
        return [self._stage / layout.block_path(layout.DATA_PATH, entry.block) for entry in self.entries]

    def add(self, item: SourceEpisode) -> None:
        """Append one episode: its frames, additional data and statistics. Its row is written when the block ends."""
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
        if self._side_files is not None and found is not None:
            self._side_files.add(item, self.episodes, found)
        replaced = {} if made is None else made.columns
        replaced = {**replaced, **self._pixels.count_episode(self.episodes, item, frames)}
        self._rows.append(
            BlockRow(item=item, computed=self._compute_cells(item), statistics=statistics, replacements=replaced)
        )
        self.episodes, self.frames = self.episodes + 1, self.frames + item.length

    def finish(self) -> None:
        """End the current block: close its files, write its episode rows, and check its number of frames."""
        if self._data is None:
            return
        block = len(self.entries)
        self._data.close()
        if self._side_files is not None:
            self._side_files.close()
        table = build_episode_rows(self._rows, self._plan.copied_columns)
        self._pixels.add_rows(table)
        write_groups(self._stage / layout.block_path(layout.EPISODES_PATH, block), table, [len(table)])
        frames = sum(row.item.length for row in self._rows)
        check_row_count(self._stage / layout.block_path(layout.DATA_PATH, block), frames)
        self.entries.append(BlockEntry(block=block, episodes=len(self._rows), frames=frames))
        self._data, self._side_files, self._rows, self._kind = None, None, [], None

    def close_after_failure(self) -> None:
        """Close all open files after a failure."""
        if self._data is not None:
            self._data.close()
        if self._side_files is not None:
            self._side_files.close(whole=False)

    def _open_data_file(self, item: SourceEpisode) -> DataFile:
        """Return the open data file for an episode; first start a new block if this is necessary.

        A new block is necessary if the current one is full, or if the episode has another kind of additional files.
        """
        kind = (*item.source.exact_templates(item.index), "ours" if item.source.has_provenance(item.index) else "")
        held = self._data
        if held is not None and kind == self._kind and len(self._rows) < _MOST_EPISODES and held.bytes <= _MOST_BYTES:
            return held
        self.finish()
        block, self._kind = len(self.entries), kind
        held = self._data = DataFile(self._stage / layout.block_path(layout.DATA_PATH, block), self._plan.frames)
        if kind[-1]:
            self._side_files = BlockSideFiles(self._stage, block, kind[:-1], self._plan.tables)
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
        for key, places in self._plan.video_locations.items():
            place = places[self.episodes]
            made |= {f"videos/{key}/{name}": number for name, number in layout.chunk_and_file(place.file).items()}
            made[f"videos/{key}/from_timestamp"] = place.start_s
            made[f"videos/{key}/to_timestamp"] = place.start_s + item.length / self._plan.fps
        return {**made, **{f"meta/episodes/{name}": number for name, number in where.items()}}
