"""Pixels from states: one file per renderer behind one protocol, probed before use."""

from twinloop.render.catalog import RENDERERS, open_renderer
from twinloop.render.jobs import RenderJob, model_to_bytes, render_episodes
from twinloop.render.probe import ProbeResult, choose_renderer, probe_all, probe_renderer
from twinloop.render.protocol import Fields, Frames, Renderer, SceneStates
from twinloop.render.sheet import contact_sheet, write_png, write_video

__all__ = [
    "RENDERERS",
    "Fields",
    "Frames",
    "ProbeResult",
    "RenderJob",
    "Renderer",
    "SceneStates",
    "choose_renderer",
    "contact_sheet",
    "model_to_bytes",
    "open_renderer",
    "probe_all",
    "probe_renderer",
    "render_episodes",
    "write_png",
    "write_video",
]
