"""What depth cameras and lidars make of distances: see `sensors.depth` and `sensors.lidar` for the formulas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from twinloop.twin.quantities.kinds import Quantity

_RIGHT = math.pi / 2


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


def _triangulated() -> Iterator[Quantity]:
    """What cameras have that compare two views."""
    yield _ranging("depth", "disparity_noise", "px", 0.0, 10.0, 0.0, "standard deviation of a disparity")
    yield _ranging("depth", "disparity_bias", "px", -10.0, 10.0, 0.0, "error of every disparity, as of a bent rig")


def _timed() -> Iterator[Quantity]:
    """What cameras have that time their light."""
    yield _ranging("depth", "range_bias", "m", -1.0, 1.0, 0.0, "error of every distance along a pixel's ray")
    yield _ranging("depth", "range_noise", "m", 0.0, 1.0, 0.0, "standard deviation of a distance up to 0.5 m")
    yield _ranging("depth", "range_noise_slope", "1", 0.0, 1.0, 0.0, "growth of that with distance beyond 0.5 m")
    yield _ranging("depth", "wiggle_amplitude", "m", 0.0, 0.5, 0.0, "systematic error that oscillates with distance")
    yield _ranging("depth", "amplitude_limit", "1/m²", 0.0, 1e6, 0.0, "weakest light that is measured; 1: white at 1 m")


def _seen() -> Iterator[Quantity]:
    """What every depth camera has."""
    yield _ranging("depth", "scale_error", "1", -0.2, 0.2, 0.0, "relative error of every distance")
    yield _ranging("depth", "edge_noise", "px", 0.0, 10.0, 0.0, "standard deviation of how far aside a pixel looks")
    yield _ranging("depth", "grazing_limit", "rad", 0.1, _RIGHT, _RIGHT, "incidence beyond which all is lost")
    yield _ranging("depth", "grazing_dropout", "1", 0.0, 1.0, 0.0, "part of the pixels lost near that incidence")
    yield _ranging("depth", "dark_limit", "1", 0.0, 1.0, 0.0, "brightness below which pixels begin to be lost")
    yield _ranging("depth", "specular_dropout", "1", 0.0, 1.0, 0.0, "part of the pixels lost on a perfect mirror")


def _scanned() -> Iterator[Quantity]:
    """What lidars have."""
    yield _ranging("lidar", "scale_error", "1", -0.2, 0.2, 0.0, "relative error of every distance")
    yield _ranging("lidar", "range_bias", "m", -1.0, 1.0, 0.0, "error of every distance")
    yield _ranging("lidar", "range_noise", "m", 0.0, 1.0, 0.0, "standard deviation of a distance met head-on")
    yield _ranging("lidar", "range_noise_slope", "1", 0.0, 1.0, 0.0, "growth of that with distance")
    yield _ranging("lidar", "incidence_noise", "1", 0.0, 100.0, 0.0, "relative growth of that with 1/cos of incidence")
    yield _ranging("lidar", "angle_noise", "rad", 0.0, 0.1, 0.0, "standard deviation of azimuth and of elevation")
    yield _ranging("lidar", "divergence", "rad", 0.0, 0.1, 0.0, "full width of a beam, at 1/e² of its middle")
    yield _ranging("lidar", "drop_threshold", "1/m²", 0.0, 1e6, 0.0, "weakest return that is noticed; 1: white at 1 m")
    yield _ranging("lidar", "drop_rate", "1", 0.0, 1.0, 0.0, "part of all returns that is lost whatever they are")


RANGING: tuple[Quantity, ...] = (*_seen(), *_triangulated(), *_timed(), *_scanned())
