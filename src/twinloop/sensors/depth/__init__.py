"""Simulate the depth images of stereo, structured-light and time-of-flight cameras from true depth."""

from twinloop.sensors.depth.frames import DepthFrames, DepthReading
from twinloop.sensors.depth.time_of_flight import TimeOfFlightDepth, TimeOfFlightSpec
from twinloop.sensors.depth.triangulation import StereoDepth, StereoSpec, StructuredLightDepth, StructuredLightSpec

__all__ = [
    "DepthFrames",
    "DepthReading",
    "StereoDepth",
    "StereoSpec",
    "StructuredLightDepth",
    "StructuredLightSpec",
    "TimeOfFlightDepth",
    "TimeOfFlightSpec",
]
