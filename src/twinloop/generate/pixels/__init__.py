"""Second pass: render stored states with any renderer into a new dataset."""

from twinloop.generate.pixels.block import visual_model
from twinloop.generate.pixels.dataset import check_render, render_dataset
from twinloop.generate.pixels.source import StoredEpisode, episode_record, source_plan, stored_episode

__all__ = [
    "StoredEpisode",
    "check_render",
    "episode_record",
    "render_dataset",
    "source_plan",
    "stored_episode",
    "visual_model",
]
