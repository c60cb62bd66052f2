"""Define ``twinloop sensors``, which shows the simulated readings of a sensor, or lists the device models."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.twin import requests

SENSORS = Group(
    name="sensors",
    description="Show the readings of a sensor model, or list the device models.",
    commands=(
        Command(
            "show",
            requests.SensorsShowRequest,
            "twinloop.workflows.twin.sensors:show_sensor",
            example="twinloop sensors show my_twin.yaml --camera front",
        ),
        Command(
            "list",
            requests.SensorsListRequest,
            "twinloop.workflows.twin.sensors:list_devices",
            example="twinloop sensors list",
        ),
    ),
)
