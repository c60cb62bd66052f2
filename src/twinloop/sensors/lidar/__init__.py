"""Simulate lidars: scan patterns, beams with a width, and the returns that the device reports."""

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
