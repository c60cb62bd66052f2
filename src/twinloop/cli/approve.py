"""Define ``twinloop approve``, which allows Python files from other people to run, or lists the allowed files."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.data.requests import ApproveRequest

APPROVE = Command(
    "approve",
    ApproveRequest,
    "twinloop.workflows.doctor:run_approve",
    example="twinloop approve data/sent/twinloop/task.py",
)
