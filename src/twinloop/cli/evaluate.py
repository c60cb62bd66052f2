"""Define ``twinloop evaluate``, which runs a policy under all conditions of a suite."""

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
