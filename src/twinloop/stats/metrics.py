"""Errors of predicted trajectories, per channel."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def mae(predicted: ArrayLike, measured: ArrayLike) -> NDArray[np.float64]:
    """Mean absolute error over all axes but the last, ``(nchannel,)``; frames that are NaN in either do not count."""
    return np.nanmean(_flat(np.abs(np.asarray(predicted) - np.asarray(measured))), axis=0)


def rmse(predicted: ArrayLike, measured: ArrayLike) -> NDArray[np.float64]:
    """Root mean square error over all axes but the last, ``(nchannel,)``; NaN frames do not count."""
    return np.sqrt(np.nanmean(_flat((np.asarray(predicted) - np.asarray(measured)) ** 2), axis=0))


def skill(error: ArrayLike, baseline: ArrayLike) -> NDArray[np.float64]:
    """1 − error / baseline: 1 is perfect, 0 as good as the baseline, negative worse; NaN where the baseline is 0."""
    error, baseline = np.asarray(error, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    shape = np.broadcast_shapes(error.shape, baseline.shape)
    ratio = np.divide(error, baseline, out=np.full(shape, np.nan), where=baseline != 0)
    return 1.0 - ratio


def _flat(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values.reshape(-1, values.shape[-1])
