"""Define ``twinloop generate``, which simulates a dataset of randomized episodes."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.generate.requests import GenerateRequest

GENERATE = Command(
    "generate",
    GenerateRequest,
    "twinloop.workflows.generate.generate:run_generate",
    "makes",
    resumable=lambda _: True,
    example="twinloop generate generate.yaml --output data/batch --episodes 1000",
)
