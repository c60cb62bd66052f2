"""Lidars: where their beams go, how wide they are, and what comes back of them."""

from twinloop.sensors.lidar.lidar import Lidar, LidarReturns, LidarSpec
from twinloop.sensors.lidar.patterns import BeamPattern, Beams, NonRepetitivePattern, SpinningPattern

__all__ = [
    "BeamPattern",
    "Beams",
    "Lidar",
    "LidarReturns",
    "LidarSpec",
    "NonRepetitivePattern",
    "SpinningPattern",
]
