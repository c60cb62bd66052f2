"""The command ``twinloop gap``: how far simulation is from reality, why, in which classes, and over runs."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.gap import requests

_IN = "twinloop.workflows.gap"
GAP = Group(
    name="gap",
    description="How far simulation is from reality, why, and how well it predicts; without a word, `dynamics`.",
    default="dynamics",
    commands=(
        Command("dynamics", requests.GapDynamicsRequest, f"{_IN}.dynamics:run_gap", "measures"),
        Command("why", requests.GapWhyRequest, f"{_IN}.why:run_why", "measures"),
        Command("sensors", requests.GapSensorsRequest, f"{_IN}.sensors:run_gap_sensors", "measures"),
        Command("vision", requests.GapVisionRequest, f"{_IN}.vision:run_gap_vision", "measures"),
        Command("data", requests.GapDataRequest, f"{_IN}.data:run_gap_data", "measures"),
        Command("policies", requests.GapPoliciesRequest, f"{_IN}.policies:run_gap_policies", "measures"),
        Command("predictivity", requests.GapPredictivityRequest, f"{_IN}.policies:run_gap_predictivity", "measures"),
        Command("classes", requests.GapClassesRequest, f"{_IN}.classes:run_gap_classes", "measures"),
        Command("compare", requests.GapCompareRequest, f"{_IN}.comparison:run_gap_compare", "measures"),
        Command("power", requests.GapPowerRequest, f"{_IN}.comparison:run_gap_power", "measures"),
        Command("estimate", requests.GapEstimateRequest, f"{_IN}.comparison:run_gap_estimate", "measures"),
        Command("history", requests.GapHistoryRequest, f"{_IN}.history:run_gap_history", "measures"),
    ),
)
