"""What joints and bodies are doing in a recording, told from positions alone: speeds, reversals, standstill."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.signal import savgol_coeffs, savgol_filter

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Standard deviation of third differences of white noise over its own: √(1 + 9 + 9 + 1).
_THIRD = np.sqrt(20.0)
_MAD = 1.4826  # median absolute deviation to standard deviation, of a normal distribution
_ORDER = 2  # parabolas: speeds of accelerated motion are unbiased


def speeds(position: Array, hz: float, span: float) -> tuple[Array, Array]:
    """Speeds by Savitzky and Golay's parabolas over ``span`` s, and the standard deviation of their noise.

    Args:
        position: ``(nwindow, nframe, n)``, NaN where nothing was measured.
        hz: frames per second.
        span: length of the parabolas in s; at least five frames, fewer where a window has fewer.

    Returns:
        Speeds of the same shape per s, NaN within half a span of a gap, and ``(n,)``. The first and last half span of a
        window have the speed beside them.
    """
    width = max(5, 2 * int(span * hz / 2) + 1)
    found = np.full_like(position, np.nan)
    seen = np.any(~np.isnan(position), axis=-1)
    ends = np.where(np.any(seen, axis=1), position.shape[1] - np.argmax(seen[:, ::-1], axis=1), 0)
    for end in np.unique(ends[ends > 1]):
        rows = ends == end
        part = position[rows, :end]
        here = min(width, end - (1 - end % 2))
        if here > _ORDER:
            fitted = savgol_filter(part, here, _ORDER, deriv=1, delta=1.0 / hz, axis=1)
            inner = np.clip(np.arange(end), here // 2, end - 1 - here // 2)
            found[rows, :end] = fitted[:, inner]  # a parabola's end is several times as uncertain as its middle
        else:
            found[rows, :end] = np.gradient(part, 1.0 / hz, axis=1)
    gain = np.linalg.norm(savgol_coeffs(width, _ORDER, deriv=1, delta=1.0 / hz))
    return found, gain * reading_noise(position)


def reading_noise(position: Array) -> Array:
    """Standard deviation of white noise in positions ``(nwindow, nframe, n)``, ``(n,)``, from third differences.

    Their median is hardly moved by motion, which is smooth. It is never below the rounding of the readings, whose step
    is the smallest change: a still encoder repeats the same count and would seem free of noise.
    """
    n = position.shape[-1]
    noise = np.zeros(n)
    for column in range(n):
        third = np.abs(np.diff(position[..., column], n=3, axis=1))
        steps = np.abs(np.diff(position[..., column], axis=1))
        known, changes = third[~np.isnan(third)], steps[steps > 0]
        noise[column] = _MAD * np.median(known) / _THIRD if len(known) else 0.0
        if len(changes):
            noise[column] = max(noise[column], changes.min() / np.sqrt(12.0))
    return noise


def directions(speed: Array, threshold: ArrayLike) -> NDArray[np.int8]:
    """1 and -1 where something moves faster than a threshold ``(n,)``, 0 where it is still or unknown."""
    moving = np.abs(np.nan_to_num(speed)) > np.asarray(threshold)
    return np.where(moving, np.sign(np.nan_to_num(speed)), 0.0).astype(np.int8)


def reversals(direction: NDArray[np.int8]) -> Mask:
    """First frames at which motion goes the other way than it last went, ``(nwindow, nframe, n)``."""
    last = _before(direction)
    return (direction != 0) & (last != 0) & (direction != last)


def breakaways(direction: NDArray[np.int8], rest: int) -> Mask:
    """First frames of motion after at least ``rest`` frames without, ``(nwindow, nframe, n)``."""
    still = np.cumsum(direction == 0, axis=1, dtype=np.int64)
    waited = np.zeros(direction.shape, dtype=bool)
    if direction.shape[1] > rest:
        waited[:, rest] = still[:, rest - 1] == rest
        waited[:, rest + 1 :] = still[:, rest:-1] - still[:, : -rest - 1] == rest
    return waited & (direction != 0)


def onsets(mask: Mask) -> Mask:
    """Frames at which a mask begins to hold; the first frame of a window is no beginning."""
    begun = np.zeros_like(mask)
    begun[:, 1:] = mask[:, 1:] & ~mask[:, :-1]
    return begun


def about(mask: Mask, before: int, after: int) -> Mask:
    """Frames from ``before`` frames before one that is marked until ``after`` frames after it."""
    nframe = mask.shape[1]
    count = np.concatenate([np.zeros_like(mask[:, :1], dtype=np.int64), np.cumsum(mask, axis=1)], axis=1)
    at = np.arange(nframe)
    last, first = np.minimum(at + before + 1, nframe), np.maximum(at - after, 0)
    return count[:, last] > count[:, first]


def turning_rates(quaternion: Array, hz: float) -> Array:
    """Angular speed ``(nwindow, nframe)`` in rad/s of orientations ``(nwindow, nframe, 4)``, wxyz, by differences."""
    dot = np.abs(np.sum(quaternion[:, 1:] * quaternion[:, :-1], axis=-1))
    angle = 2.0 * np.arccos(np.minimum(dot, 1.0)) * hz
    return np.concatenate([angle[:, :1], angle], axis=1)


def _before(direction: NDArray[np.int8]) -> NDArray[np.int8]:
    """The last direction other than 0 before each frame; 0 where there was none."""
    frame = np.where(direction != 0, np.arange(direction.shape[1])[None, :, None], -1)
    newest = np.maximum.accumulate(frame, axis=1)
    newest = np.concatenate([np.full_like(newest[:, :1], -1), newest[:, :-1]], axis=1)
    last = np.take_along_axis(direction, np.maximum(newest, 0), axis=1)
    return np.where(newest >= 0, last, 0).astype(np.int8)
