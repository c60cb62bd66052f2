"""Define ``twinloop monitor``, which detects whether a deployed policy and its robot behave differently than before."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.deploy import requests

MONITOR = Group(
    name="monitor",
    description="Detect whether a policy and its robot still behave as in successful episodes, and what has changed.",
    commands=(
        Command(
            "calibrate",
            requests.MonitorCalibrateRequest,
            "twinloop.workflows.deploy.monitor:run_monitor_calibrate",
            "measures",
            example="twinloop monitor calibrate --data runs/today --policy champion --output runs/monitor",
        ),
        Command(
            "check",
            requests.MonitorCheckRequest,
            "twinloop.workflows.deploy.monitor:run_monitor_check",
            "measures",
            example="twinloop monitor check --data runs/today --monitor runs/monitor",
        ),
    ),
)
