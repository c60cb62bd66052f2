"""Read the answers of a robot's driver, which is the user's code, and detect impossible values."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Share of a joint's range by which a driver's returned command may differ from the given one without clipping: the
# error of a manual calibration. A servo's ticks are 0.05 %.
COMMAND_SLACK = 0.02
READING_SLACK = 0.02  # share of a joint's range: backlash, noise, and an encoder's steps
OUTSIDE = 0.25  # share of a joint's range beyond its ends: more than this cannot be a calibration error


def to_float(value: Any) -> float:
    """Return a driver's value as a float.

    Raises:
        TypeError: If the value is not a number; booleans, strings and arrays with axes are rejected.
        OverflowError: If an integer is too large for a float.
    """
    if getattr(value, "shape", None) == ():  # a scalar of numpy or of another array library
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{type(value).__name__} is not a number")
    return float(value)


def joint_values(answer: Mapping[str, Any], keys: Sequence[str]) -> Array:
    """Return the values of the given keys in a driver's answer, ``(n,)``.

    Raises:
        TypeError, OverflowError: If `to_float` rejects a value.
        KeyError: If a key is missing.
    """
    return np.array([to_float(answer[key]) for key in keys], dtype=np.float64)


def find_misreported_joint(returned: Array, possible: Sequence[Array], slack: Array) -> int | None:
    """Return the index of the first joint whose command cannot have been sent as the driver reports it, or None.

    A robot's own limits may shorten a command. The sent command is then between the smallest and the largest of the
    given command, the previous command and the current reading.

    Args:
        returned: the sent command as the driver reports it, ``(n,)``.
        possible: the commands and positions ``(n,)`` between which the sent command must be.
        slack: allowed distance beyond them, ``(n,)``.
    """
    low, high = np.min(possible, axis=0) - slack, np.max(possible, axis=0) + slack
    return _first_index(~((returned >= low) & (returned <= high)))  # NaN is wrong


def find_out_of_range_joint(reading: Array, low: Array, high: Array) -> int | None:
    """Return the index of the first joint whose reading is far outside the joint's range, or None.

    Far is more than a quarter of the range's length, see `range_length`.

    Args:
        reading: positions ``(n,)``, in the units of the limits.
        low: lower limits of the ranges, −inf for an unlimited joint.
        high: upper limits of the ranges, inf for an unlimited joint.
    """
    beyond = OUTSIDE * range_length(low, high)
    return _first_index((reading < low - beyond) | (reading > high + beyond))


def find_unreachable_joint(reading: Array, before: Array, *, speed: Array, seconds: float, length: Array) -> int | None:
    """Return the index of the first joint that cannot have moved from the previous reading to this one, or None.

    Args:
        reading: positions ``(n,)``.
        before: positions of the previous reading.
        speed: the highest possible speed of the joints, ``(n,)``.
        seconds: the longest possible time between the two readings.
        length: length of each joint's range, ``(n,)``.
    """
    return _first_index(np.abs(reading - before) > speed * seconds + READING_SLACK * length)


def range_length(low: Array, high: Array) -> Array:
    """Return the length of each joint's range ``(n,)``, 2π for an unlimited joint."""
    return np.where(np.isfinite(high - low), high - low, 2.0 * np.pi)


def _first_index(wrong: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None
