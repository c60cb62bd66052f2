"""What depth cameras and lidars make of distances: see `sensors.depth` and `sensors.lidar` for the formulas."""

from __future__ import annotations

from typing import Literal

from twinloop.twin.quantities.kinds import Quantity


def _ranging(
    device: Literal["depth", "lidar"],
    quantity: str,
    unit: str,
    low: float,
    high: float,
    default: float,
    meaning: str,
) -> Quantity:
    return Quantity(
        family="sensor",
        device=device,
        quantity=quantity,
        unit=unit,
        low=low,
        high=high,
        default=default,
        stage="sensing",
        meaning=meaning,
    )


RANGING: tuple[Quantity, ...] = (
    _ranging("depth", "scale_error", "1", -0.2, 0.2, 0.0, "relative error of every distance"),
    _ranging("lidar", "scale_error", "1", -0.2, 0.2, 0.0, "relative error of every distance"),
)
