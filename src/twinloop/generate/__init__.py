"""Generate datasets from rollouts, render them in a second pass, and replay stored episodes from provenance."""

from twinloop.generate.config import GenerateConfig, identified_ranges, read_config, resolve
from twinloop.generate.pixels import check_render, episode_record, render_dataset
from twinloop.generate.render_settings import RenderConfig, render_config
from twinloop.generate.replay import ReplayResult, replay_aside, replay_episode
from twinloop.generate.states import generate_states, open_engine

__all__ = [
    "GenerateConfig",
    "RenderConfig",
    "ReplayResult",
    "check_render",
    "episode_record",
    "generate_states",
    "identified_ranges",
    "open_engine",
    "read_config",
    "render_config",
    "render_dataset",
    "replay_aside",
    "replay_episode",
    "resolve",
]
