"""The command ``twinloop scenario``: from a failure to a world that is kept, asked, searched, never forgotten."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.scenario import requests

SCENARIO = Group(
    name="scenario",
    description="Failures that are kept: rebuilt, asked what they need, turned into data, and run again for ever.",
    commands=(
        Command(
            "from-failure",
            requests.FromFailureRequest,
            "twinloop.workflows.scenario.failure:run_from_failure",
            "makes",
            example="twinloop scenario from-failure runs/today:7 --policy champion",
        ),
        Command(
            "counterfactual",
            requests.CounterfactualRequest,
            "twinloop.workflows.scenario.ask:run_counterfactual",
            "makes",
            example='twinloop scenario counterfactual dropped --what "object/*/mass*=0.5"',
        ),
        Command(
            "ablate",
            requests.AblateRequest,
            "twinloop.workflows.scenario.ask:run_ablate",
            "makes",
            example="twinloop scenario ablate dropped",
        ),
        Command(
            "regress",
            requests.RegressRequest,
            "twinloop.workflows.scenario.regress:run_regress",
            "makes",
            example="twinloop scenario regress --policy champion",
        ),
        Command(
            "augment",
            requests.AugmentRequest,
            "twinloop.workflows.scenario.augment:run_augment",
            "makes",
            example="twinloop scenario augment dropped --output data/around",
        ),
        Command(
            "loop",
            requests.LoopRequest,
            "twinloop.workflows.scenario.circle:run_circle",
            "makes",
            example="twinloop scenario loop dropped --policy champion --output runs/round",
        ),
        Command(
            "search",
            requests.ScenarioSearchRequest,
            "twinloop.workflows.scenario.search:run_search",
            "makes",
            example="twinloop scenario search generate.yaml --policy champion --output runs/search",
        ),
        Command(
            "list",
            requests.ScenarioListRequest,
            "twinloop.workflows.scenario.places:run_list",
            example="twinloop scenario list",
        ),
        Command(
            "show",
            requests.ScenarioShowRequest,
            "twinloop.workflows.scenario.places:run_show",
            example="twinloop scenario show dropped",
        ),
    ),
)
