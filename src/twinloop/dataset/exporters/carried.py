"""What goes from a LeRobot folder into a new one: tasks, frames counted anew, and files that tell of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from twinloop.core.files import dumps
from twinloop.dataset import layout
from twinloop.dataset.edit.frames import placed_frames, remapped_tasks
from twinloop.dataset.exporters.modality import modality
from twinloop.dataset.exporters.source import SourceV3, SourceV21
from twinloop.dataset.parquet import require_columns
from twinloop.dataset.snapshot import replace_bytes


def kept_tasks(source: SourceV3 | SourceV21, episodes: Sequence[int]) -> tuple[list[str], dict[int, int]]:
    """The tasks of some episodes, all of them where all are taken; and the new index of each old one."""
    used = set(range(len(source.tasks)))
    if list(episodes) != list(source.episodes):
        columns = (source.frames(episode, ["task_index"])["task_index"] for episode in episodes)
        used = {index for column in columns for index in column.unique().to_pylist()}
    order = sorted(used & set(range(len(source.tasks))))
    return [source.tasks[index] for index in order], {old: new for new, old in enumerate(order)}


def side_files(source: SourceV3 | SourceV21, stage: Path) -> None:
    """Copy what says something of the whole: unit map, licence, ``modality.json`` (made where there is none)."""
    named = [source.path / name for name in (layout.UNIT_MAP, layout.MODALITY)]
    for path in [*named, *sorted(source.path.glob("LICENSE*"))]:
        if path.is_file() and path.resolve().is_relative_to(source.path.resolve()):
            replace_bytes(stage / path.relative_to(source.path), path.read_bytes())
    if not (stage / layout.MODALITY).exists():
        replace_bytes(stage / layout.MODALITY, (dumps(modality(source.features), indent=2) + "\n").encode())


def renumbered(
    source: SourceV3 | SourceV21, episode: int, *, number: int, start: int, tasks: Mapping[int, int]
) -> pa.Table:
    """An episode's frames as a new dataset counts them.

    Args:
        source: the dataset.
        episode: which of its episodes.
        number: its index in the new dataset.
        start: the new ``index`` of its first frame.
        tasks: the new index of each task.

    Raises:
        DatasetError: a frame names a task that the dataset's list of tasks does not have.
    """
    table, where = source.frames(episode), f"Episode {episode} of {source.path}"
    stored = [key for key, feature in source.features.items() if feature["dtype"] != "video"]
    require_columns(stored, table.column_names, where=where)
    named = dict(enumerate(source.tasks))
    texts = {text: tasks[old] for old, text in named.items() if old in tasks}
    new = remapped_tasks(table, named, texts, where=where)
    return placed_frames(table, table.schema, index=number, start=start, tasks=new, where=where)
