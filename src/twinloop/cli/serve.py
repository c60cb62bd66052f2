"""The command ``twinloop serve``, which serves a policy to robots on other machines."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.deploy.requests import ServeRequest

SERVE = Command(
    "serve", ServeRequest, "twinloop.workflows.deploy.cell:serve_policy", example="twinloop serve --policy champion"
)
