"""What a gate refuses and why: planted regressions, missing evidence, and candidates that are fine."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.special import betainc, betaln

from support.releases import evaluation
from twinloop.core.decision import GateDecision
from twinloop.core.errors import InputError
from twinloop.release.evidence import interleave_slices
from twinloop.release.gate import GateContext, gate
from twinloop.release.gate_config import parse_gate, read_gate
from twinloop.release.rules_conditions import compute_intervals, regression_rule
from twinloop.release.rules_effect import compare_pairs
from twinloop.release.version import TrainingRecord
from twinloop.stats import (
    PairedCounts,
    log_e_mean,
    mcnemar,
    min_value_count,
    paired_p_value,
    paired_p_values,
    quantile_upper,
)

OFF = {"waived": "not asked here"}
ASKED: dict[str, Any] = {
    "candidate": "new",
    "champion": "old",
    "success": {"within": 0.1},
    "floor": {"success": 0.5},
    "regressions": OFF,
    "latency": {"budget_s": 0.03},
    "context": OFF,
}
N, SLICES = 400, np.repeat(np.arange(4), 100)


def outcomes(rate: float | np.ndarray, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(N) < rate


def decided(changes: dict | None = None, candidate=None, champion=None, known=None) -> GateDecision:
    config = parse_gate(ASKED | (changes or {}))
    mine = candidate or evaluation("new", outcomes(0.85, 1), slices=SLICES)
    theirs = champion or evaluation("old", outcomes(0.8, 2), slices=SLICES)
    return gate(config, mine, theirs, context=known)


def test_a_good_candidate_passes_and_says_on_what():
    found = decided()
    assert found.passed, found.format_lines()
    assert [rule.rule for rule in found.rules] == [
        "evidence",
        "success",
        "robot",
        "floor",
        "invariants",
        "regressions",
        "latency",
        "context",
    ]
    assert found.rule("regressions").verdict == "waived"
    assert found.rule("success").evidence["pairs"] == N
    assert GateDecision.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert found.format_lines()[0] == "YES: new against old, on simulated trials alone"
    assert len(found.evidence) == 2


PLANTED = {
    "worse": ("success", "no", "the contrary is shown", {"candidate": {"rate": 0.55}}),
    "worse in one slice": (
        "floor",
        "no",
        r"the worst of 4 slices, nominal/2: \d+ of 100",
        {"candidate": {"rate": np.where(SLICES == 2, 0.2, 0.97)}},
    ),
    "one violation": (
        "invariants",
        "no",
        r"1 of 400 trials broke a limit \(nominal/0/t00007\)",
        {"candidate": {"violations": np.arange(N) == 7}},
    ),
    "no word of violations": (
        "invariants",
        "missing",
        "400 trials have no record of broken limits",
        {"candidate": {"violations": None}},
    ),
    "slow": ("latency", "no", "at most 50 ms", {"candidate": {"latency_s": 0.05}}),
    "sometimes slow": (
        "latency",
        "no",
        "the slowest of 400 trials 200 ms",
        {"candidate": {"latency_s": np.where(np.arange(N) % 12 == 0, 0.2, 0.01)}},
    ),
    "no word of time": ("latency", "missing", "400 of 400 trials have no latency", {"candidate": {"latency_s": None}}),
    "other seed": ("evidence", "missing", "run with a different run seed", {"candidate": {"run_seed": 1}}),
    "other twin": ("evidence", "missing", "run with a different twin", {"champion": {"twin_hash": "twin-2"}}),
    "other suite": ("evidence", "missing", "400 trials have no partner", {"candidate": {"suite": "pairs"}}),
    "other weights": (
        "evidence",
        "missing",
        r"is of new \(somebody\), but the candidate has the hash new",
        {"candidate": {"policy_hash": "somebody"}, "known": GateContext(candidate_hash="new")},
    ),
    "spent": ("evidence", "missing", "α was spent", {"known": GateContext(look_used="α was spent")}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_refused_for_that_reason(name):
    rule, verdict, reason, planted = PLANTED[name]

    def made(side: str, who: str, rate: float, seed: int):
        given = {"rate": rate, **planted.get(side, {})}
        return evaluation(who, outcomes(given.pop("rate"), seed), slices=SLICES, **given)

    found = decided(None, made("candidate", "new", 0.85, 1), made("champion", "old", 0.8, 2), planted.get("known"))
    assert not found.passed
    assert found.rule(rule).verdict == verdict, found.format_lines()
    assert re.search(reason, found.rule(rule).reason), found.rule(rule).reason
    assert any(line.startswith(rule) for line in found.reasons)


def test_too_few_trials_are_no_pass_and_say_how_many_more():
    few = np.ones(12, dtype=bool)
    found = decided(None, evaluation("new", few), evaluation("old", few))
    assert found.rule("success").verdict == "missing"
    assert "not shown" in found.rule("success").reason
    assert "more pairs would show it" in found.rule("success").reason
    assert found.rule("latency").reason == "12 trials are too few to bound this quantile; 59 are needed"
    once = decided({"looks": "once"}, evaluation("new", few), evaluation("old", few))
    assert once.rule("success").verdict == "no"  # the one look was taken


def test_being_as_good_is_not_being_better():
    same = outcomes(0.8)
    config = {"success": {"better": 0.0}}
    assert (
        decided(config, evaluation("new", same, slices=SLICES), evaluation("old", same, slices=SLICES)).passed is False
    )
    assert decided(config, evaluation("new", outcomes(0.95, 1), slices=SLICES)).passed


def test_slices_are_each_shown_where_asked():
    rates = np.where(SLICES == 3, 0.75, 0.99)
    mine, theirs = (
        evaluation("new", outcomes(rates, 1), slices=SLICES),
        evaluation("old", outcomes(0.9, 2), slices=SLICES),
    )
    found = decided({"success": {"within": 0.1, "slices": 0.1}}, mine, theirs)
    assert found.rule("success").verdict == "yes"
    assert found.rule("slices").verdict != "yes"
    assert "the worst, nominal/3" in found.rule("slices").reason


def test_one_effect_of_several_suffices_and_they_share_alpha():
    rates = np.where(SLICES == 1, 0.99, 0.8)
    mine = evaluation("new", outcomes(rates, 1), slices=SLICES)
    theirs = evaluation("old", outcomes(np.where(SLICES == 1, 0.5, 0.8), 2), slices=SLICES)
    effects = [{"metric": "success", "slice": "0"}, {"metric": "success", "slice": "1"}, {"metric": "progress"}]
    found = decided({"improves": effects}, mine, theirs).rule("improves")
    assert found.verdict == "yes"
    assert found.requirement == "at least one of 3 effects, each at α = 0.017"


def test_a_first_champion_is_decided_by_the_floor():
    config = parse_gate(ASKED | {"champion": None})
    found = gate(config, evaluation("new", outcomes(0.9), slices=SLICES))
    assert found.passed
    assert found.champion == ""
    assert (found.rule("success").verdict, found.rule("robot").verdict) == ("none", "none")
    assert not gate(config, evaluation("new", outcomes(0.4), slices=SLICES)).passed


def test_no_evidence_at_all_is_a_refusal_by_every_rule_that_needs_some():
    found = gate(parse_gate(ASKED), [], [])
    assert {rule.rule for rule in found.rules if rule.verdict == "missing"} == {
        "evidence",
        "success",
        "floor",
        "invariants",
        "latency",
    }


def scenarios(**handled: tuple[int, int]) -> np.ndarray:
    return np.concatenate([np.arange(tried) < won for won, tried in handled.values()])


def failures(name: str, **handled: tuple[int, int]):
    slices = np.repeat(list(handled), [tried for _, tried in handled.values()])
    return evaluation(name, scenarios(**handled), slices=slices, suite="failures")


@pytest.mark.parametrize(
    ("mine", "theirs", "stored", "verdict", "reason"),
    [
        ({"drop": (9, 10)}, {"drop": (10, 10)}, ["drop"], "yes", "1 of 1 handled, 0 of them new"),
        ({"drop": (9, 10)}, {"drop": (0, 10)}, ["drop"], "yes", "1 of 1 handled, 1 of them new"),
        ({"drop": (0, 10)}, {"drop": (0, 10)}, ["drop"], "yes", "0 of 1 handled"),
        ({"drop": (4, 10)}, {"drop": (5, 10)}, ["drop"], "no", "1 of 1 stored failures occur again: drop"),
        ({"drop": (9, 10)}, {"drop": (9, 10)}, ["drop", "slip"], "missing", "1 stored failures were not tried.*slip"),
    ],
)
def test_stored_failures_do_not_come_back(mine, theirs, stored, verdict, reason):
    config = {"regressions": {"suites": ["failures"]}}
    base = [evaluation("new", outcomes(0.85, 1), slices=SLICES), evaluation("old", outcomes(0.8, 2), slices=SLICES)]
    found = gate(
        parse_gate(ASKED | config),
        [base[0], failures("new", **mine)],
        [base[1], failures("old", **theirs)],
        context=GateContext(stored_scenarios=stored),
    )
    assert found.rule("regressions").verdict == verdict
    assert re.search(reason, found.rule("regressions").reason)
    assert found.rule("success").evidence["pairs"] == N  # stored data are judged by the stored rule alone


def test_nobody_knowing_what_is_stored_is_no_pass():
    from twinloop.release.evidence import GateEvidence
    from twinloop.release.gate_config import RegressionRule

    nothing = GateEvidence(candidate=(), champion=())
    assert regression_rule(RegressionRule(), nothing, None, first=False).verdict == "missing"
    assert regression_rule(RegressionRule(), nothing, [], first=False).verdict == "yes"


# Trials on a robot.


def on_robot(name: str, won: int, lost: int, same: int = 60, *, side: bool, suite: str = "real", domain: str = "real"):
    """A side of pairs of trials on a robot: ``won`` that only the candidate wins, ``lost`` only the champion."""
    mine = [True] * won + [False] * lost + [True] * same
    theirs = [False] * won + [True] * lost + [True] * same
    return evaluation(name, np.array(mine if side else theirs), suite=suite, domain=domain)


def with_robot(won: int, lost: int, same: int = 60, changes: dict | None = None, **facts: str) -> GateDecision:
    """The gate of a candidate that is better in simulation, with trials on a robot."""
    pairs = [on_robot(who, won, lost, same, side=who == "new", **facts) for who in ("new", "old")]
    mine, theirs = (
        evaluation("new", outcomes(0.95, 1), slices=SLICES),
        evaluation("old", outcomes(0.8, 2), slices=SLICES),
    )
    return decided(changes, [mine, pairs[0]], [theirs, pairs[1]])


@pytest.mark.parametrize("looks", ["any", "once"])
def test_a_candidate_that_is_better_in_simulation_and_on_the_robot_passes(looks):
    found = with_robot(10, 2, changes={"looks": looks})
    assert found.passed, found.format_lines()
    assert found.robot_trials == 72
    assert found.format_lines()[0] == "YES: new against old"
    assert found.rule("robot").requirement == "on a robot not worse than old by 10 points or more"
    assert {key: found.rule("robot").evidence[key] for key in ("pairs", "wins", "losses", "margin")} == {
        "pairs": 72,
        "wins": 10,
        "losses": 2,
        "margin": -0.1,
    }


@pytest.mark.parametrize("looks", ["any", "once"])
@pytest.mark.parametrize("where", [{}, {"domain": "sim"}], ids=["a real robot", "a virtual robot"])
def test_gains_in_simulation_alone_do_not_make_up_for_a_loss_on_the_robot(looks, where):
    found = with_robot(1, 15, 40, {"looks": looks}, **where)
    assert found.rule("success").verdict == "yes"
    assert found.rule("robot").verdict == "no"
    assert found.rule("robot").reason.startswith("the contrary is shown")
    assert not found.passed


def test_a_loss_on_the_robot_that_may_be_chance_is_no_pass_either():
    """28 of 40 against 26 of 40: not shown to be worse, and a loss of ten points not excluded."""
    found = with_robot(4, 6, 30, {"looks": "once"})
    assert [rule.rule for rule in found.rules if not rule.passed] == ["robot"]
    assert (found.rule("robot").verdict, found.rule("robot").reason[:9]) == ("no", "not shown")
    again = with_robot(4, 6, 30)
    assert again.rule("robot").verdict == "missing"  # more trials may show it
    assert not again.passed


@pytest.mark.parametrize(("within", "once", "ever"), [(0.05, 59, 88), (0.1, 29, 43), (0.15, 19, 28), (0.2, 14, 20)])
def test_how_few_trials_on_a_robot_can_show_a_margin(within, once, ever):
    """With equal pairs, n show a margin m with one look if (1 - m)^n is at most 5 %; the page's table."""
    for looks, least, before in (("once", once, "no"), ("any", ever, "missing")):
        changes = {"looks": looks, "robot": {"within": within}}
        assert with_robot(0, 0, least, changes).rule("robot").verdict == "yes"
        assert with_robot(0, 0, least - 1, changes).rule("robot").verdict == before


