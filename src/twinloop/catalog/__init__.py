"""Store a project in a workspace folder, and query its catalog of episodes, dataset versions and labels with SQL."""

from twinloop.catalog.adding import AddResult
from twinloop.catalog.workspace import EpisodeLocation, Workspace

__all__ = ["AddResult", "EpisodeLocation", "Workspace"]
