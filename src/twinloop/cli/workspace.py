"""Define ``twinloop init``, which creates a workspace, and ``twinloop add``, which adds datasets to it."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.data.requests import AddRequest, InitRequest

INIT = Command("init", InitRequest, "twinloop.workflows.data.workspace:run_init", example="twinloop init cell")
ADD = Command("add", AddRequest, "twinloop.workflows.data.workspace:run_add", example="twinloop add data/batch")
