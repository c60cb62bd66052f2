"""Render images by path tracing with Mitsuba 3; the package is imported when a renderer is opened."""

from twinloop.render.mitsuba.renderer import MitsubaQuality, MitsubaRenderer
from twinloop.render.mitsuba.variants import working_variants

__all__ = [
    "MitsubaQuality",
    "MitsubaRenderer",
    "working_variants",
]
