"""The command ``twinloop approve``."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.data.requests import ApproveRequest

APPROVE = Command(
    "approve",
    ApproveRequest,
    "twinloop.workflows.doctor:run_approve",
    example="twinloop approve data/sent/twinloop/task.py",
)
