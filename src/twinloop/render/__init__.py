"""Render camera images of a MuJoCo model from simulator states, by rasterization, ray tracing or path tracing.

`open_renderer` opens a renderer by name, and `probe_renderer` tests in a subprocess whether it works on this machine.
All renderers implement the protocol `Renderer`.
"""

from twinloop.render.catalog import RENDERERS, ProbeResult, choose_renderer, open_renderer, probe_all, probe_renderer
from twinloop.render.protocol import (
    CHANNELS,
    ChannelArrays,
    Fields,
    Frames,
    Renderer,
    SceneStates,
    decode_srgb,
    encode_srgb,
)
from twinloop.render.sheet import contact_sheet, png_bytes, write_png, write_video
from twinloop.render.splats import Splats, read_splats

__all__ = [
    "CHANNELS",
    "RENDERERS",
    "ChannelArrays",
    "Fields",
    "Frames",
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
