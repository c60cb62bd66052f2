"""What depth cameras and lidars make of distances: see `sensors.depth` and `sensors.lidar` for the formulas."""

from __future__ import annotations

import math
from collections.abc import Iterator

from twinloop.twin.quantities.kinds import Quantity, reported

_RIGHT = math.pi / 2


def _triangulated() -> Iterator[Quantity]:
    """What cameras have that compare two views."""
    yield reported("depth", "disparity_noise", "px", 0.0, 10.0, 0.0, "standard deviation of a disparity")
    yield reported("depth", "disparity_bias", "px", -10.0, 10.0, 0.0, "error of every disparity, as of a bent rig")


def _timed() -> Iterator[Quantity]:
    """What cameras have that time their light."""
    yield reported("depth", "range_bias", "m", -1.0, 1.0, 0.0, "error of every distance along a pixel's ray")
    yield reported("depth", "range_noise", "m", 0.0, 1.0, 0.0, "standard deviation of a distance up to 0.5 m")
    yield reported("depth", "range_noise_slope", "1", 0.0, 1.0, 0.0, "growth of that with distance beyond 0.5 m")
    yield reported("depth", "wiggle_amplitude", "m", 0.0, 0.5, 0.0, "systematic error that oscillates with distance")
    yield reported("depth", "amplitude_limit", "1/m²", 0.0, 1e6, 0.0, "weakest light that is measured; 1: white at 1 m")


def _seen() -> Iterator[Quantity]:
    """What every depth camera has."""
    yield reported("depth", "scale_error", "1", -0.2, 0.2, 0.0, "relative error of every distance")
    yield reported("depth", "edge_noise", "px", 0.0, 10.0, 0.0, "standard deviation of how far aside a pixel looks")
    yield reported("depth", "grazing_limit", "rad", 0.1, _RIGHT, _RIGHT, "incidence beyond which all is lost")
    yield reported("depth", "grazing_dropout", "1", 0.0, 1.0, 0.0, "part of the pixels lost near that incidence")
    yield reported("depth", "dark_limit", "1", 0.0, 1.0, 0.0, "brightness below which pixels begin to be lost")
    yield reported("depth", "specular_dropout", "1", 0.0, 1.0, 0.0, "part of the pixels lost on a perfect mirror")


def _scanned() -> Iterator[Quantity]:
    """What lidars have."""
    yield reported("lidar", "scale_error", "1", -0.2, 0.2, 0.0, "relative error of every distance")
    yield reported("lidar", "range_bias", "m", -1.0, 1.0, 0.0, "error of every distance")
    yield reported("lidar", "range_noise", "m", 0.0, 1.0, 0.0, "standard deviation of a distance met head-on")
    yield reported("lidar", "range_noise_slope", "1", 0.0, 1.0, 0.0, "growth of that with distance")
    yield reported("lidar", "incidence_noise", "1", 0.0, 100.0, 0.0, "relative growth of that with 1/cos of incidence")
    yield reported("lidar", "angle_noise", "rad", 0.0, 0.1, 0.0, "standard deviation of azimuth and of elevation")
    yield reported("lidar", "divergence", "rad", 0.0, 0.1, 0.0, "full width of a beam, at 1/e² of its middle")
    yield reported("lidar", "drop_threshold", "1/m²", 0.0, 1e6, 0.0, "weakest return that is noticed; 1: white at 1 m")
    yield reported("lidar", "drop_rate", "1", 0.0, 1.0, 0.0, "part of all returns that is lost whatever they are")


RANGING: tuple[Quantity, ...] = (*_seen(), *_triangulated(), *_timed(), *_scanned())
