"""Generate datasets of simulated episodes, render their images in a second pass, and replay stored episodes.

A replay simulates a stored episode again from its provenance, and compares the states.
"""

from twinloop.generate.config import GenerateConfig, identified_range_notes, read_config, resolve_config
from twinloop.generate.pixels import check_render, read_episode_record, render_dataset
from twinloop.generate.render_settings import RenderConfig, render_config
from twinloop.generate.replay import ReplayResult, replay_episode, replay_invalid_attempt
from twinloop.generate.states import generate_states, open_engine

__all__ = [
    "GenerateConfig",
    "RenderConfig",
    "ReplayResult",
    "check_render",
    "generate_states",
    "identified_range_notes",
    "open_engine",
    "read_config",
    "read_episode_record",
    "render_config",
    "render_dataset",
    "replay_episode",
    "replay_invalid_attempt",
    "resolve_config",
]
