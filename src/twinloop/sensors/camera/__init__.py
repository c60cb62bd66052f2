"""Model a camera from light to delivered images: lens and shutter, then sensor, processing and codec."""

from twinloop.sensors.camera.model import CameraModel
from twinloop.sensors.camera.pipeline import CameraPipeline, develop, develop_steps
from twinloop.sensors.camera.seeds import CameraSeeds
from twinloop.sensors.camera.stages import CameraStage, Capture, list_stages

__all__ = [
    "CameraModel",
    "CameraPipeline",
    "CameraSeeds",
    "CameraStage",
    "Capture",
    "develop",
    "develop_steps",
    "list_stages",
]