@pytest.mark.parametrize(
    ("rate", "floor", "once", "ever"),
    [
        (1.0, 0.5, 5, 7),
        (0.9, 0.5, 8, 14),
        (0.8, 0.5, 13, 20),
        (0.7, 0.5, 28, 53),
        (1.0, 0.8, 14, 20),
        (0.9, 0.8, 63, 110),
    ],
)
def test_how_many_trials_of_a_first_policy_show_a_floor(rate, floor, once, ever):
    """The page's table; failures are spread evenly."""
    for looks, least in (("once", once), ("any", ever)):
        for n, passes in ((least, True), (least - 1, False)):
            won = np.diff(np.floor(np.arange(n + 1) * rate + 1e-9)) > 0
            changes = {"champion": None, "looks": looks, "floor": {"success": floor}}
            config = parse_gate({**ASKED, **changes})
            assert (gate(config, evaluation("new", won), []).rule("floor").verdict == "yes") is passes, (looks, n)


def test_without_trials_on_a_robot_the_answer_is_that_of_simulation_and_says_so():
    found = decided()
    assert (found.passed, found.robot_trials, found.to_json()["robot_trials"]) == (True, 0, 0)
    assert found.rule("robot").verdict == "none"
    assert found.rule("robot").reason == "no trials on a robot: this decision is based on simulated trials only"


