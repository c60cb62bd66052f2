"""Define the options of ``twinloop curate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from twinloop.workflows.run.request import FailIfOption, ReportedRequest, WorkersOption, request


@request
class CurateRequest(FailIfOption, WorkersOption, ReportedRequest):
    """Score the quality of every episode by checks of physics, recording and demonstration. Nothing is deleted.

    In a workspace the scores are stored (`twinloop query "SELECT * FROM scores"`), and a query that selects the good
    episodes is printed. A dataset folder can be scored without a workspace.

    Example conditions of --fail-if: 'bad > 0', 'share_bad > 0.1' and 'bad/recording/blur > 0'.
    """

    dataset: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="DATASET")]] = None
    """A LeRobot v3.0 folder to score; by default the episodes of the workspace."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here, unless DATASET is given."""
    where: str = ""
    """Score only the episodes of the workspace that meet a condition on the view episodes, such as "source = 'real'".
    """
    twin: str | None = None
    """Twin for physics checks of episodes that do not record their twin; by default that of the workspace."""
    checks: str = ""
    """Checks to run, as names or families separated by commas (physics,recording/blur), or path/to/file.py:Class; by
    default all.
    """
    show: str = ""
    """Do not score; print all stored scores of one episode, given by the beginning of its id or as BATCH:INDEX."""
