"""Where every episode is known: the workspace folder, its catalog, frozen datasets, labels, and queries over all."""

from twinloop.catalog.adding import Added
from twinloop.catalog.workspace import Place, Workspace

__all__ = ["Added", "Place", "Workspace"]
