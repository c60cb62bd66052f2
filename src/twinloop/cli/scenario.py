"""The command ``twinloop scenario``: from a failure to a world that is kept, asked, searched, never forgotten."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.scenario import requests

SCENARIO = Group(
    name="scenario",
    description="Failures that are kept: rebuilt, asked what they need, turned into data, and run again for ever.",
    commands=(
        Command(
            "from-failure", requests.FromFailureRequest, "twinloop.workflows.scenario.failure:run_from_failure", "makes"
        ),
        Command(
            "counterfactual",
            requests.CounterfactualRequest,
            "twinloop.workflows.scenario.ask:run_counterfactual",
            "makes",
        ),
        Command("ablate", requests.AblateRequest, "twinloop.workflows.scenario.ask:run_ablate", "makes"),
        Command("regress", requests.RegressRequest, "twinloop.workflows.scenario.regress:run_regress", "makes"),
        Command("augment", requests.AugmentRequest, "twinloop.workflows.scenario.augment:run_augment", "makes"),
        Command("loop", requests.LoopRequest, "twinloop.workflows.scenario.circle:run_circle", "makes"),
        Command("search", requests.ScenarioSearchRequest, "twinloop.workflows.scenario.search:run_search", "makes"),
        Command("list", requests.ScenarioListRequest, "twinloop.workflows.scenario.places:run_list"),
        Command("show", requests.ScenarioShowRequest, "twinloop.workflows.scenario.places:run_show"),
    ),
)