def test_trials_on_a_robot_are_waived_only_in_words_that_the_decision_keeps():
    found = with_robot(1, 15, 40, {"robot": {"waived": "the gripper was loose"}})
    assert found.passed
    assert (found.rule("robot").verdict, found.rule("robot").reason) == ("waived", "the gripper was loose")
    assert (found.robot_trials, found.format_lines()[0]) == (56, "YES: new against old")


def test_suites_of_a_robot_have_names_of_their_own_where_the_file_says_so():
    cell = {"suite": "cell", "domain": "sim"}
    assert with_robot(1, 15, 40, None, **cell).robot_trials == 0
    assert with_robot(1, 15, 40, {"robot": {"suites": ["cell"]}}, **cell).rule("robot").verdict == "no"


def test_stored_failures_on_the_robot_do_not_stand_for_all_of_it():
    """They were chosen because the champion failed there."""
    found = with_robot(15, 1, 40, {"regressions": {"suites": ["failures"]}}, suite="failures")
    assert (found.rule("robot").verdict, found.robot_trials) == ("none", 0)


def test_a_first_champion_is_asked_for_the_floor_on_the_robot_too():
    config = parse_gate(ASKED | {"champion": None})
    simulated = evaluation("new", outcomes(0.9), slices=SLICES)
    found = gate(config, [simulated, on_robot("new", 0, 30, 10, side=True)])
    assert (found.rule("robot").verdict, found.rule("floor").verdict) == ("none", "no")
    assert "the floor also applies to the 40 trials on a robot" in found.rule("robot").reason
    assert "the worst of 5 slices, real/0: 10 of 40" in found.rule("floor").reason


