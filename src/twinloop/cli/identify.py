"""Define ``twinloop identify``, which estimates the parameters of a twin from logs of the real robot."""

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
