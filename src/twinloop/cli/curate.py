"""The command ``twinloop curate``: which episodes are good, and what is wrong with the others."""

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
