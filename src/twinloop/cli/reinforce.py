"""Define ``twinloop reinforce``, which trains a policy by reinforcement."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.train.requests import ReinforceRequest


def _has_checkpoint(request: ReinforceRequest) -> bool:
    from twinloop.workflows.train.reinforce import has_checkpoint

    return has_checkpoint(request)


REINFORCE = Command(
    "reinforce",
    ReinforceRequest,
    "twinloop.workflows.train.reinforce:run_reinforce",
    "measures",
    resumable=_has_checkpoint,
    example="twinloop reinforce generate.yaml --output policies/teacher",
)
