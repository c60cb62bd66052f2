"""Render images from states: one file per renderer behind one protocol, tested before use."""

from twinloop.render.catalog import RENDERERS, ProbeResult, choose_renderer, open_renderer, probe_all, probe_renderer
from twinloop.render.protocol import CHANNELS, Fields, Frames, Observed, Renderer, SceneStates, decode_srgb, encode_srgb
from twinloop.render.sheet import contact_sheet, png_bytes, write_png, write_video
from twinloop.render.splats import Splats, read_splats

__all__ = [
    "CHANNELS",
    "RENDERERS",
    "Fields",
    "Frames",
    "Observed",
    "ProbeResult",
    "Renderer",
    "SceneStates",
    "Splats",
    "choose_renderer",
    "contact_sheet",
    "decode_srgb",
    "encode_srgb",
    "open_renderer",
    "png_bytes",
    "probe_all",
    "probe_renderer",
    "read_splats",
    "write_png",
    "write_video",
]
