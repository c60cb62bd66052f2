"""Define ``twinloop fsck``, which checks the files of a workspace and repairs them on request."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.data.requests import FsckRequest

FSCK = Command("fsck", FsckRequest, "twinloop.workflows.data.workspace:run_fsck", example="twinloop fsck --repair")
