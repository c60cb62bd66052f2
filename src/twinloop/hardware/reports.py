"""What a driver returns, read strictly: it is evidence about the robot, and not to be relied on."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Share of a joint's range by which a driver's returned command may differ from what it was given and is not cut: as far
# as a calibration by hand is off. A servo's ticks are 0.05 %.
COMMAND_SLACK = 0.02


def number(value: Any) -> float:
    """Return a driver's value as a float.

    Raises:
        TypeError: it is not a number; booleans, strings and arrays with axes are none.
        OverflowError: an integer beyond what a float holds.
    """
    if isinstance(value, np.ndarray | np.generic) and value.shape == ():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{type(value).__name__} is not a number")
    return float(value)


def joint_values(answer: Mapping[str, Any], keys: Sequence[str]) -> Array:
    """Return the values of some keys of a driver's answer, ``(n,)``.

    Raises:
        TypeError, OverflowError: see `number`.
        KeyError: a key is missing.
    """
    return np.array([number(answer[key]) for key in keys], dtype=np.float64)


def misreported(returned: Array, possible: Sequence[Array], slack: Array) -> int | None:
    """Return the first joint whose returned command cannot have been sent, or None.

    A robot may cut a command short because of limits of its own. Then it sends something between the command that it
    was given, the one before and the position that it reads, and never something beyond all of them.

    Args:
        returned: the command that the driver says it sent, ``(n,)``.
        possible: the commands and positions ``(n,)`` between which it must be.
        slack: how far it may be beyond them, ``(n,)``.
    """
    low, high = np.min(possible, axis=0) - slack, np.max(possible, axis=0) + slack
    wrong = np.flatnonzero(~((returned >= low) & (returned <= high)))  # NaN is wrong
    return int(wrong[0]) if len(wrong) else None
