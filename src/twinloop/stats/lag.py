"""The delay between two recordings, found by trying."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.stats.metrics import mae


def delayed(series: ArrayLike, lag: ArrayLike) -> NDArray[np.float64]:
    """``series`` ``(…, nframe, n)`` seen ``lag`` frames later (``(n,)``, may be fractional: linear in between).

    Before its beginning the series held its first value.
    """
    values = np.asarray(series, dtype=np.float64)
    nframe, n = values.shape[-2:]
    position = np.arange(nframe)[:, None] - np.broadcast_to(np.asarray(lag, dtype=np.float64), (n,))
    lower = np.floor(position)
    fraction = position - lower
    at_lower = np.clip(lower, 0, nframe - 1).astype(np.intp)
    at_upper = np.clip(lower + 1, 0, nframe - 1).astype(np.intp)
    channel = np.arange(n)
    return (1 - fraction) * values[..., at_lower, channel] + fraction * values[..., at_upper, channel]


def best_lag(
    inputs: ArrayLike, outputs: ArrayLike, *, longest: float = 15.0, step: float = 0.25
) -> NDArray[np.float64]:
    """The lag in frames, per channel, at which delayed ``inputs`` resemble ``outputs`` most (mean absolute error).

    Both are ``(nepisode, nframe, n)``; frames of ``outputs`` that are NaN do not count. Grid of ``step`` frames up to
    ``longest``; of equal lags the shortest.
    """
    inputs, outputs = np.asarray(inputs, dtype=np.float64), np.asarray(outputs, dtype=np.float64)
    grid = np.arange(0.0, min(longest, inputs.shape[1] - 1) + step / 2, step)
    errors = np.array([mae(delayed(inputs, lag), outputs) for lag in grid])
    return grid[np.argmin(errors, axis=0)]