def test_one_side_alone_on_the_robot_is_no_comparison():
    simulated = [evaluation(who, outcomes(0.9), slices=SLICES) for who in ("new", "old")]
    found = decided(None, [simulated[0], on_robot("new", 9, 0, side=True)], simulated[1])
    assert "69 trials have no partner: the champion has no trials with the same suite" in found.rule("evidence").reason


def test_a_table_that_a_person_kept_is_taken_by_the_name_of_the_policy():
    """It has no hash; a table with another hash belongs to another policy, even with the same name."""
    known = GateContext(candidate_hash="a1", champion_hash="b2")
    simulated = [
        evaluation(who, outcomes(0.9), slices=SLICES, policy_hash=digest)
        for who, digest in (("new", "a1"), ("old", "b2"))
    ]

    def asked(name: str, digest: str) -> str:
        table = replace(on_robot(name, 9, 0, side=True), policy_hash=digest)
        theirs = replace(on_robot("old", 9, 0, side=False), policy_hash="b2")
        return decided(None, [simulated[0], table], [simulated[1], theirs], known).rule("evidence").reason

    assert asked("new", "") == "469 trials, all with their partner"
    other = asked("notes", "")
    assert "is of notes (no hash), but the candidate has the hash a1" in other
    assert other.endswith("; if it is of the candidate, write the policy as new")
    assert asked("new", "c3").endswith("is of new (c3), but the candidate has the hash a1")


