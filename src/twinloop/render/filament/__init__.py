"""Render with MuJoCo's Filament renderer through Vulkan; its library is loaded when a renderer is opened."""

from twinloop.render.filament.context import describe_drivers
from twinloop.render.filament.renderer import FilamentQuality, FilamentRenderer

__all__ = [
    "FilamentQuality",
    "FilamentRenderer",
    "describe_drivers",
]
