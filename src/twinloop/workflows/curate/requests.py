"""Request of ``twinloop curate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from twinloop.workflows.run.request import FailIfOption, ReportedRequest, WorkersOption, request


@request
class CurateRequest(FailIfOption, WorkersOption, ReportedRequest):
    """Score every episode with reasons: physics, recording, demonstration. Nothing is deleted; a filter is a selection.

    In a workspace the scores are kept (`twinloop query "SELECT * FROM scores"`), and the selection of what is good is
    printed. A dataset folder can be scored without one.

    Example conditions of --fail-if: 'bad > 0', 'share_bad > 0.1' and 'bad/recording/blur > 0'.
    """

    dataset: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="DATASET")]] = None
    """A LeRobot v3.0 folder; without it, what the workspace holds."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here, unless DATASET is given."""
    where: str = ""
    """Which episodes of the workspace: a condition over the view episodes, such as "source = 'real'"."""
    twin: str | None = None
    """What episodes without a twin of their own are held against; by default the workspace's."""
    checks: str = ""
    """Names or families, comma separated (physics,recording/blur), or path/to/file.py:Class; default all."""
    show: str = ""
    """Score nothing, but print all that is kept of one episode: its id, the beginning of it, or BATCH:INDEX."""
