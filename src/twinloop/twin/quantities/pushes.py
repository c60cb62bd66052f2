"""External pushes on any body with mass: strength, direction, when, for how long, how often."""

from __future__ import annotations

import math

from twinloop.twin.quantities.kinds import Quantity


def _push(quantity: str, unit: str, low: float, high: float, default: float, meaning: str) -> Quantity:
    return Quantity(
        family="push",
        quantity=quantity,
        unit=unit,
        low=low,
        high=high,
        default=default,
        stage="disturbance",
        meaning=meaning,
    )


# A force at the body's centre of mass, constant in the world's frame while it lasts; see `simulate.disturbance`.
PUSHES: tuple[Quantity, ...] = (
    _push("force", "N", 0.0, 1e4, 0.0, "strength of a push at the body's centre of mass"),
    _push("azimuth", "rad", -math.pi, math.pi, 0.0, "its direction: angle from the world's x towards y"),
    _push("elevation", "rad", -math.pi / 2, math.pi / 2, 0.0, "its direction: angle above the horizontal"),
    _push("time", "s", 0.0, 1e4, 0.0, "when it first begins"),
    _push("duration", "s", 0.0, 1e4, 0.1, "how long it lasts"),
    _push("period", "s", 0.0, 1e4, 0.0, "time from the beginning of one push to that of the next; 0: there is one"),
)
