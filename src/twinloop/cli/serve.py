"""Define ``twinloop serve``, which computes the actions of a policy for robots on other machines."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.deploy.requests import ServeRequest

SERVE = Command(
    "serve", ServeRequest, "twinloop.workflows.deploy.parts:serve_policy", example="twinloop serve --policy champion"
)
