"""Define ``twinloop twin``, which writes a twin for a model, checks a twin, or lists its parameters."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.twin import requests

TWIN = Group(
    name="twin",
    description="Write a twin for a model, check a twin, or show its parameters.",
    commands=(
        Command(
            "new",
            requests.TwinNewRequest,
            "twinloop.workflows.twin.new:run_twin_new",
            example="twinloop twin new my_arm.xml --output my_twin.yaml",
        ),
        Command(
            "check",
            requests.TwinCheckRequest,
            "twinloop.workflows.twin.parameters:check_twin",
            example="twinloop twin check my_twin.yaml",
        ),
        Command(
            "show",
            requests.TwinShowRequest,
            "twinloop.workflows.twin.parameters:show_twin",
            example="twinloop twin show my_twin.yaml",
        ),
    ),
)