def test_a_decision_from_before_robots_were_counted_keeps_its_hash():
    old = {**decided().to_json(), "rules": [], "hash": ""}
    old.pop("robot_trials")
    read = GateDecision.from_json(old)
    assert read.robot_trials is None
    assert "robot_trials" not in read.to_json()


# The context.


def distribution(folder, low: float, high: float):
    """An identify run that puts the gain of a joint between two ends with 95 % confidence."""
    from scipy.special import ndtri

    mean, sd = (np.log(low) + np.log(high)) / 2, (np.log(high) - np.log(low)) / 2 / ndtri(0.975)
    names = ["actuator/elbow_flex/kp", "joint/wrist_roll/damping"]
    value = {
        "schema": 1,
        "names": names,
        "transforms": ["log", "identity"],
        "mean": [mean, 0.0],
        "covariance": [[sd**2, 0.0], [0.0, 1.0]],
        "low": [0.1, 0.0],
        "high": [1000.0, 9.0],
        "determined": [True, False],
        "clusters": 5,
    }
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"verb": "identify", "schema": 1, "distribution": value}))
    return folder


@pytest.fixture(name="offered", scope="module")
def offered_by_the_default_twin():
    from twinloop.rollout.observing import offered_contract
    from twinloop.tasks import open_task
    from twinloop.twin import load_twin

    twin = load_twin("so101_tabletop")
    return twin, offered_contract(twin, open_task("pick_and_place", twin)).to_json()


@pytest.mark.parametrize(
    ("drawn", "verdict", "reason"),
    [
        (
            (10.0, 40.0),
            "yes",
            r"1 identified parameters are within the ranges of 50 episodes \(1 more are not determined",
        ),
        ((18.0, 40.0), "no", r"actuator/elbow_flex/kp is \[15, 25\], but the training range is \[18, 40\]"),
        (None, "no", r"actuator/elbow_flex/kp is \[15, 25\], but training did not vary it"),
    ],
)
def test_what_was_identified_lies_inside_what_was_drawn(tmp_path, offered, drawn, verdict, reason):
    _, contract = offered
    run = distribution(tmp_path / "run", 15.0, 25.0)
    ranges = {} if drawn is None else {"actuator/elbow_flex/kp": drawn}
    known = GateContext(
        contract=contract, training=TrainingRecord(episodes=50, twins=("x",), ranges=ranges), stored_scenarios=[]
    )
    context = {"context": {"twin": "so101_tabletop", "distribution": str(run)}}
    found = decided(context, known=known).rule("context")
    assert found.verdict == verdict, found
    assert re.search(reason, found.reason), found.reason


def test_twin_and_task_are_by_default_those_that_the_candidate_keeps(tmp_path, offered):
    twin, contract = offered
    names = {"twin": "so101_tabletop", "twin_hash": twin.hash, "task": "pick_and_place", "task_name": "t"}
    (tmp_path / "config.json").write_text(json.dumps({"card": {"assignment": {**names, "task_hash": ""}}}))
    trained = TrainingRecord(episodes=9, twins=("x",), ranges={"actuator/elbow_flex/kp": (1.0, 40.0)})
    known = GateContext(contract={**contract, "task": ""}, training=trained, folder=tmp_path, stored_scenarios=[])
    context = {"context": {"distribution": str(distribution(tmp_path / "run", 15.0, 25.0))}}
    assert decided(context, known=known).rule("context").verdict == "yes"
    with pytest.raises(InputError, match=r"context: the candidate keeps no twin\. Add one in the gate file"):
        decided(context, known=replace(known, folder=None))


