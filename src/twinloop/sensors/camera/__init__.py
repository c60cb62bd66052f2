"""Simulate a camera from the light of a rendered scene to the images that a program receives.

The parts are lens, shutter, sensor, image processing, and video codec.
"""

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
