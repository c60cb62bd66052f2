"""The command ``twinloop identify``."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.identify.requests import IdentifyRequest

IDENTIFY = Command(
    "identify",
    IdentifyRequest,
    "twinloop.workflows.identify.identify:run_identify",
    "measures",
    example="twinloop identify --twin my_twin.yaml --data data/real --holdout last:10 --output runs/fit",
)
