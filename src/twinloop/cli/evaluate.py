"""The command ``twinloop evaluate``."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.evaluate.requests import EvaluateRequest

EVALUATE = Command(
    "evaluate",
    EvaluateRequest,
    "twinloop.workflows.evaluate.evaluate:run_evaluate",
    "stores",
    example="twinloop evaluate policies/bc --suite axes --output runs/axes",
)
