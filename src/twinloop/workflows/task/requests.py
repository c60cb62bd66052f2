"""Define the flags of ``twinloop tasks``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from twinloop.workflows.run.request import Request, SeedOption, request


@request
class TaskListRequest(Request):
    """List the tasks of the library, and the twins of robots on which each runs."""

    image: Path | None = None
    """PNG file for one picture of each task and twin, with the scripted expert at work."""


@request
class TaskNewRequest(Request):
    """Write a commented Python class of a task with its scripted expert, to be edited, and used as FILE.py:CLASS."""

    output: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """The file to write."""
    twin: str | None = None
    """Twin for which the task is written: a name, a twin YAML, an MJCF or a URDF file, or package:NAME/PATH; by default
    the twin of the workspace."""


@request
class TaskCheckRequest(Request, SeedOption):
    """Check that a task follows the protocol, and run its scripted expert in nominal and in randomized worlds.

    Nominal worlds differ only in the places of objects, randomized worlds in all parameters with a default range.
    """

    task: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TASK")]]
    """The task: a name, or your own class as FILE.py:CLASS."""
    twin: str | None = None
    """Twin on which the task runs: a name, a twin YAML, an MJCF or a URDF file, or package:NAME/PATH; by default the
    twin of the workspace."""
    episodes: int = 32
    """Number of worlds of each kind."""
