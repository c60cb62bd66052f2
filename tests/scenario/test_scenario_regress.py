"""A regression is reported only if it exists, in the right worlds, and at the promised rate."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.scenario.regress import (
    RegressionVerdict,
    compare_trials,
    decide_verdicts,
    format_stored_outcomes,
    parse_stored_outcomes,
)
from twinloop.scenario.trials import TrialOutcomes


def tried(outcomes):
    return TrialOutcomes.of_outcomes(outcomes, "somebody")


def test_worlds_that_turn_decide_and_those_that_were_lost_do_not():
    row = compare_trials("a", tried("1111111100x"), tried("0000000001x1"))
    assert (row.gained, row.lost) == (1, 8)
    assert row.p_fell == pytest.approx(10 / 2**9)  # at least 8 of 9 coins
    (verdict,) = decide_verdicts([row])
    assert verdict.verdict == "regressed"
    assert verdict.fails_build


def test_better_is_no_regression_but_on_a_new_twin_a_real_failure_must_not_vanish():
    rows = [compare_trials(name, tried("0" * 12), tried("1" * 12)) for name in ("sim", "real")]
    assert [row.verdict for row in decide_verdicts(rows)] == ["improved", "improved"]
    assert [row.verdict for row in decide_verdicts(rows, real=[False, True])] == ["improved", "gone"]


def test_what_cannot_be_run_fails_a_build():
    refused = RegressionVerdict(name="b", verdict="refused", before=tried("01"), after=None, note="no such parameter")
    words = {row.name: row.verdict for row in decide_verdicts([compare_trials("a", tried("01"), tried("01")), refused])}
    assert words == {"a": "unchanged", "b": "refused"}
    assert refused.to_json(0.95)["after"] is None


def test_false_alarms_over_all_scenarios_stay_below_what_was_promised():
    """Ten scenarios of a policy that is as good as before, 100 builds."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(100):
        runs = rng.random((2, 10, 24)) < 0.5
        rows = [
            compare_trials(
                str(i), *(TrialOutcomes(actor="", success=side[i], valid=np.ones(24, dtype=bool)) for side in runs)
            )
            for i in range(10)
        ]
        alarms += any(row.verdict == "regressed" for row in decide_verdicts(rows, alpha=0.05))
    assert alarms / 100 <= 0.05


def test_what_was_stored_is_read_back_and_what_was_not_says_how():
    stored = {"expected": format_stored_outcomes("policies/mine", tried("01x1"))}
    reference, again = parse_stored_outcomes(stored, "a")
    assert reference == "policies/mine"
    assert again.outcomes == "01x1"
    assert stored["expected"]["failures"] == 1
    with pytest.raises(InputError, match="has no stored outcomes to compare with"):
        parse_stored_outcomes({}, "a")
    with pytest.raises(InputError, match="Use only 0, 1 and x"):
        parse_stored_outcomes({"expected": {"reference": "", "actor": "", "outcomes": "0101?"}}, "a")
    with pytest.raises(InputError, match="no world is valid in both the earlier and the present trials"):
        compare_trials("a", tried("x0"), tried("1x"))
