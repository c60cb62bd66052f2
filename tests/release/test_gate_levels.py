"""At which evidence a rule's verdict turns: p-values of closed forms, just above and just below α."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from scipy.special import betainc, betaln

from support.releases import evaluation
from twinloop.core.decision import RuleVerdict
from twinloop.release.gate import gate
from twinloop.release.gate_config import parse_gate
from twinloop.release.rules_effect import compare_pairs
from twinloop.stats import paired_p_values

OFF = {"waived": "not asked here"}
ALL_OFF: dict[str, Any] = {
    "candidate": "new",
    "champion": "old",
    **dict.fromkeys(("success", "floor", "regressions", "latency", "context"), OFF),
}
ABOVE, BELOW = 1.001, 0.999  # of a p-value: an α that reaches it, and one that does not


def pairs(wins: int, losses: int, both: int = 0, neither: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes of candidate and champion with so many pairs of each kind."""
    a, b = ([1, 0, 1, 0], [0, 1, 1, 0])
    counts = [wins, losses, both, neither]
    return np.repeat(a, counts).astype(bool), np.repeat(b, counts).astype(bool)


def ruled(rule: str, outcomes: tuple[np.ndarray, np.ndarray], changes: dict[str, Any], slices=None) -> RuleVerdict:
    sides = [evaluation(name, won, slices=slices) for name, won in zip(("new", "old"), outcomes, strict=True)]
    return gate(parse_gate(ALL_OFF | changes), *sides).rule(rule)


def e_process_p(wins: int, losses: int) -> float:
    """1 over the wealth that even bets on a fair coin have after wins and losses, which is a beta integral."""
    n = wins + losses
    log_e = (n + 1) * np.log(2) + betaln(wins + 1, losses + 1) + np.log1p(-betainc(wins + 1, losses + 1, 0.5))
    return float(np.exp(-log_e))


def sign_test_p(wins: int, losses: int) -> float:
    return float(stats.binom.sf(wins - 1, wins + losses, 0.5))


def margin_p(wins: int, losses: int, n: int, margin: float) -> float:
    return float(paired_p_values(n, difference=margin)[wins, losses])


def turns(rule: str, p: float, yes, no, *, parts: int = 1, **changes: Any) -> None:
    """The verdict is ``yes`` at an α just above ``p`` (times the parts that share it), ``no`` just below."""
    for factor, expected in ((ABOVE, yes), (BELOW, no)):
        found = ruled(rule, **{**changes, "changes": changes["changes"] | {"alpha": factor * p * parts}})
        assert found.verdict == expected, (factor, found)


@pytest.mark.parametrize("looks", ["any", "once"])
def test_better_is_shown_exactly_where_its_p_value_reaches_alpha(looks):
    outcomes = pairs(21, 9, both=30, neither=5)
    p = e_process_p(21, 9) if looks == "any" else sign_test_p(21, 9)
    # One slice a pair: all pairs are one round, and there is one look, at the end.
    slices = np.arange(65)
    changes = {"success": {"better": 0.0}, "looks": looks}
    turns("success", p, "yes", "missing" if looks == "any" else "no", outcomes=outcomes, changes=changes, slices=slices)


def test_the_contrary_is_shown_exactly_where_its_p_value_reaches_alpha():
    changes = {"success": {"better": 0.0}, "looks": "any"}
    p = e_process_p(21, 9)
    turns("success", p, "no", "missing", outcomes=pairs(9, 21), changes=changes, slices=np.arange(30))


def test_several_effects_share_alpha_in_equal_parts():
    changes = {"improves": [{"metric": "success"}, {"metric": "success", "slice": "nowhere"}], "looks": "once"}
    turns("improves", sign_test_p(17, 6), "yes", "no", parts=2, outcomes=pairs(17, 6, both=9), changes=changes)


def test_not_worse_is_shown_exactly_where_the_exact_test_of_the_margin_reaches_alpha():
    p = margin_p(5, 6, 60, -0.1)
    assert 0.03 < p < 0.2
    changes = {"success": {"within": 0.1}, "looks": "once"}
    turns("success", p, "yes", "no", outcomes=pairs(5, 6, both=49), changes=changes)


def test_every_slice_is_tested_at_the_whole_of_alpha():
    n, p = 60, margin_p(5, 6, 60, -0.1)
    twice = tuple(np.concatenate([side, side]) for side in pairs(5, 6, both=49))
    changes = {"success": {"within": 0.1, "slices": 0.1}, "looks": "once"}
    turns("slices", p, "yes", "no", outcomes=twice, changes=changes, slices=np.repeat([0, 1], n))


