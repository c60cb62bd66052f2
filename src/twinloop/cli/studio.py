"""Define ``twinloop studio``, which shows a workspace in a browser."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.studio.requests import StudioRequest

STUDIO = Command("studio", StudioRequest, "twinloop.studio.server:run_studio", example="twinloop studio")
