"""Factors between two statements of one quantity, and the mistake that each comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping

POSITIONS = {
    180 / math.pi: "degrees where radians should be",
    math.pi / 180: "radians where degrees should be",
    1000.0: "mm where m should be",
    0.001: "m where mm should be",
}
VELOCITIES = {
    **POSITIONS,
    30 / math.pi: "turns per minute where rad/s should be",
    math.pi / 30: "rad/s where turns per minute should be",
}
_NEAR = 1.35  # a known factor within this much: servos answer weakly, velocities are filtered


def name_factor(slope: float, known: Mapping[float, str]) -> str | None:
    """The mistake that a positive factor, which should be 1, comes from; None where it is near none that is known.

    A joint that answers its command by a third only is weak, not in another unit.
    """
    return next((name for size, name in known.items() if size / _NEAR < slope < size * _NEAR), None)
