"""Define the flags of ``twinloop studio``; the server itself is in `twinloop.studio`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from twinloop.workflows.run.request import Request, request


@request
class StudioRequest(Request):
    """Show a workspace, a dataset or a run in a browser: episodes, labels, gap, runs and decisions.

    The server listens on this machine only. It prints an address with a token that works once and admits one browser.
    A dataset that is in no workspace is not changed; labels of it are kept in the cache folder of the user.
    """

    path: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]] = None
    """A workspace, a LeRobot v3.0 dataset, or the folder of a run; by default the nearest workspace upwards from
    here.
    """
    port: int = 8500
    """TCP port; 0 chooses a free one."""
    no_browser: bool = False
    """Only print the address; do not open a browser."""
    author: str | None = None
    """Name under which labels are stored; by default the name of the user of this machine."""
