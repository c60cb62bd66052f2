"""The twin whose joint ranges stand in for the calibration that a log lacks: the one named, or the workspace's."""

from __future__ import annotations

from collections.abc import Sequence

from twinloop.catalog import Workspace
from twinloop.loop.coverage_sides import Member
from twinloop.twin import Twin, load_twin


def stand_in(
    named: str | None, workspace: Workspace | None, examples: Sequence[Member]
) -> tuple[Twin | None, list[str]]:
    """The twin, and what is to be said of it; None where every log has its calibration.

    Args:
        named: by the user.
        workspace: whose twin is taken where none is named, if it has the joints of the logs.
        examples: an episode of every folder.

    Raises:
        TwinloopError: an episode cannot be read, or the twin cannot be loaded.
    """
    bare = [episode for episode in (member.load() for member in examples) if not episode.units.known]
    if not bare:
        return None, []
    if named is not None:
        twin = load_twin(named)
        return twin, [f"Where a log has no calibration the joint ranges of {twin.name} stand in."]
    usual = None if workspace is None else workspace.config.get("twin")
    if not usual:
        return None, []
    twin = load_twin(str(usual))
    lacking = sorted({name for episode in bare for name in episode.joints} - set(twin.robot.joints))
    if lacking:
        said = (
            f"A log has no calibration, and {twin.name}, the workspace's twin, cannot stand in: it has no "
            f"{', '.join(lacking)}. Name one that has: --ranges TWIN."
        )
        return None, [said]
    said = f"Where a log has no calibration the joint ranges of {twin.name}, the workspace's twin, stand in (--ranges)."
    return twin, [said]
