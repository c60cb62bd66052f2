"""The blocks of a result, written episode after episode: frames, rows, and what lies beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from twinloop.dataset import layout
from twinloop.dataset.edit.beside import Beside, record, rows_match
from twinloop.dataset.edit.children import Child, child
from twinloop.dataset.edit.frames import DataFile, matrix, placed_frames, remapped_tasks, used_tasks
from twinloop.dataset.edit.item import Item
from twinloop.dataset.edit.pixels import PixelCounts
from twinloop.dataset.edit.rows import Row, block_rows
from twinloop.dataset.edit.totals import Totals
from twinloop.dataset.edit.videos import Place
from twinloop.dataset.parquet import write_groups
from twinloop.dataset.progress import BlockEntry

_MOST_EPISODES = 64  # of a block, as the writer's; what lies beside is found by its place in the block
_MOST_BYTES = 100_000_000  # of a data file, as LeRobot's data_files_size_in_mb


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all blocks of a result share.

    ``frames``: columns of the data files; ``carried``: columns of the episode table that come from the sources;
    ``tables``: side tables; ``places``: where each episode's pictures are, by video feature.
    """

    frames: pa.Schema
    carried: pa.Schema
    tables: Mapping[str, pa.Schema]
    places: Mapping[str, Sequence[Place]]
    fps: float


class Blocks:
    """Writes one block after the other; a block ends where it is full, or where episodes of another kind follow.

    Episodes of one kind have the same files beside them: a block of simulated ones has states, one of recorded ones has
    logs, and one of another program's has nothing.
    """

    def __init__(self, stage: Path, plan: Plan, totals: Totals, pixels: PixelCounts) -> None:
        self._stage, self._plan, self._totals, self._pixels = stage, plan, totals, pixels
        self._kind: tuple[str, ...] | None = None
        self._data: DataFile | None = None
        self._beside: Beside | None = None
        self._rows: list[Row] = []
        self.tasks: dict[str, int] = {}
        self.entries: list[BlockEntry] = []
        self.episodes = self.frames = 0

    @property
    def paths(self) -> list[Path]:
        """The data files that were written."""
        return [self._stage / layout.of_block(layout.DATA_PATH, entry.block) for entry in self.entries]

    def add(self, item: Item) -> None:
        """Write one episode after those before it."""
        data = self._prepare(item)
        frames = item.source.frames(item.index)
        tasks = self._tasks(item, frames)
        placed = placed_frames(
            frames, self._plan.frames, index=self.episodes, start=self.frames, tasks=tasks, where=item.where
        )
        statistics = self._totals.add(matrix(placed, self._totals.widths, where=item.where))
        data.add(placed)
        found = record(item)
        made: Child | None = None
        if item.transforms:
            made = child(item, found, item.source.name_of(item.index), frames)
            found = made.provenance
        if self._beside is not None and found is not None:
            self._beside.add(item, self.episodes, found)
        replaced = {} if made is None else made.columns
        replaced = {**replaced, **self._pixels.of(self.episodes, item, frames)}
        self._rows.append(Row(item=item, made=self._made(item), statistics=statistics, replaced=replaced))
        self.episodes, self.frames = self.episodes + 1, self.frames + item.length

    def finish(self) -> None:
        """Write what makes the last block whole."""
        if self._data is None:
            return
        block = len(self.entries)
        self._data.close()
        if self._beside is not None:
            self._beside.close()
        table = block_rows(self._rows, self._plan.carried)
        self._pixels.pool(table)
        write_groups(self._stage / layout.of_block(layout.EPISODES_PATH, block), table, [len(table)])
        frames = sum(row.item.length for row in self._rows)
        rows_match(self._stage / layout.of_block(layout.DATA_PATH, block), frames)
        self.entries.append(BlockEntry(block=block, episodes=len(self._rows), frames=frames))
        self._data, self._beside, self._rows, self._kind = None, None, [], None

    def abandon(self) -> None:
        """Free what is open after a failure."""
        if self._data is not None:
            self._data.close()
        if self._beside is not None:
            self._beside.close(whole=False)

    def _prepare(self, item: Item) -> DataFile:
        """The open block's data file, of a new block where the last is full or holds episodes of another kind."""
        kind = (*item.source.exact(item.index), "ours" if item.source.kept(item.index) else "")
        held = self._data
        if held is not None and kind == self._kind and len(self._rows) < _MOST_EPISODES and held.bytes <= _MOST_BYTES:
            return held
        self.finish()
        block, self._kind = len(self.entries), kind
        held = self._data = DataFile(self._stage / layout.of_block(layout.DATA_PATH, block), self._plan.frames)
        if kind[-1]:
            self._beside = Beside(self._stage, block, kind[:-1], self._plan.tables)
        return held

    def _tasks(self, item: Item, frames: pa.Table) -> Any:
        """The new ``task_index`` of each frame; texts are numbered in order of first appearance."""
        names = {number: item.texts.get(text, text) for number, text in item.source.tasks.items()}
        for old in used_tasks(frames):
            if old in names:
                self.tasks.setdefault(names[old], len(self.tasks))
        return remapped_tasks(frames, names, self.tasks, where=item.where)

    def _made(self, item: Item) -> dict[str, Any]:
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
