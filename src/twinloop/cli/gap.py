"""Define ``twinloop gap``, which measures the sim-to-real gap, its causes, and its history over runs."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.gap import requests

_IN = "twinloop.workflows.gap"
GAP = Group(
    name="gap",
    description="Measure the sim-to-real gap, its causes, and how well simulation predicts; by default `dynamics`.",
    default="dynamics",
    commands=(
        Command(
            "dynamics",
            requests.GapDynamicsRequest,
            f"{_IN}.dynamics:run_gap",
            "measures",
            example="twinloop gap --twin my_twin.yaml --data data/real --params runs/fit --output runs/gap",
        ),
        Command(
            "why",
            requests.GapWhyRequest,
            f"{_IN}.why:run_why",
            "measures",
            example="twinloop gap why --twin my_twin.yaml --data data/real --params runs/fit --output runs/why",
        ),
        Command(
            "sensors",
            requests.GapSensorsRequest,
            f"{_IN}.sensors:run_gap_sensors",
            "measures",
            example="twinloop gap sensors --real data/real --sim data/batch",
        ),
        Command(
            "vision",
            requests.GapVisionRequest,
            f"{_IN}.vision:run_gap_vision",
            "measures",
            example="twinloop gap vision --real data/real --sim data/batch --output runs/vision",
        ),
        Command(
            "data",
            requests.GapDataRequest,
            f"{_IN}.data:run_gap_data",
            "measures",
            example="twinloop gap data --real data/real --sim data/batch",
        ),
        Command(
            "policies",
            requests.GapPoliciesRequest,
            f"{_IN}.policies:run_gap_policies",
            "measures",
            example="twinloop gap policies --real real.csv --sim sim.csv",
        ),
        Command(
            "predictivity",
            requests.GapPredictivityRequest,
            f"{_IN}.policies:run_gap_predictivity",
            "measures",
            example="twinloop gap predictivity scores.csv",
        ),
        Command(
            "classes",
            requests.GapClassesRequest,
            f"{_IN}.classes:run_gap_classes",
            "measures",
            example="twinloop gap classes --gap runs/gap",
            former={
                "--least-skill": "--min-skill",
                "--least-success": "--min-success",
                "--most-unexplained": "--max-unexplained",
            },
        ),
        Command(
            "compare",
            requests.GapCompareRequest,
            f"{_IN}.comparison:run_gap_compare",
            "measures",
            example="twinloop gap compare trials.csv --a new --b old",
        ),
        Command(
            "power",
            requests.GapPowerRequest,
            f"{_IN}.comparison:run_gap_power",
            "measures",
            example="twinloop gap power --p 0.56 0.92",
            former={"--most": "--max-pairs"},
        ),
        Command(
            "estimate",
            requests.GapEstimateRequest,
            f"{_IN}.comparison:run_gap_estimate",
            "measures",
            example="twinloop gap estimate trials.csv",
        ),
        Command(
            "history",
            requests.GapHistoryRequest,
            f"{_IN}.history:run_gap_history",
            "measures",
            example="twinloop gap history runs",
            former={"--figures": "--metrics"},
        ),
    ),
)
