"""Define ``twinloop train``, which trains a policy from real and simulated demonstrations."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.train.requests import TrainRequest


def _has_checkpoint(request: TrainRequest) -> bool:
    from twinloop.workflows.train.train import has_checkpoint

    return has_checkpoint(request)


TRAIN = Command(
    "train",
    TrainRequest,
    "twinloop.workflows.train.train:run_train",
    "stores",
    resumable=_has_checkpoint,
    example="twinloop train --data data/batch --output policies/bc",
)
