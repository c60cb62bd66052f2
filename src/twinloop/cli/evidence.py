"""The command ``twinloop evidence``."""

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