def test_no_worse_on_the_robot_is_tested_on_its_trials_at_the_whole_of_alpha():
    """Trials of the suite that is the robot's, here the only one."""
    changes = {"robot": {"within": 0.1, "suites": ["nominal"]}, "looks": "once"}
    outcomes = pairs(5, 6, both=49)
    turns("robot", margin_p(5, 6, 60, -0.1), "yes", "no", outcomes=outcomes, changes=changes)


@pytest.mark.parametrize("looks", ["any", "once"])
def test_a_floor_is_shown_exactly_where_its_p_value_reaches_alpha(looks):
    """At a floor of one half the wealth of even bets is that of a sign test; once, p is a binomial tail."""
    wins, n = 40, 60
    won = np.tile([True, True, False], 20)  # in this order the wealth is largest at its last win
    p = min(e_process_p(int(won[:k].sum()), int(k - won[:k].sum())) for k in range(1, n + 1))
    if looks == "once":
        p = float(stats.binom.sf(wins - 1, n, 0.5))
    # Limits of confidence are sought in steps of 1/4096 of the range, so that α must be a little further from p.
    for factor, expected in ((1.03, "yes"), (0.97, "missing" if looks == "any" else "no")):
        changes = {"floor": {"success": 0.5}, "looks": looks, "alpha": factor * p}
        assert ruled("floor", (won, won), changes).verdict == expected


def test_a_slice_is_called_below_the_floor_exactly_where_that_p_value_reaches_alpha():
    won = np.tile([False, False, True], 20)
    p = min(e_process_p(int(k - won[:k].sum()), int(won[:k].sum())) for k in range(1, 61))
    changes = {"floor": {"success": 0.5}, "looks": "any"}
    turns("floor", p, "no", "missing", outcomes=(won, won), changes=changes)


def test_once_a_slice_below_the_floor_asks_for_no_more_trials():
    p = float(stats.binom.cdf(20, 60, 0.5))
    outcomes = pairs(0, 0, both=20, neither=40)
    for factor, more in ((ABOVE, False), (BELOW, True)):
        found = ruled("floor", outcomes, {"floor": {"success": 0.5}, "looks": "once", "alpha": factor * p})
        assert (found.verdict, "more trials may show it" in found.reason) == ("no", more)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_no_violation_bounds_its_rate_where_alpha_of_all_samples_would_have_none(alpha):
    found = ruled("invariants", pairs(0, 0, both=50), {"alpha": alpha})
    assert found.evidence["rate_below"] == pytest.approx(1 - alpha ** (1 / 50))


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_the_bound_of_a_latency_is_the_order_statistic_of_the_binomial(alpha):
    """The k-th of n values is above the quantile with the chance that fewer than k are below it."""
    n, q = 200, 0.9
    k = next(k for k in range(1, n + 1) if stats.binom.cdf(k - 1, n, q) >= 1 - alpha)
    times = np.random.default_rng(0).permutation(np.arange(1, n + 1)) * 1e-4
    made = evaluation("new", np.ones(n, dtype=bool), latency_s=times)
    for budget, verdict in (((k + 0.5) * 1e-4, "yes"), ((k - 0.5) * 1e-4, "no")):
        asked = {"alpha": alpha, "champion": None, "latency": {"quantile": q, "budget_s": budget}}
        found = gate(parse_gate(ALL_OFF | asked), made).rule("latency")
        assert found.evidence["high_s"] == pytest.approx(k * 1e-4)
        assert found.verdict == verdict


@pytest.mark.parametrize("alpha", [0.01, 0.2])
def test_too_few_latencies_say_how_many_bound_the_quantile(alpha):
    """The largest of n values is below the quantile q with a chance of q**n."""
    made = evaluation("new", np.ones(5, dtype=bool))
    asked = {"alpha": alpha, "champion": None, "latency": {"quantile": 0.9, "budget_s": 1.0}}
    needed = int(np.ceil(np.log(alpha) / np.log(0.9)))
    assert gate(parse_gate(ALL_OFF | asked), made).rule("latency").reason == (
        f"5 trials are too few to bound this quantile; {needed} are needed"
    )


