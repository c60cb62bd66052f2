"""Render images of stored states with any renderer into a new dataset; the second pass of a generation."""

from twinloop.generate.pixels.block import visual_model
from twinloop.generate.pixels.dataset import check_render, render_dataset
from twinloop.generate.pixels.source import StoredEpisode, load_source_plan, read_episode_record, read_stored_episode

__all__ = [
    "StoredEpisode",
    "check_render",
    "load_source_plan",
    "read_episode_record",
    "read_stored_episode",
    "render_dataset",
    "visual_model",
]
