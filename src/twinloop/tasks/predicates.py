"""Statements about recorded states, over worlds and time; tasks combine them into success."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def in_disc(position: NDArray[np.float64], centre: NDArray[np.float64], radius: float) -> NDArray[np.bool_]:
    """Whether points lie over a disc: the horizontal distance of ``(…, 3)`` to ``(…, 3)`` is at most ``radius``."""
    offset = position[..., :2] - centre[..., :2]
    return offset[..., 0] ** 2 + offset[..., 1] ** 2 <= radius**2


def slower_than(velocity: NDArray[np.float64], linear: float, angular: float) -> NDArray[np.bool_]:
    """Whether free bodies with velocities ``(…, 6)`` (m/s, rad/s) move slower than both limits."""
    speed, spin = (np.sqrt((velocity[..., part] ** 2).sum(axis=-1)) for part in (slice(0, 3), slice(3, 6)))
    return (speed < linear) & (spin < angular)


def held_for(condition: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """Where a condition ``(nworld, time)`` has been true at this and the ``count − 1`` moments before."""
    total = np.cumsum(condition, axis=1)
    before = np.zeros_like(total)
    before[:, count:] = total[:, :-count]
    return total - before == count


def ever(condition: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where a condition ``(nworld, time)`` is true now or was at some earlier moment."""
    return np.logical_or.accumulate(condition, axis=1)
