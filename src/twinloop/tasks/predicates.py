"""Evaluate conditions on recorded states, over worlds and time; tasks combine them into success."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def in_disc(position: NDArray[np.float64], centre: NDArray[np.float64], radius: float) -> NDArray[np.bool_]:
    """Return whether points are above a disc: horizontal distance of ``(…, 3)`` to ``(…, 3)`` at most ``radius``."""
    offset = position[..., :2] - centre[..., :2]
    return offset[..., 0] ** 2 + offset[..., 1] ** 2 <= radius**2


def above_plane(
    position: NDArray[np.float64], point: NDArray[np.float64], quaternion: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return heights of points ``(…, 3)`` above the plane through ``point`` normal to z of ``quaternion`` (wxyz)."""
    w, x, y, z = np.moveaxis(quaternion, -1, 0)
    offset = position - point
    normal = (2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y))
    return normal[0] * offset[..., 0] + normal[1] * offset[..., 1] + normal[2] * offset[..., 2]


def slower_than(velocity: NDArray[np.float64], linear: float, angular: float) -> NDArray[np.bool_]:
    """Return whether free bodies with velocities ``(…, 6)`` (m/s, rad/s) move slower than both limits."""
    speed, spin = (np.sqrt((velocity[..., part] ** 2).sum(axis=-1)) for part in (slice(0, 3), slice(3, 6)))
    return (speed < linear) & (spin < angular)


def held_for(condition: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """Return a mask ``(nworld, time)``: the condition was true at this and the previous ``count − 1`` times."""
    total = np.cumsum(condition, axis=1)
    before = np.zeros_like(total)
    before[:, count:] = total[:, :-count]
    return total - before == count


def occurred_before(condition: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask ``(nworld, time)``: the condition is true at this or was at an earlier time."""
    return np.logical_or.accumulate(condition, axis=1)


def running_maximum(share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running maximum over time of a share ``(nworld, time)``, clipped to [0, 1]."""
    return np.maximum.accumulate(np.clip(share, 0.0, 1.0), axis=1)
