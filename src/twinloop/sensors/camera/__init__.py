"""A camera from light to delivered pictures: lens and shutter, then sensor, processing and codec."""

from twinloop.sensors.camera.chain import Camera, develop, develop_steps
from twinloop.sensors.camera.model import CameraModel
from twinloop.sensors.camera.seeds import CameraSeeds
from twinloop.sensors.camera.stages import Shot, Stage, stages

__all__ = ["Camera", "CameraModel", "CameraSeeds", "Shot", "Stage", "develop", "develop_steps", "stages"]
