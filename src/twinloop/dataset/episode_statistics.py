"""Statistics of every episode of a block at once, as the columns of LeRobot's episode table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.dataset.statistics import QUANTILES, sorted_quantiles

_MOMENTS = ("min", "max", "mean", "std")


def statistics_columns(features: Mapping[str, slice], matrices: Sequence[NDArray[np.float64]]) -> dict[str, pa.Array]:
    """The ``stats/*`` columns of the episode table; equally long episodes are computed together.

    Args:
        features: which columns of the matrices belong to which feature.
        matrices: `tables.frame_matrix` of each episode.
    """
    lengths = np.array([len(matrix) for matrix in matrices])
    values = {name: np.empty((len(matrices), matrices[0].shape[1])) for name in (*_MOMENTS, *QUANTILES)}
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        for name, rows in _statistics(np.stack([matrices[int(i)] for i in same])).items():
            values[name][same] = rows
    columns: dict[str, pa.Array] = {}
    for feature, where in features.items():
        for name in _MOMENTS:
            columns[f"stats/{feature}/{name}"] = _rows(values[name][:, where])
        columns[f"stats/{feature}/count"] = _rows(lengths[:, None])
        for name in QUANTILES:
            columns[f"stats/{feature}/{name}"] = _rows(values[name][:, where])
    return columns


def _statistics(episodes: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """What `column_stats` says of each of ``(n, T, columns)``, as ``(n, columns)`` by name."""
    mean = episodes.mean(axis=1)
    squares = ((episodes - mean[:, None]) ** 2).sum(axis=1)
    return {
        "min": episodes.min(axis=1),
        "max": episodes.max(axis=1),
        "mean": mean,
        "std": np.sqrt(squares / episodes.shape[1]),
        **sorted_quantiles(np.sort(episodes, axis=1).swapaxes(0, 1)),
    }


def _rows(values: NDArray[Any]) -> pa.ListArray:
    """Rows ``(n, width)`` as lists."""
    count, width = values.shape
    offsets = np.arange(0, count * width + 1, width, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(values).reshape(-1)))
