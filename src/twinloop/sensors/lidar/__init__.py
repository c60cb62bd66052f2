"""Model lidars: directions and widths of their beams, and the returns."""

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
