"""Define ``twinloop curate``, which scores the quality of episodes."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.curate.requests import CurateRequest

CURATE = Command(
    "curate",
    CurateRequest,
    "twinloop.workflows.curate.curate:run_curate",
    "stores",
    example="twinloop curate data/batch --output runs/quality",
)
