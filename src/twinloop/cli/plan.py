"""Define ``twinloop plan``, which writes the YAML file for the next ``twinloop generate``.

The next run fills the largest holes, that is, real situations without simulated episodes.
"""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.coverage.requests import PlanRequest

PLAN = Command(
    "plan",
    PlanRequest,
    "twinloop.workflows.coverage.next_plan:run_plan",
    "measures",
    example="twinloop plan --output next.yaml",
)
