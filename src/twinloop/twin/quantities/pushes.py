"""External pushes on any body with mass: strength, direction, when, for how long, how often."""

from __future__ import annotations

import math

from twinloop.twin.quantities.kinds import Quantity


def _push(quantity: str, unit: str, low: float, high: float, default: float) -> Quantity:
    return Quantity(
        family="push", quantity=quantity, unit=unit, low=low, high=high, default=default, stage="disturbance"
    )


# A force at the body's centre of mass, constant in the world's frame while it lasts; see `simulate.disturbance`.
PUSHES: tuple[Quantity, ...] = (
    _push("force", "N", 0.0, 1e4, 0.0),
    _push("azimuth", "rad", -math.pi, math.pi, 0.0),  # from the world's x towards y
    _push("elevation", "rad", -math.pi / 2, math.pi / 2, 0.0),  # from the horizontal towards z
    _push("time", "s", 0.0, 1e4, 0.0),
    _push("duration", "s", 0.0, 1e4, 0.1),
    _push("period", "s", 0.0, 1e4, 0.0),  # 0: once
)
