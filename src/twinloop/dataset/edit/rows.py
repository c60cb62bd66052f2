"""Rows of the episode table of a result: what follows from the new place, and all else as the sources have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from twinloop.dataset.edit.item import Item

_MADE = frozenset({"episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index"})
_MADE_SERIES = ("data/", "videos/", "meta/episodes/")


def is_made(name: str, numeric: Sequence[str]) -> bool:
    """Whether a column is made anew in every edit; ``numeric`` are the features whose statistics are."""
    if name in _MADE or name.startswith(_MADE_SERIES):
        return True
    return name.startswith("stats/") and name.removeprefix("stats/").rpartition("/")[0] in numeric


@dataclass(frozen=True, kw_only=True)
class Row:
    """One episode of a block: its new cells by column, its statistics, and cells that replace the source's."""

    item: Item
    made: Mapping[str, Any]
    statistics: Mapping[str, pa.Array]
    replaced: Mapping[str, Any]


def block_rows(rows: Sequence[Row], carried: pa.Schema) -> pa.Table:
    """The episode rows of one block.

    Args:
        rows: in order.
        carried: the columns that are taken over from the sources, over all of them.
    """
    after = [name for name in rows[0].made if name.startswith("meta/episodes/")]
    columns: dict[str, Any] = {}
    for name in rows[0].made:
        if name not in after:
            columns[name] = _cells(name, [row.made[name] for row in rows])
    for name in rows[0].statistics:
        columns[name] = pa.concat_arrays([row.statistics[name] for row in rows])
    taken = _carried([row.item for row in rows], carried)
    for field in carried:
        values = taken[field.name]
        if any(field.name in row.replaced for row in rows):
            old = values.to_pylist()
            new = [row.replaced.get(field.name, cell) for row, cell in zip(rows, old, strict=True)]
            values = pa.chunked_array([pa.array(new, field.type)])
        columns[field.name] = values
    for name in after:
        columns[name] = _cells(name, [row.made[name] for row in rows])
    return pa.table(columns)


def _cells(name: str, values: Sequence[Any]) -> pa.Array:
    kind = pa.list_(pa.string()) if name == "tasks" else pa.float64() if name.endswith("_timestamp") else pa.int64()
    return pa.array(values, kind)


def _carried(items: Sequence[Item], schema: pa.Schema) -> pa.Table:
    """The sources' cells, empty where a source has no such column."""
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
