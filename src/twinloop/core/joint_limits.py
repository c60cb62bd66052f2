"""Compute the commands after which joints can still stop within their limits of range, speed and acceleration.

Commands are issued once per control period. The speed of a command is its distance from the previous command divided by
the period. A command is allowed if it is within the range, if its speed and its change of speed are within the limits,
and if the joint can still stop within the range by braking with the highest allowed acceleration. After an allowed
command, another command is therefore always allowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import freeze_fields

Array = NDArray[np.float64]
LONGEST_STOP = 32  # poses of a stopping path that are kept; a longer one is thinned evenly, its end included


@dataclass(frozen=True, kw_only=True)
class JointLimits:
    """Limits of the commands of n joints, each of shape ``(n,)`` in SI units.

    Attributes:
        low: lower bound of the position.
        high: upper bound of the position.
        speed: largest speed.
        acceleration: largest acceleration.
        dt: control period in s.
    """

    low: Array
    high: Array
    speed: Array
    acceleration: Array
    dt: float

    def __post_init__(self) -> None:
        freeze_fields(self, "low", "high", "speed", "acceleration")

    @property
    def max_speed_change(self) -> Array:
        """Largest change of speed from one command to the next, shape ``(n,)``."""
        return self.acceleration * self.dt


@dataclass(frozen=True, kw_only=True)
class CommandWindow:
    """Interval of the allowed next commands of n joints, each of shape ``(…, n)``.

    Attributes:
        low: lower bound, in SI units.
        high: upper bound, in SI units.
        low_rule: limit that determines the lower bound: ``range``, ``speed`` or ``acceleration``.
        high_rule: limit that determines the upper bound.
    """

    low: Array
    high: Array
    low_rule: NDArray[np.str_]
    high_rule: NDArray[np.str_]


def compute_window(position: Array, velocity: Array, limits: JointLimits) -> CommandWindow:
    """Return the interval of allowed next commands.

    A joint outside its range, for example after a person moved it, may move towards the range but not away from it.

    Args:
        position: last command, shape ``(…, n)`` for n joints, in SI units.
        velocity: speed of the last command, shape ``(…, n)``.
        limits: limits of range, speed and acceleration of the joints.
    """
    high, high_rule = _compute_window_end(position, velocity, limits.high - position, limits)
    low, low_rule = _compute_window_end(-position, -velocity, position - limits.low, limits)
    high = np.minimum(high, np.maximum(limits.high, position))
    low = np.minimum(np.maximum(-low, np.minimum(limits.low, position)), high)
    return CommandWindow(low=low, high=high, low_rule=low_rule, high_rule=high_rule)


def compute_stoppable_speed(distance: Array, limits: JointLimits) -> Array:
    """Return the highest speed, shape ``(…, n)``, from which a joint still stops within a distance.

    A command at speed v and the following commands, which brake by ``b = acceleration · dt`` each, cover ``dt · (v + (v
    − b) + (v − 2b) + …)``. With m whole steps of braking, that is ``dt · ((m + 1) v − b m (m + 1) / 2)``, and m is the
    largest whole number with ``b m (m + 1) / 2 ≤ distance / dt``.

    Args:
        distance: distance to the end of the range in SI units, shape ``(…, n)``; negative counts as 0.
    """
    per_step = np.maximum(distance, 0.0) / limits.dt
    brake = np.broadcast_to(limits.max_speed_change, per_step.shape)
    bounded = np.isfinite(brake)
    safe = np.where(bounded, brake, 1.0)
    steps = np.where(bounded, np.floor((np.sqrt(1.0 + 8.0 * per_step / safe) - 1.0) / 2.0), 0.0)
    return (per_step + safe * steps * (steps + 1.0) / 2.0) / (steps + 1.0)


def compute_braking_step(position: Array, velocity: Array, limits: JointLimits) -> tuple[Array, Array]:
    """Return the next command and its speed with the hardest allowed braking, shape ``(…, n)`` each.

    Args:
        position: last command, shape ``(…, n)`` for n joints, in SI units.
        velocity: speed of the last command, shape ``(…, n)``.
    """
    slower = np.sign(velocity) * np.maximum(np.abs(velocity) - limits.max_speed_change, 0.0)
    return position + slower * limits.dt, slower


def compute_stopping_path(position: Array, velocity: Array, limits: JointLimits) -> Array:
    """Return the commands with which every joint brakes to rest as hard as allowed, shape ``(T, n)`` for T steps.

    If there are more than `LONGEST_STOP` (32) commands, evenly spaced ones are returned, including the last.

    Args:
        position: last command, shape ``(n,)``, in SI units.
        velocity: speed of the last command, shape ``(n,)``.
    """
    ratio = np.divide(
        np.abs(velocity), limits.max_speed_change, out=np.zeros_like(velocity), where=limits.max_speed_change > 0.0
    )
    count = int(np.ceil(ratio.max(initial=0.0))) - 1
    if count < 1:
        return np.empty((0, len(position)))
    left = np.abs(velocity) - np.arange(1, count + 1)[:, None] * limits.max_speed_change
    path = position + np.cumsum(np.sign(velocity) * np.maximum(left, 0.0), axis=0) * limits.dt
    if count <= LONGEST_STOP:
        return path
    return path[np.linspace(0, count - 1, LONGEST_STOP).round().astype(np.int64)]


def _compute_window_end(
    position: Array, velocity: Array, distance: Array, limits: JointLimits
) -> tuple[Array, NDArray[np.str_]]:
    """Return the upper end of the interval of allowed next commands, and the name of the limit that determines it.

    Args:
        position: last command, shape ``(…, n)``, in SI units.
        velocity: speed of the last command, shape ``(…, n)``.
        distance: distance to the upper end of the range, shape ``(…, n)``.
        limits: limits of speed, acceleration and range of the joints.
    """
    faster = velocity + limits.max_speed_change
    to_range = compute_stoppable_speed(distance, limits)
    speed = np.minimum(np.minimum(faster, limits.speed), to_range)
    rule = np.where(speed == to_range, "range", np.where(speed == limits.speed, "speed", "acceleration"))
    # Outside the limits (by round-off, or because the robot was moved), the joint brakes as hard as allowed.
    return position + np.maximum(speed, velocity - limits.max_speed_change) * limits.dt, rule
