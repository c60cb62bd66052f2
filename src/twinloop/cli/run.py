"""Define ``twinloop run``, which runs a policy on a robot."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.deploy.requests import RunRequest

RUN = Command(
    "run",
    RunRequest,
    "twinloop.workflows.deploy.run:run_policy",
    "makes",
    example='twinloop run --robot "virtual:my_twin.yaml" --policy champion --output runs/today',
)
