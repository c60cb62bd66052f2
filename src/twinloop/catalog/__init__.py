"""The workspace folder and its catalog: episodes, dataset versions, labels, and SQL queries over them."""

from twinloop.catalog.adding import AddResult
from twinloop.catalog.workspace import EpisodeLocation, Workspace

__all__ = ["AddResult", "EpisodeLocation", "Workspace"]
