"""The columns of any LeRobot dataset while they are copied: counted anew, as numbers, and their exact statistics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.dataset.parquet import numbers, read_table, stored
from twinloop.dataset.quantiles import streamed_quantiles
from twinloop.dataset.statistics import Moments, column_stats, merge_moments, sorted_quantiles, take_columns

_ROWS_AT_ONCE = 1 << 18  # rows in memory while quantiles are computed, as `metadata`


@dataclass(frozen=True, kw_only=True)
class Numeric:
    """The numeric features of a dataset side by side: which columns of the matrix each has, and its shape."""

    where: Mapping[str, slice]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, keys: Sequence[str], features: Mapping[str, Any]) -> Numeric:
        """The features of those keys, in order."""
        shapes = {key: tuple(features[key].get("shape") or (1,)) for key in keys}
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
        where = {
            key: slice(int(end) - int(np.prod(shape)), int(end))
            for (key, shape), end in zip(shapes.items(), ends, strict=True)
        }
        return cls(where=where, shapes=shapes)

    def matrix(self, table: pa.Table, *, where: str) -> NDArray[np.float64]:
        """All numeric features of an episode's table ``(T, columns)``.

        Raises:
            DatasetError: empty values, no numbers, or another width than the feature's shape.
        """
        return np.hstack([self.matrix_of(key, table, where=where) for key in self.where])

    def shaped(self, key: str, values: NDArray[Any] | Sequence[Any]) -> Any:
        """One statistic of a feature in the feature's own shape, as nested lists."""
        return np.asarray(values).reshape(self.shapes[key]).tolist()

    def matrix_of(self, key: str, table: pa.Table, *, where: str = "") -> NDArray[np.float64]:
        """One feature ``(T, width)``; raises as `matrix`."""
        column = table[key]
        while pa.types.is_nested(column.type) and pa.types.is_nested(column.type.value_type):
            column = _inner_flat(column)
        values = numbers(column, where=f"{where}: {key}").reshape(table.num_rows, -1)
        width = self.where[key].stop - self.where[key].start
        if values.shape[1] != width:
            raise DatasetError(
                f"{where}: {key} has {values.shape[1]} values a frame; its shape {list(self.shapes[key])} in "
                "meta/info.json means another number. Correct the metadata."
            )
        return values


def _inner_flat(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Lists of lists as lists, one level less."""
    rows = [np.asarray(row.as_py()).reshape(-1).tolist() for row in column]
    return pa.chunked_array([pa.array(rows)])


def renumbered(table: pa.Table, *, episode: int, start: int, tasks: Mapping[int, int]) -> pa.Table:
    """An episode's table as a new dataset counts it: its episode, frames from ``start`` on, tasks by their new index.

    Raises:
        DatasetError: a task index that the dataset's list of tasks does not have.
    """
    length = table.num_rows
    old = table["task_index"].to_pylist()
    if unknown := sorted(set(old) - set(tasks)):
        raise DatasetError(f"Episode {episode}: task_index {unknown[0]} is in no list of tasks. Restore meta/tasks.")
    values = {
        "episode_index": np.full(length, episode),
        "index": start + np.arange(length),
        "task_index": np.array([tasks[index] for index in old]),
    }
    for name, column in values.items():
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        table = table.set_column(at, field, pa.array(column.astype(np.int64)).cast(field.type))
    return table


def described(schema: pa.Schema, *, lists: str) -> pa.Schema:
    """A schema whose note for the ``datasets`` library names vectors as that library's version does.

    Args:
        lists: ``"List"`` since its version 4, ``"Sequence"`` before, which LeRobot v2.1 is read with.
    """
    note = (schema.metadata or {}).get(b"huggingface")
    if note is None:
        return schema.remove_metadata()
    return schema.with_metadata({b"huggingface": json.dumps(_lists(json.loads(note), lists)).encode()})


def _lists(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        plain = {key: _lists(item, name) for key, item in value.items()}
        return {**plain, "_type": name} if plain.get("_type") in ("List", "Sequence") else plain
    return [_lists(item, name) for item in value] if isinstance(value, list) else value


def dataset_statistics(numeric: Numeric, moments: Sequence[Moments], files: Sequence[Path]) -> dict[str, Any]:
    """``stats.json`` of the numeric features: exact, quantiles included.

    Args:
        numeric: the features.
        moments: of each episode.
        files: the data files, from which quantiles are computed in two passes; a feature whose values cannot be
            counted in passes (float64, negative whole numbers) is held whole.
    """
    total = merge_moments(moments)
    streamed = [key for key in numeric.where if _streams(files[0], key, take_columns(total, numeric.where[key]))]
    levels = streamed_quantiles(_chunks(files, streamed), total.count) if streamed else {}
    for key in numeric.where:
        if key not in levels:
            values = np.vstack([numeric.matrix_of(key, read_table(file, [key])) for file in files])
            levels[key] = sorted_quantiles(np.sort(values, axis=0))
    stats: dict[str, Any] = {}
    for key, where in numeric.where.items():
        row = column_stats(take_columns(total, where), levels[key])
        stats[key] = {name: value if name == "count" else numeric.shaped(key, value) for name, value in row.items()}
    return stats


def _streams(file: Path, key: str, moments: Moments) -> bool:
    type_ = read_table(file, [key]).schema.field(key).type
    if pa.types.is_nested(type_):
        type_ = type_.value_type
    if pa.types.is_integer(type_):
        return bool(moments.low.min() >= 0 and moments.high.max() < 2**32)
    return pa.types.is_float32(type_) or pa.types.is_boolean(type_)


def _chunks(files: Sequence[Path], keys: Sequence[str]) -> Callable[[], Iterator[dict[str, NDArray[Any]]]]:
    def chunks() -> Iterator[dict[str, NDArray[Any]]]:
        for file in files:
            table = read_table(file, keys)
            for start in range(0, table.num_rows, _ROWS_AT_ONCE):
                part = table.slice(start, _ROWS_AT_ONCE)
                yield {key: stored(part[key]) for key in keys}

    return chunks
