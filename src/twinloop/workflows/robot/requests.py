"""Define the flags of ``twinloop robot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import Request, request


@request
class RobotNewRequest(Request):
    """Write a commented Python class of a robot or simulator, to be edited, and used everywhere as FILE.py:CLASS."""

    output: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """The file to write."""
    twin: str | None = None
    """Twin from which the class gets joints and units; by default two joints in rad."""
    kind: Literal["sim", "real"] = "sim"
    """sim for a class around another simulator, real for a robot."""


@request
class RobotCheckRequest(Request):
    """Connect a robot, hold it still for a moment, disconnect it, and check that it follows the protocol.

    A real robot is commanded to its measured position, so it moves by no more than its sag.
    """

    robot: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ADDRESS")]]
    """The robot: virtual:TWIN?seed=N&task=TASK, lerobot:so101?port=PORT, or your own FILE.py:CLASS?option=value."""
