"""Define ``twinloop distill``, which teaches a policy in the states that it visits itself."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.train.requests import DistillRequest


def _has_checkpoint(request: DistillRequest) -> bool:
    from twinloop.workflows.train.distill import has_checkpoint

    return has_checkpoint(request)


DISTILL = Command(
    "distill",
    DistillRequest,
    "twinloop.workflows.train.distill:run_distill",
    "measures",
    resumable=_has_checkpoint,
    example="twinloop distill generate.yaml --output policies/taught",
)
