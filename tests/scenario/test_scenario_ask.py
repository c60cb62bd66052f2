"""Planted causes are found: a threshold by doses, a term by switching off; invalid questions are refused."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.scenario.ablate import AblationTerm, ablate, find_terms, term_names
from twinloop.scenario.counterfactual import compare_doses, parse_change
from twinloop.scenario.trials import TrialOutcomes
from twinloop.twin import load_twin

N = 16
NAMES = ("object/cube/mass", "object/cube/friction/slide", "actuator/elbow_flex/delay")


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


def own(twin, **values):
    return twin.table(N, {name: values.get(name, twin.params[name].nominal) for name in NAMES})


def attempts(twin, table, law):
    """Worlds whose success is a function of their parameters and a number per world."""
    luck = np.linspace(0.0, 1.0, N)

    def attempt(values):
        row = {name: np.asarray(values.get(name, table[name])) * np.ones(N) for name in NAMES}
        return TrialOutcomes(actor="law", success=law(row, luck), valid=np.ones(N, dtype=bool))

    return attempt


def test_a_planted_threshold_is_found_and_halved_down_to(twin):
    table = own(twin)

    def law(row, luck):  # worlds turn between 0.41 and 0.43, half of them by 0.42
        return row["object/cube/friction/slide"] > 0.41 + 0.02 * luck

    attempt = attempts(twin, table, law)
    what = parse_change("object/cube/friction/slide=0.1..0.9:5", twin)
    base = attempt({"object/cube/friction/slide": 0.2})
    contrasts, (crossing,) = compare_doses(attempt, base, table, [what], refine=6)
    assert crossing.low <= 0.42 <= crossing.high
    assert crossing.high - crossing.low == pytest.approx(0.2 / 2**6)
    assert [one.dose for one in contrasts] == sorted(one.dose for one in contrasts)
    assert contrasts[-1].pairs.only_a == N
    assert contrasts[-1].p_adjusted < 0.01
    assert contrasts[0].p_adjusted == 1.0
    assert float(contrasts[0].difference.estimate) == 0.0


def test_doses_scale_and_shift_each_worlds_own_value(twin):
    table = own(twin, **{"object/cube/mass": np.linspace(0.02, 0.05, N)})
    twice = parse_change("object/cube/mass*=2", twin)
    assert twice.values(table, 2.0)["object/cube/mass"] == pytest.approx(np.linspace(0.04, 0.1, N))
    more = parse_change("actuator/*/delay+=0.01", twin)
    assert len(more.names) == 6
    assert more.values(table, 0.01)["actuator/elbow_flex/delay"] == pytest.approx(0.043)
    spaced = parse_change("joint/*/frictionloss*=0.25..4:3", twin)
    assert spaced.doses == pytest.approx((0.25, 1.0, 4.0))
    assert parse_change("sensor/elbow_flex/offset=-0.02..0.02:3", twin).doses == pytest.approx((-0.02, 0.0, 0.02))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("object/cube/mass", "is not understood"),
        ("=0.1", "is not understood"),
        ("object/cube/mass=heavy", "'heavy' is not a list of doses"),
        ("object/cube/mass=0.1..0.2:1", "give 2 to 64 values"),
        ("object/cube/mass=inf", "finite"),
    ],
)
def test_a_question_that_cannot_be_read_says_how_to_write_it(twin, text, said):
    with pytest.raises(InputError, match=said):
        parse_change(text, twin)


def test_a_parameter_that_does_not_exist_names_the_nearest(twin):
    with pytest.raises(UnknownNameError, match="Nearest existing: object/cube/mass"):
        parse_change("object/cube/mas=0.1", twin)


def test_a_change_that_no_world_survives_says_so(twin):
    table = own(twin)
    base = attempts(twin, table, lambda row, luck: luck > 0.5)({})
    lost = TrialOutcomes(actor="law", success=np.zeros(N, dtype=bool), valid=np.zeros(N, dtype=bool))
    with pytest.raises(InputError, match=r"object/cube/mass=1: no world is valid"):
        compare_doses(lambda values: lost, base, table, [parse_change("object/cube/mass=1", twin)])
    with pytest.raises(InputError, match="All 16 worlds are invalid"):
        lost.failure_rate()


def test_the_planted_term_comes_first_and_the_idle_ones_are_named(twin):
    late, heavy = 0.2, 0.5
    table = own(twin, **{"actuator/elbow_flex/delay": late, "object/cube/mass": heavy})

    def law(row, luck):  # late commands fail alone; weight takes a few more
        return (row["actuator/elbow_flex/delay"] < 0.1) & (row["object/cube/mass"] < 0.4 + 0.2 * luck)

    attempt = attempts(twin, table, law)
    found = ablate(attempt, attempt({}), table, find_terms(twin, images=False))
    assert [row.term.name for row in found.terms][:1] == ["command delay"]
    first = found.terms[0]
    assert first.gain_without == pytest.approx(
        law({**{n: table[n] for n in NAMES}, "actuator/elbow_flex/delay": np.zeros(N)}, np.linspace(0, 1, N)).mean()
    )
    assert first.loss_alone == 1.0
    assert first.verdict() == "needed and enough"
    assert first.parameters == tuple(n for n in twin.params if n.startswith("actuator/") and n.endswith("/delay"))
    assert "backlash" not in found.untested  # this twin has no gears
    assert "supply sag" in found.untested
    assert found.all_off.successes == N


def test_two_terms_that_fail_together_are_both_needed_and_neither_is_enough(twin):
    table = own(twin, **{"actuator/elbow_flex/delay": 0.2, "object/cube/mass": 0.5})

    def law(row, luck):
        return (row["actuator/elbow_flex/delay"] < 0.1) | (row["object/cube/mass"] < 0.4)

    attempt = attempts(twin, table, law)
    found = ablate(attempt, attempt({}), table, find_terms(twin, ["command delay", "object mass"]))
    assert {row.verdict() for row in found.terms} == {"needed, with others"}


def test_without_anything_to_switch_off_it_says_so(twin):
    term = AblationTerm(name="sag", meaning="", neutral={"supply/bus/resistance": 0.0})
    table = own(twin)
    with pytest.raises(InputError, match="Every term is neutral"):
        ablate(lambda values: None, None, table, [term])


def test_terms_cover_the_twin_once_each_and_know_their_names(twin):
    terms = find_terms(twin)
    told = [name for term in terms for name in term.neutral]
    assert len(told) == len(set(told))
    assert all(
        twin.params[name].low <= value <= twin.params[name].high for t in terms for name, value in t.neutral.items()
    )
    assert {"object/cube/friction/slide", "joint/elbow_flex/frictionloss", "sensor/elbow_flex/offset"} <= set(told)
    assert not any(name.startswith(("light/", "camera/")) for t in find_terms(twin, images=False) for name in t.neutral)
    assert [t.name for t in find_terms(twin, ["light"], images=False)] == ["light"]
    with pytest.raises(UnknownNameError, match="Nearest existing: backlash"):
        find_terms(twin, ["backlsh"])
    with pytest.raises(InputError, match="no parameter of backlash"):
        find_terms(twin, ["backlash"])
    assert len(term_names()) == len(set(term_names()))
