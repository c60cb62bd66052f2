"""The numeric columns of any LeRobot dataset while they are copied, and their exact statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.documents import parse_json
from twinloop.dataset.edit.frames import chunks_of, column_slices, matrix, numeric_features, side_by_side
from twinloop.dataset.quantiles import streamed_quantiles
from twinloop.dataset.statistics import Moments, column_stats, merge_moments, sorted_quantiles, take_columns


@dataclass(frozen=True, kw_only=True)
class Numeric:
    """The numeric features of a dataset: numbers in a frame of each, its columns side by side, and its shape."""

    widths: Mapping[str, int]
    where: Mapping[str, slice]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, features: Mapping[str, Any]) -> Numeric:
        """Those of a table of features."""
        widths = numeric_features(features)
        shapes = {key: tuple(features[key].get("shape") or (1,)) for key in widths}
        return cls(widths=widths, where=column_slices(widths), shapes=shapes)

    def matrix(self, table: pa.Table, *, where: str) -> NDArray[np.float64]:
        """All of an episode's numbers ``(T, columns)``; raises as `edit.frames.matrix`."""
        return side_by_side(matrix(table, self.widths, where=where))

    def episode_stats(self, values: NDArray[np.float64]) -> dict[str, Any]:
        """One episode's statistics by feature, from its `matrix`."""
        return self._stats(Moments.of(values), self._levels(np.sort(values, axis=0)))

    def dataset_stats(self, moments: Sequence[Moments], files: Sequence[Path]) -> dict[str, Any]:
        """``stats.json`` of these features, exact, quantiles included, from two passes over the data files.

        What cannot be counted in passes (float64, negative whole numbers) is held whole.
        """
        total = merge_moments(moments)
        first = next(chunks_of(files[:1], self.widths))
        passing = {
            key: width
            for key, width in self.widths.items()
            if _counted(first[key].dtype, take_columns(total, self.where[key]))
        }
        levels = streamed_quantiles(lambda: chunks_of(files, passing), total.count) if passing else {}
        for key in self.widths.keys() - passing.keys():
            held = np.vstack([part[key] for part in chunks_of(files, {key: self.widths[key]})]).astype(np.float64)
            levels[key] = sorted_quantiles(np.sort(held, axis=0))
        return self._stats(total, levels)

    def _levels(self, ordered: NDArray[np.float64]) -> dict[str, dict[str, NDArray[np.float64]]]:
        return {key: sorted_quantiles(ordered[:, where]) for key, where in self.where.items()}

    def _stats(self, moments: Moments, levels: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> dict[str, Any]:
        stats: dict[str, Any] = {}
        for key, where in self.where.items():
            row = column_stats(take_columns(moments, where), levels[key])
            shape = self.shapes[key]
            stats[key] = {k: v if k == "count" else np.reshape(v, shape).tolist() for k, v in row.items()}
        return stats


def described(schema: pa.Schema, *, lists: str) -> pa.Schema:
    """A schema whose note for the ``datasets`` library names vectors as that library's version does.

    Args:
        schema: of an episode's table.
        lists: ``"List"`` since version 4 of the library, ``"Sequence"`` before, which LeRobot v2.1 is read with.
    """
    note = (schema.metadata or {}).get(b"huggingface")
    if note is None:
        return schema.remove_metadata()
    return schema.with_metadata(
        {b"huggingface": json.dumps(_lists(parse_json(note, where="the note of the columns"), lists)).encode()}
    )


def _lists(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        plain = {key: _lists(item, name) for key, item in value.items()}
        return {**plain, "_type": name} if plain.get("_type") in ("List", "Sequence") else plain
    return [_lists(item, name) for item in value] if isinstance(value, list) else value


def _counted(kind: np.dtype[Any], moments: Moments) -> bool:
    """Whether `streamed_quantiles` takes values of that type and range."""
    if kind.kind in "iu":
        return bool(moments.low.min() >= 0 and moments.high.max() < 2**32)
    return kind == np.float32 or kind.kind == "b"
