"""Evaluate conditions on recorded states, for all worlds and times; tasks combine the conditions into success."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def in_disc(position: NDArray[np.float64], centre: NDArray[np.float64], radius: float) -> NDArray[np.bool_]:
    """Return whether points are above a disc: their horizontal distance from ``centre`` is at most ``radius``.

    Both positions are ``(…, 3)`` in m.
    """
    offset = position[..., :2] - centre[..., :2]
    return offset[..., 0] ** 2 + offset[..., 1] ** 2 <= radius**2


def above_plane(
    position: NDArray[np.float64], point: NDArray[np.float64], quaternion: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the heights ``(…)`` of points ``(…, 3)`` above a plane, in m.

    The plane contains ``point``. Its normal is the z axis of the frame with orientation ``quaternion`` (wxyz).
    """
    w, x, y, z = np.moveaxis(quaternion, -1, 0)
    offset = position - point
    normal = (2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y))
    return normal[0] * offset[..., 0] + normal[1] * offset[..., 1] + normal[2] * offset[..., 2]


def slower_than(velocity: NDArray[np.float64], linear: float, angular: float) -> NDArray[np.bool_]:
    """Return whether free bodies move slower than two limits, linear in m/s and angular in rad/s.

    ``velocity`` ``(…, 6)`` is linear, then angular.
    """
    speed, spin = (np.sqrt((velocity[..., part] ** 2).sum(axis=-1)) for part in (slice(0, 3), slice(3, 6)))
    return (speed < linear) & (spin < angular)


def held_for(condition: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """Return a mask ``(nworld, time)``, true where the condition holds now and at the previous ``count − 1`` times."""
    total = np.cumsum(condition, axis=1)
    before = np.zeros_like(total)
    before[:, count:] = total[:, :-count]
    return total - before == count


def count_streak(condition: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return at how many times up to each one, without a break, the condition holds, ``(nworld, time)``."""
    count = np.arange(1, condition.shape[1] + 1)
    return count - np.maximum.accumulate(np.where(condition, 0, count), axis=1)


def occurred_before(condition: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask ``(nworld, time)`` that is true from the first time on at which the condition holds."""
    return np.logical_or.accumulate(condition, axis=1)


def running_maximum(share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running maximum over time of ``share`` ``(nworld, time)``, clipped to [0, 1]."""
    return np.maximum.accumulate(np.clip(share, 0.0, 1.0), axis=1)
