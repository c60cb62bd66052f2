"""A camera from light to delivered pictures: lens and shutter, then sensor, processing and codec."""

from twinloop.sensors.camera.model import CameraModel

__all__ = ["CameraModel"]