def test_a_contract_that_does_not_fit_is_named(offered):
    _, contract = offered
    other = {**contract, "control_hz": 50.0, "cameras": {"top": [240, 320]}}
    found = decided({"context": {"twin": "so101_tabletop"}}, known=GateContext(contract=other)).rule("context")
    assert found.verdict == "no"
    assert "the policy needs 50 Hz, but 30 Hz is given; observation.images.top: no such camera" in found.reason


def test_a_candidate_without_a_contract_fits_nothing():
    found = decided({"context": {"twin": "so101_tabletop"}}, known=GateContext(contract=None)).rule("context")
    assert (found.verdict, found.reason) == ("missing", "the candidate has no contract in its config.json")


def test_training_on_this_very_twin_covers_it(offered):
    twin, contract = offered
    context = {"context": {"twin": "so101_tabletop"}}

    def verdict(trained: TrainingRecord | None):
        return decided(context, known=GateContext(contract=contract, training=trained)).rule("context")

    assert verdict(TrainingRecord(episodes=9, twins=(twin.hash,))).verdict == "yes"
    assert "they come from other" in verdict(TrainingRecord(episodes=9, twins=("other",))).reason
    assert verdict(TrainingRecord(episodes=0)).verdict == "missing"
    assert verdict(None).verdict == "missing"


def test_intervals_are_those_of_the_distribution(tmp_path):
    from twinloop.core.distribution import ParamDistribution

    run = json.loads((distribution(tmp_path / "run", 15.0, 25.0) / "result.json").read_text())
    found = compute_intervals(ParamDistribution.from_json(run["distribution"]), 0.95)
    assert found == {"actuator/elbow_flex/kp": (pytest.approx(15.0), pytest.approx(25.0))}


# The file.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latency": None}, r"latency: Input should be a mapping[\s\S]*to waive one, write \{waived: WHY\}"),
        ({"sucess": {"within": 0.1}}, r"sucess: .*success"),
        ({"success": {"within": 0.1, "better": 0.0}}, r"give either within .* or better"),
        ({"success": {"within": 5}}, r"success.*within: Input should be less than 1"),
        ({"floor": {"waived": ""}}, r"floor"),
        ({"invariants": {"violations": 3}}, r"violations: Input should be 0"),
        ({"context": {"task": "pick_and_place"}}, r"give twin, or distribution \(the folder of an identify run\)"),
    ],
)
def test_a_gate_file_that_is_wrong_is_told_where(changes, message):
    with pytest.raises(InputError, match=message):
        parse_gate(ASKED | changes, where="candidate.yaml")


BOTH = "a rule is either waived or given, but this one is both: leave out waived"


@pytest.mark.parametrize(
    ("success", "said"),
    [
        ({"within": 5}, "success.within: Input should be less than 1 (given: 5)"),
        (0.05, "success: Input should be a mapping, `key: value` (given: 0.05)"),
        ({"whithin": 0.1}, "success.whithin: This key does not exist (given: 0.1). Nearest existing: within"),
        ({"waived": "x", "floor": 1}, f"success: {BOTH}, or floor (given: {{'waived': 'x', 'floor': 1}})"),
    ],
)
def test_a_wrong_rule_is_told_in_one_line_and_nothing_else_is_blamed(success, said):
    with pytest.raises(InputError) as told:
        parse_gate(ASKED | {"success": success}, where="candidate.yaml")
    assert str(told.value) == f"candidate.yaml has errors:\n  {said}"


def test_the_one_look_is_not_taken_at_trials_of_somebody_else():
    new, old = (evaluation(who, outcomes(0.8, seed), slices=SLICES) for seed, who in enumerate(("new", "old")))
    known = GateContext(candidate_hash="new", champion_hash="old")
    swapped = decided({"looks": "once"}, old, new, known)
    assert [rule.rule for rule in swapped.rules] == ["evidence"]
    assert not swapped.is_tested
    assert swapped.rules[0].reason.endswith("no rule was evaluated, and the one look is still available")
    assert decided({"looks": "any"}, old, new, known).is_tested  # which may look again
    spent = decided({"looks": "once"}, new, old, replace(known, look_used="α was spent"))
    assert spent.rules[0].reason == "α was spent; no rule was evaluated"