@pytest.mark.parametrize(("invalid", "verdict"), [(0.0, "no"), (0.04, "no"), (0.05, "yes")])
def test_lost_worlds_refuse_a_candidate_beyond_the_share_that_may_be(invalid, verdict):
    made = evaluation("new", np.ones(40, dtype=bool))
    lost = pa.array(np.arange(40) >= 2)
    made = replace(made, trials=made.trials.set_column(made.trials.column_names.index("valid"), "valid", lost))
    found = gate(parse_gate(ALL_OFF | {"champion": None, "invariants": {"invalid": invalid}}), made).rule("invariants")
    assert (found.verdict, found.evidence["lost"]) == (verdict, 2)
    assert ("2 worlds were invalid" in found.reason) == (verdict == "no")


@pytest.mark.parametrize("metric", ["success", "progress"])
def test_a_lost_world_wins_no_pair(metric):
    """Successes and progress of a lost world count as none, on either side."""
    whole, none = evaluation("new", np.ones(30, dtype=bool)), pa.array(np.zeros(30, dtype=bool))
    at = whole.trials.column_names.index("valid")
    lost = replace(whole, trials=whole.trials.set_column(at, "valid", none))
    asked = parse_gate(ALL_OFF | {"improves": [{"metric": metric}], "invariants": {"invalid": 0.99}})
    for mine, difference in ((whole, 1.0), (lost, 0.0)):
        found = gate(asked, mine, replace(lost, policy="old")).rule("improves")
        assert found.evidence["effects"][0]["difference"] == difference


# The test behind the rules.


def wealth(off: np.ndarray, margin: float, sign: float = 1.0) -> float:
    """What even bets earn on differences beyond a margin, integrated over the bets."""
    bets = (np.arange(20_000) + 0.5) / 20_000 / (1 + sign * margin)
    return float(np.prod(1 + bets[:, None] * sign * (off - margin), axis=1).mean())


@pytest.mark.parametrize("margin", [-0.1, -0.05, 0.0, 0.07])
def test_p_values_and_limit_are_those_of_the_integrated_wealth(margin):
    off = np.random.default_rng(4).choice([-1.0, 0.0, 1.0], p=[0.1, 0.6, 0.3], size=40)
    found = compare_pairs(off > 0, off < 0, [str(i) for i in range(40)], margin=margin, alpha=0.05, looks="any")
    assert found.p_value == pytest.approx(min(1.0, 1 / wealth(off, margin)), rel=1e-3)
    assert found.p_against == pytest.approx(min(1.0, 1 / wealth(off, margin, -1.0)), rel=1e-3)
    assert wealth(off, found.low) == pytest.approx(20.0, rel=0.03)


def test_one_looks_only_where_every_slice_has_had_its_share():
    """Six slices won and six lost: a look in the middle of the round would see six wins of six."""
    won = np.repeat([True, False], 6)
    found = compare_pairs(won, ~won, [str(i) for i in range(12)], margin=0.0, alpha=0.05, looks="any")
    assert found.p_value == 1.0
    assert found.low < 0.0
    twice = np.concatenate([np.ones(12, dtype=bool), np.zeros(12, dtype=bool)])
    slices = [str(i % 12) for i in range(24)]
    first, both = (
        compare_pairs(twice[:n], ~twice[:n], slices[:n], margin=0.0, alpha=0.05, looks="any") for n in (12, 24)
    )
    assert both.p_value == first.p_value == pytest.approx(e_process_p(12, 0))  # a result at an earlier look stays valid
    assert both.low == first.low > 0.0


@pytest.mark.parametrize(("wins", "losses", "ties"), [(3, 1, 6), (2, 1, 7), (4, 1, 0), (3, 2, 5)])
def test_the_pairs_that_are_said_to_be_missing_decide_if_all_goes_on_as_seen(wins, losses, ties):
    a, b = pairs(wins, losses, both=ties)
    found = compare_pairs(a, b, ["one"] * len(a), margin=0.0, alpha=0.05, looks="any")
    decided = len(a) * next(times for times in range(1, 200) if e_process_p(wins * times, losses * times) <= 0.05)
    assert found.answer == "open"
    assert found.further is not None
    assert len(a) + found.further == pytest.approx(decided, rel=0.3)
    assert compare_pairs(b, a, ["one"] * len(a), margin=0.0, alpha=0.05, looks="any").further is None


def test_nothing_is_missing_once_it_is_shown():
    a, b = pairs(40, 2)
    assert compare_pairs(a, b, ["one"] * 42, margin=0.0, alpha=0.05, looks="any").further == 0
