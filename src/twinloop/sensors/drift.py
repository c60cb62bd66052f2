"""Errors that wander: random walks, and the flat bottom of an Allan deviation."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.sensors.filters import decaying_sum

# Correlation times of the processes that make up flicker noise, in s. One per decade gives a power density that stays
# within 7 % of 1/f, and an Allan deviation within 4 % of flat, from 0.02 s to 500 s, as
# tests/sensors/test_sensors_imu.py shows.
FLICKER_TIMES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
# Ratio of the bottom of an Allan deviation to IEEE 952's bias instability B: √(2 ln 2/π).
ALLAN_FLOOR = math.sqrt(2.0 * math.log(2.0) / math.pi)


def random_walk(normals: ArrayLike, period: ArrayLike, coefficient: ArrayLike) -> NDArray[np.float64]:
    """A random walk from 0 whose variance grows by coefficient² each second.

    Args:
        normals: independent standard normal numbers ``(…, n, k)``; the first of them moves nothing.
        period: between samples in s, and ``coefficient`` in units/√s, of the shape before ``n`` or numbers.
    """
    steps = np.array(normals, dtype=np.float64)
    scale = np.asarray(coefficient, dtype=np.float64) * np.sqrt(np.asarray(period, dtype=np.float64))
    steps[..., 0, :] = 0.0
    return np.cumsum(steps * np.broadcast_to(scale, steps.shape[:-2])[..., None, None], axis=-2)


def flicker(normals: ArrayLike, period: ArrayLike, instability: ArrayLike) -> NDArray[np.float64]:
    """Flicker noise of bias instability B (IEEE 952): power density B²/2πf, Allan deviation 0.664 B, flat.

    It is a sum of independent first-order Gauss–Markov processes with correlation times a factor r apart and equal
    variances B² ln r/π: their densities 2σ²τ/(1 + (2πfτ)²) then add up to B²/2πf. They begin in their steady state.

    Args:
        normals: independent standard normal numbers ``(…, n, k, len(FLICKER_TIMES))``.
        period: between samples in s, and ``instability`` B in the signal's unit, of the shape before ``n`` or numbers.

    Returns:
        ``(…, n, k)``.
    """
    numbers = np.asarray(normals, dtype=np.float64)
    shape = numbers.shape[:-3]
    level = np.broadcast_to(np.asarray(instability, dtype=np.float64), shape)
    if not np.any(level > 0.0):
        return np.zeros(numbers.shape[:-1])
    spacing = np.broadcast_to(np.asarray(period, dtype=np.float64), shape)
    ratio = FLICKER_TIMES[1] / FLICKER_TIMES[0]
    deviation = level * math.sqrt(math.log(ratio) / math.pi)
    result = np.zeros(numbers.shape[:-1])
    for i, time in enumerate(FLICKER_TIMES):
        decay = np.exp(-spacing / time)
        fresh = np.sqrt(1.0 - decay * decay)[..., None, None] * numbers[..., i]
        fresh[..., 0, :] = numbers[..., 0, :, i]
        result += decaying_sum(fresh, decay)
    return result * deviation[..., None, None]
