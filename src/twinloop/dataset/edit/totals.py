"""The statistics of a result, exact over all of its frames: from one pass while it is written, two over its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.dataset.edit.frames import chunks_of, column_slices, side_by_side
from twinloop.dataset.episode_statistics import statistics_columns
from twinloop.dataset.progress import CameraSum
from twinloop.dataset.quantiles import streamed_quantiles
from twinloop.dataset.statistics import QUANTILES, Moments, column_stats, image_stats, take_columns

_POOLED = ("min", "max", "mean", "std", "count")


@dataclass(kw_only=True)
class Totals:
    """Sums over the frames that were written so far; ``widths`` are the numeric features and their numbers a frame."""

    widths: Mapping[str, int]
    moments: Moments | None = None
    pictures: dict[str, PooledPictures] = field(default_factory=dict)

    def add(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, pa.Array]:
        """Count one episode in; returns its own ``stats/*`` columns."""
        values = side_by_side(columns)
        own = Moments.of(values)
        self.moments = own if self.moments is None else self.moments.merge(own)
        return statistics_columns(column_slices(self.widths), [values])

    def stats(self, paths: Sequence[Path], features: Mapping[str, Any]) -> dict[str, Any]:
        """The content of ``stats.json``, quantiles counted over the written data files."""
        if self.moments is None:
            return {}
        slices = column_slices(self.widths)
        wide = [name for name, where in slices.items() if self._wide(where) and "int" in features[name]["dtype"]]
        levels = streamed_quantiles(lambda: chunks_of(paths, self.widths), self.moments.count, wide=wide)
        result: dict[str, Any] = {}
        for name, where in slices.items():
            shape = [int(side) for side in features[name].get("shape") or [1]]
            row = column_stats(take_columns(self.moments, where), levels[name])
            result[name] = row if len(shape) < 2 else {k: _shaped(k, v, shape) for k, v in row.items()}
        return {**result, **{key: pooled.stats() for key, pooled in self.pictures.items()}}

    def _wide(self, where: slice) -> bool:
        """Whether numbers lie outside of those that 32 bits can be."""
        return self.moments is not None and (
            self.moments.low[where].min() < 0 or self.moments.high[where].max() >= 2.0**32
        )


def _shaped(name: str, values: list[Any], shape: Sequence[int]) -> list[Any]:
    return values if name == "count" else np.reshape(values, shape).tolist()


@dataclass(kw_only=True)
class PooledPictures:
    """One camera over all episodes.

    Extremes, mean and spread follow exactly from those of the episodes, which were taken of the pictures before they
    were encoded. Quantiles do not: they are counted over pixels.
    """

    moments: Moments | None = None
    pixels: CameraSum | None = None
    complete: bool = True

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one episode in, from its own statistics by name; None where it has none."""
        if any(row.get(name) is None for name in _POOLED):
            self.complete = False
            return
        count = int(np.ravel(row["count"])[0])
        low, high, mean, std = (np.ravel(row[name]).astype(np.float64) for name in _POOLED[:4])
        own = Moments(count=count, low=low, high=high, mean=mean, m2=std**2 * count)
        self.moments = own if self.moments is None else self.moments.merge(own)

    def count(self, histogram: NDArray[np.int64], sampled: int) -> None:
        """Count pixels ``(3, 256)`` of some sampled pictures in."""
        before = self.pixels
        self.pixels = CameraSum(
            sampled=sampled + (before.sampled if before else 0),
            histogram=histogram + (before.histogram if before else 0),
        )

    def stats(self) -> dict[str, Any]:
        """The camera's entry of ``stats.json``."""
        counted = image_stats(self.pixels.histogram, self.pixels.sampled) if self.pixels and self.pixels.sampled else {}
        if self.moments is None or not self.complete:
            return counted
        whole = column_stats(self.moments, {})
        pooled = {name: [[[value]] for value in whole[name]] for name in _POOLED[:4]}
        # Coded pixels may lie beyond those that were there before.
        low, high = self.moments.low, self.moments.high
        inside = {name: np.clip(np.ravel(counted[name]), low, high) for name in QUANTILES if name in counted}
        levels = {name: [[[value]] for value in values.tolist()] for name, values in inside.items()}
        return {**pooled, **levels, "count": whole["count"]}
