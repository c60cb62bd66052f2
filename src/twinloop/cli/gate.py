"""Define ``twinloop gate``, which decides from trials whether a candidate policy may replace the champion."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.deploy.requests import GateRequest

GATE = Command(
    "gate",
    GateRequest,
    "twinloop.workflows.deploy.gate:run_gate",
    "measures",
    example="twinloop gate candidate.yaml --output runs/gate",
)
