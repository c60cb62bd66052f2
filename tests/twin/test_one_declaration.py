"""A new physical parameter takes one declaration and the twin's YAML: every verb reads the rest from there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from twinloop.gap.attribution.groups import parameter_groups
from twinloop.gap.dynamics.unexplained_rules import RULES
from twinloop.identify.assembly import select_free_parameters
from twinloop.identify.plan import ParameterOutlook, plan_parameter
from twinloop.randomize import default_draws, parse_randomization
from twinloop.release.monitor.faults import list_hypotheses
from twinloop.scenario.ablate import find_terms, term_names, terms_table
from twinloop.twin import Twin, load_twin, quantities
from twinloop.twin.quantities import Prior, Quantity, declare_quantities
from twinloop.twin.quantities.kinds import Alias, DefaultRange, FaultDeclaration, FitDeclaration, field_slots
from twinloop.twin.spec import ParamSpec
from twinloop.twin.variant import declare_params
from twinloop.workflows.twin.parameters import parameters_page

NAME = "joint/elbow_flex/stop_margin"
STOP_MARGIN = Quantity(
    family="joint",
    quantity="stop_margin",
    unit="rad",
    low=0.0,
    high=1.0,
    slots=field_slots("jnt_margin"),
    meaning="distance from a stop at which it begins to push",
    cause="springs & stops",
    term="soft stops",
    neutral=0.0,
    default_range=DefaultRange(low=0.0, high=0.02, source="the rubber of the test"),
    alias=Alias(name="stop_margin", tied=True),
    fit=FitDeclaration(
        prior=Prior(spread=0.03),
        rank=12,
        first=True,
        shared=True,
        excitation="slow motion into both stops",
        residual="position",
    ),
    fault=FaultDeclaration(name="worn stops", op="add", change=0.01, unit="times 10 mrad"),
)


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Twin]:
    """The SO-101 with a row of YAML for the quantity that this file declares."""
    monkeypatch.setattr(quantities, "_KINDS", {key: list(kinds) for key, kinds in quantities._KINDS.items()})
    declare_quantities([STOP_MARGIN])
    yield declare_params(load_twin("so101_tabletop"), [ParamSpec.model_validate({"name": "joint/*/stop_margin"})])
    quantities.QUANTITIES.remove(STOP_MARGIN)
    quantities.find_kind.cache_clear()


def test_it_is_drawn_by_default_and_by_its_word(twin: Twin):
    assert twin.params[NAME].quantity is STOP_MARGIN
    assert twin.params[NAME].source == "the rubber of the test"
    assert any(NAME in draw.names for draw in default_draws(twin))
    draws, _ = parse_randomization({"params": {"stop_margin_rad": [0.0, 0.01]}}, twin, where="run.yaml")
    assert [(len(draw.names), draw.tied) for draw in draws] == [(len(twin.robot.joints), True)]


def test_it_is_fitted_with_its_prior_in_its_turn(twin: Twin):
    space = select_free_parameters(twin)
    found = next(parameter for parameter in space.free if parameter.name == NAME)
    assert (found.sd, found.joint) == (0.03, twin.robot.joints.index("elbow_flex"))
    assert space.names.index(NAME) in space.select_columns(lambda fit: fit.first)


def test_a_plan_says_what_excites_it(twin: Twin):
    parameter = next(parameter for parameter in select_free_parameters(twin).free if parameter.name == NAME)
    unseen = ParameterOutlook(excitation=(0.0, 0.0), error=(1.0, 1.0), verdict="not excited")
    assert plan_parameter(parameter, unseen, None).advice == "slow motion into both stops"


def test_it_is_part_of_its_cause(twin: Twin):
    names = [NAME, "joint/elbow_flex/frictionloss"]
    groups = {group.name: group.params for group in parameter_groups(twin, names)}
    assert groups == {"dry friction": (names[1],), "springs & stops": (NAME,)}
    assert "joint/*/stop_margin" in next(rule for rule in RULES if rule.name == "position").free_patterns


def test_a_scenario_explains_its_term_and_switches_it_off(twin: Twin):
    assert term_names()[-1] == "soft stops"
    (term,) = find_terms(twin, ["soft stops"])
    assert (term.meaning, term.neutral[NAME]) == (STOP_MARGIN.meaning, 0.0)
    assert terms_table().splitlines()[-1] == f"| soft stops | {STOP_MARGIN.meaning} | `joint/*/stop_margin` 0 |"


def test_the_monitor_knows_its_fault(twin: Twin):
    assert [(one.name, one.pattern) for one in list_hypotheses(twin)][-1] == ("worn stops", "joint/*/stop_margin")


def test_the_page_of_parameters_lists_it(twin: Twin):
    assert f"| `joint/*/stop_margin` | rad | [0, 1] | {STOP_MARGIN.meaning} | `jnt_margin` |" in parameters_page()