def test_a_rule_that_is_left_out_is_asked_for():
    with pytest.raises(
        InputError, match=r"latency: This key is required, but missing[\s\S]*to waive one, write \{waived: WHY\}"
    ):
        parse_gate({key: value for key, value in ASKED.items() if key != "latency"})


def test_paths_are_taken_from_where_the_file_lies(tmp_path):
    given = ASKED | {
        "evidence": {"candidate": ["a"], "champion": ["b"]},
        "context": {"twin": "t", "distribution": "run"},
    }
    (tmp_path / "candidate.yaml").write_text(yaml.safe_dump(given))
    config = read_gate(tmp_path / "candidate.yaml")
    assert config.evidence is not None
    assert config.evidence.candidate == (tmp_path / "a",)
    assert config.context.distribution == tmp_path / "run"  # pyright: ignore[reportAttributeAccessIssue]


# The tests behind the rules.


def test_even_bets_are_the_e_process_of_wins_and_losses():
    x = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], p=[0.2, 0.5, 0.3], size=(3, 300))
    wins, losses = np.cumsum(x > 0, axis=1), np.cumsum(x < 0, axis=1)
    tail = np.log1p(-betainc(wins + 1, losses + 1, 0.5))
    closed = (wins + losses + 1) * np.log(2) + betaln(wins + 1, losses + 1) + tail
    found = log_e_mean(x, 0.0, low=-1, high=1, alternative="greater", bets="even")
    np.testing.assert_allclose(found, closed, atol=1e-6)


def test_the_exact_test_of_a_margin_keeps_its_level_and_agrees_with_mcnemar():
    random, n = np.random.default_rng(1), 60
    p = paired_p_values(n, difference=-0.1)
    for share in (0.02, 0.2, 0.44):
        drawn = random.multinomial(n, [share, share + 0.1, max(1 - 2 * share - 0.1, 0.0)], size=4000)
        assert (p[drawn[:, 0], drawn[:, 1]] <= 0.05).mean() <= 0.06
    assert np.all(np.diff(p[:, 5][: n - 4]) <= 1e-12)  # more wins never weaken the evidence
    counts = PairedCounts(both=20, only_a=18, only_b=6, neither=16)
    assert paired_p_value(counts) == pytest.approx(mcnemar(counts, alternative="greater"), abs=0.01)
    with pytest.raises(InputError, match=r"takes 1 to 600 pairs, not 601"):
        paired_p_values(601)


def test_the_bound_of_a_quantile_covers_it():
    random = np.random.default_rng(2)
    bounds = [quantile_upper(random.exponential(size=120), 0.9) for _ in range(800)]
    missed = sum(bound is not None and bound < -np.log(0.1) for bound in bounds)
    assert missed / 800 <= 0.07
    assert quantile_upper(np.arange(58.0), 0.95) is None
    assert min_value_count(0.95) == 59
    assert quantile_upper(np.arange(59.0), 0.95) == 58.0


def test_trials_take_turns_so_that_what_comes_later_stays_behind():
    order, looks = interleave_slices(["a", "a", "b", "b"])
    assert order.tolist() == [0, 2, 1, 3]
    assert looks.tolist() == [2, 4]
    longer, _ = interleave_slices(["a", "a", "b", "b", "a", "b"])
    assert longer.tolist()[:4] == order.tolist()
    assert interleave_slices(["a", "a", "b"])[1].tolist() == [3]


def test_slices_of_unlike_effect_do_not_mislead_by_their_order():
    """Better in the first slice, as much worse in the second: one who read slice by slice would promote it."""
    random, n, alarms, naive = np.random.default_rng(3), 100, 0, 0
    slices = ["a"] * n + ["b"] * n
    for _ in range(20):
        a = random.random(2 * n) < np.repeat([0.9, 0.5], n)
        b = random.random(2 * n) < np.repeat([0.5, 0.9], n)
        alarms += compare_pairs(a, b, slices, margin=0.0, alpha=0.05, looks="any").answer == "shown"
        wealth = log_e_mean(a * 1.0 - b, 0.0, low=-1, high=1, alternative="greater", bets="even")
        naive += wealth.max() >= -np.log(0.05)
    assert alarms <= 3  # 5 % of 20 is one
    assert naive == 20
