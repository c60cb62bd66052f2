"""Define ``twinloop compare``, which decides in paired trials which of two policies is better."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.evaluate.requests import CompareRequest

COMPARE = Command(
    "compare",
    CompareRequest,
    "twinloop.workflows.evaluate.compare:run_compare",
    "measures",
    example="twinloop compare policies/bc policies/new --suite axes",
)
