"""Define ``twinloop demo``, which runs a complete example, and ``doctor``, which lists this machine's capabilities."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.data.requests import DoctorRequest
from twinloop.workflows.demo.requests import DemoRequest

DEMO = Command(
    "demo", DemoRequest, "twinloop.workflows.demo.demo:run_demo", example="twinloop demo --output demo-output"
)
DOCTOR = Command("doctor", DoctorRequest, "twinloop.workflows.doctor:run_doctor", example="twinloop doctor")
