"""Where every episode is known: the workspace folder, its catalog, frozen datasets, labels, and queries over all."""

from twinloop.catalog.adding import AddResult
from twinloop.catalog.workspace import EpisodeLocation, Workspace

__all__ = ["AddResult", "EpisodeLocation", "Workspace"]
