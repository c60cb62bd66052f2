"""The scale of a normalized log, read off its quantization: an encoder step is a known angle."""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from twinloop.stats import quantum


def scale_from_quantum(values: ArrayLike, radians_per_unit: float, counts_per_turn: int) -> float | None:
    """``sensor/J/scale`` such that one step of the log is one count of the encoder; None where no step is found.

    Args:
        values: the joint's readings in log units.
        radians_per_unit: the nominal unit map's scale.
        counts_per_turn: of the joint's encoder, behind its gear.
    """
    step = quantum(values)
    return None if step is None else (2 * math.pi / counts_per_turn) / (step * radians_per_unit)
