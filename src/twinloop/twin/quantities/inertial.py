"""What inertial units, force sensors and servos report: see `sensors.imu`, `sensors.force` and `sensors.servo`."""

from __future__ import annotations

from typing import Literal

from twinloop.twin.quantities.kinds import Quantity


def _reported(
    device: Literal["imu", "force_torque", "servo"],
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


INERTIAL: tuple[Quantity, ...] = (
    _reported("imu", "gyro_noise", "rad/s/√Hz", 0.0, 1.0, 0.0, "white noise of the angular rates, one-sided density"),
    _reported("force_torque", "force_noise", "N", 0.0, 1e3, 0.0, "standard deviation of a force reading"),
    _reported("servo", "current_noise", "A", 0.0, 1e2, 0.0, "standard deviation of a current reading"),
)
