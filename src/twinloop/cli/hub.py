"""Define ``twinloop fetch``, ``push`` and ``pull``, which copy datasets from and to stores and the Hugging Face Hub."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.data.requests import FetchRequest, PullRequest, PushRequest

FETCH = Command(
    "fetch",
    FetchRequest,
    "twinloop.workflows.data.transfer:run_fetch",
    "makes",
    example="twinloop fetch s3://bucket/batch data/batch",
)
PUSH = Command(
    "push", PushRequest, "twinloop.workflows.data.transfer:run_push", example="twinloop push data/batch USER/batch"
)
PULL = Command(
    "pull",
    PullRequest,
    "twinloop.workflows.data.transfer:run_pull",
    "makes",
    example="twinloop pull USER/batch --output data/batch",
)
