"""Pixels from states: one file per renderer behind one protocol, probed before use."""

from twinloop.render.catalog import RENDERERS, open_renderer
from twinloop.render.probe import ProbeResult, choose_renderer, probe_all, probe_renderer
from twinloop.render.protocol import Fields, Frames, Renderer, SceneStates
from twinloop.render.sheet import contact_sheet, png_bytes, write_png, write_video

__all__ = [
    "RENDERERS",
    "Fields",
    "Frames",
    "ProbeResult",
    "Renderer",
    "SceneStates",
    "choose_renderer",
    "contact_sheet",
    "open_renderer",
    "png_bytes",
    "probe_all",
    "probe_renderer",
    "write_png",
    "write_video",
]
