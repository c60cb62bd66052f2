"""Chance over pictures: each frame's numbers are its own generator's, whoever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import ndimage
from scipy.special import ndtr


def normal_field(chance: Sequence[Generator], shape: tuple[int, int], correlation: float = 0.0) -> NDArray[np.float64]:
    """Standard normal numbers ``(n, h, w)``, like each other over ``correlation`` px.

    White noise through a Gaussian of standard deviation s has the autocorrelation exp(-r² / 4s²), which is 1/e at
    r = 2s: that r is the correlation length. Pictures are taken as periodic, so that borders are like the middle.
    """
    field = np.stack([generator.standard_normal(shape) for generator in chance])
    if correlation <= 0.0:
        return field
    smooth = ndimage.gaussian_filter(field, correlation / 2.0, mode="wrap", axes=(1, 2), truncate=_TRUNCATE)
    return smooth / _gain(correlation, shape)


def uniform_field(chance: Sequence[Generator], shape: tuple[int, int], correlation: float = 0.0) -> NDArray[np.float64]:
    """Uniform numbers ``(n, h, w)`` from 0 to 1, like each other over ``correlation`` px as in `normal_field`."""
    if correlation > 0.0:
        return ndtr(normal_field(chance, shape, correlation))
    return np.stack([generator.random(shape) for generator in chance])


_TRUNCATE = 3.0  # standard deviations; beyond lies 0.3 % of a Gaussian


@lru_cache(maxsize=32)
def _gain(correlation: float, shape: tuple[int, int]) -> float:
    """Standard deviation of white noise of unit variance behind the filter."""
    impulse = np.zeros(shape)
    impulse[shape[0] // 2, shape[1] // 2] = 1.0
    answer = ndimage.gaussian_filter(impulse, correlation / 2.0, mode="wrap", truncate=_TRUNCATE)
    return float(np.sqrt((answer**2).sum()))


def looked_at(
    depth: NDArray[np.float64], aside: NDArray[np.float64], along: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What pixels see that look ``aside`` columns to the right and ``along`` rows down of where they should, (n, h, w).

    They see one surface or the other, never a mixture.
    """
    count, height, width = depth.shape
    row = np.clip(np.round(np.arange(height)[:, None] + along), 0, height - 1).astype(np.intp)
    column = np.clip(np.round(np.arange(width) + aside), 0, width - 1).astype(np.intp)
    return depth[np.arange(count)[:, None, None], row, column]
