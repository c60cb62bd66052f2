"""Which commands a joint can be given next without breaking a limit now or later, in closed form.

Commands come once per control period; a command's speed is its distance from the one before over the period. A command
is allowed if it lies in the range, if its speed and the change of its speed are within limits, and if the joint can
still come to rest within the range from there, braking as hard as the acceleration allows. What is allowed at one step
therefore leaves something allowed at the next, without end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import frozen

Array = NDArray[np.float64]
LONGEST_STOP = 32  # poses of a stopping path that are kept; a longer one is thinned evenly, its end included


@dataclass(frozen=True, kw_only=True)
class JointLimits:
    """Range, speed and acceleration of commands, ``(n,)`` each in SI units, and the control period ``dt`` in s."""

    low: Array
    high: Array
    speed: Array
    acceleration: Array
    dt: float

    def __post_init__(self) -> None:
        for name in ("low", "high", "speed", "acceleration"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @property
    def brake(self) -> Array:
        """How much the speed may change from one command to the next, ``(n,)``."""
        return self.acceleration * self.dt


@dataclass(frozen=True, kw_only=True)
class Window:
    """The commands ``(…, n)`` from ``low`` to ``high`` that are allowed next, and which limit each end comes from."""

    low: Array
    high: Array
    low_rule: NDArray[np.str_]
    high_rule: NDArray[np.str_]


def window(position: Array, velocity: Array, limits: JointLimits) -> Window:
    """What may be commanded next, given the last command and its speed, ``(…, n)`` each.

    A joint that stands outside its range, because a person put it there, may move further in and not further out.
    """
    high, high_rule = _end(position, velocity, limits.high - position, limits)
    low, low_rule = _end(-position, -velocity, position - limits.low, limits)
    high = np.minimum(high, np.maximum(limits.high, position))
    low = np.minimum(np.maximum(-low, np.minimum(limits.low, position)), high)
    return Window(low=low, high=high, low_rule=low_rule, high_rule=high_rule)


def fastest_towards(distance: Array, limits: JointLimits) -> Array:
    """The highest speed now, ``(…, n)``, from which a joint still comes to rest within ``distance`` (0 or more).

    A command at speed v and those that brake by ``b = acceleration · dt`` each cover
    ``dt · (v + (v − b) + (v − 2b) + …)``. With m whole steps of braking, that is
    ``dt · ((m + 1) v − b m (m + 1) / 2)``, and m is the largest whole number with ``b m (m + 1) / 2 ≤ distance / dt``.
    """
    per_step = np.maximum(distance, 0.0) / limits.dt
    brake = np.broadcast_to(limits.brake, per_step.shape)
    bounded = np.isfinite(brake)
    safe = np.where(bounded, brake, 1.0)
    steps = np.where(bounded, np.floor((np.sqrt(1.0 + 8.0 * per_step / safe) - 1.0) / 2.0), 0.0)
    return (per_step + safe * steps * (steps + 1.0) / 2.0) / (steps + 1.0)


def braked(position: Array, velocity: Array, limits: JointLimits) -> tuple[Array, Array]:
    """The next command and its speed when braking as hard as allowed, ``(…, n)`` each."""
    slower = np.sign(velocity) * np.maximum(np.abs(velocity) - limits.brake, 0.0)
    return position + slower * limits.dt, slower


def stopping_path(position: Array, velocity: Array, limits: JointLimits) -> Array:
    """Commands ``(T, n)`` that bring one robot to rest from a command ``(n,)`` and its speed; without that command.

    Every joint brakes as hard as it may. At most `LONGEST_STOP` of them, the last one included.
    """
    ratio = np.divide(np.abs(velocity), limits.brake, out=np.zeros_like(velocity), where=limits.brake > 0.0)
    count = int(np.ceil(ratio.max(initial=0.0))) - 1
    if count < 1:
        return np.empty((0, len(position)))
    left = np.abs(velocity) - np.arange(1, count + 1)[:, None] * limits.brake
    path = position + np.cumsum(np.sign(velocity) * np.maximum(left, 0.0), axis=0) * limits.dt
    if count <= LONGEST_STOP:
        return path
    return path[np.linspace(0, count - 1, LONGEST_STOP).round().astype(np.int64)]


def _end(position: Array, velocity: Array, distance: Array, limits: JointLimits) -> tuple[Array, NDArray[np.str_]]:
    """The furthest allowed command upwards and the limit that says so."""
    faster = velocity + limits.brake
    to_range = fastest_towards(distance, limits)
    speed = np.minimum(np.minimum(faster, limits.speed), to_range)
    rule = np.where(speed == to_range, "range", np.where(speed == limits.speed, "speed", "acceleration"))
    # Beyond what was allowed (by round-off, or because the robot was moved), braking comes as hard as it may.
    return position + np.maximum(speed, velocity - limits.brake) * limits.dt, rule
