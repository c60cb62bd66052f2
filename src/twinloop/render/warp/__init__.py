"""Render with the batch ray tracer of ``mujoco_warp`` on CPU or GPU; it is imported when a renderer is opened."""

from twinloop.render.warp.renderer import WarpQuality, WarpRenderer

__all__ = [
    "WarpQuality",
    "WarpRenderer",
]
