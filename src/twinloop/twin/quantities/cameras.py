"""What a camera makes of the light that reaches it: see `sensors.camera` for the formulas."""

from __future__ import annotations

from twinloop.twin.quantities.kinds import Quantity


def _camera(quantity: str, unit: str, low: float, high: float, default: float, meaning: str) -> Quantity:
    return Quantity(
        family="sensor",
        device="camera",
        quantity=quantity,
        unit=unit,
        low=low,
        high=high,
        default=default,
        stage="sensing",
        meaning=meaning,
    )


CAMERA_SENSORS: tuple[Quantity, ...] = (
    _camera("latency", "s", 0.0, 1.0, 0.0, "age of a picture, from the middle of its exposure to its delivery"),
    _camera("drop_rate", "1", 0.0, 1.0, 0.0, "probability that a picture never arrives, and the one before stands"),
)
