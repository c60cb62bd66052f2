"""Define ``twinloop evidence``, which computes how many real trials show a failure rate below a limit.

The confidence level of this claim is 95 % by default.
"""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.evaluate.requests import EvidenceRequest

EVIDENCE = Command(
    "evidence",
    EvidenceRequest,
    "twinloop.workflows.evaluate.evidence:run_evidence",
    "measures",
    example="twinloop evidence --failure-rate 1e-3",
)
