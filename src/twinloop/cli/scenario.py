"""Define ``twinloop scenario``, which reconstructs failures as simulated worlds and finds their causes."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.scenario import requests

SCENARIO = Group(
    name="scenario",
    description="Reconstruct failures, find their causes, generate data from them, and repeat them after every change.",
    commands=(
        Command(
            "from-failure",
            requests.FromFailureRequest,
            "twinloop.workflows.scenario.failure:run_from_failure",
            "makes",
            example="twinloop scenario from-failure runs/today:7 --policy champion",
            former={"--least": "--min-share", "--anyway": "--force"},
        ),
        Command(
            "counterfactual",
            requests.CounterfactualRequest,
            "twinloop.workflows.scenario.interventions:run_counterfactual",
            "makes",
            example='twinloop scenario counterfactual dropped --change "object/*/mass*=0.5"',
            former={"--what": "--change", "--chance": "--random-numbers"},
        ),
        Command(
            "ablate",
            requests.AblateRequest,
            "twinloop.workflows.scenario.interventions:run_ablate",
            "makes",
            example="twinloop scenario ablate dropped",
            former={"--chance": "--random-numbers"},
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
            requests.RetrainRequest,
            "twinloop.workflows.scenario.retrain:run_retrain",
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
            "twinloop.workflows.scenario.references:run_list",
            example="twinloop scenario list",
        ),
        Command(
            "show",
            requests.ScenarioShowRequest,
            "twinloop.workflows.scenario.references:run_show",
            example="twinloop scenario show dropped",
        ),
    ),
)
