"""Comparisons of two policies: error rate, stopping time, and wording of the result."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import betainc, betaln

from twinloop.core.errors import InputError
from twinloop.core.evaluation import Evaluation
from twinloop.evaluate.candidates import make_candidate
from twinloop.evaluate.comparison import compare_outcomes, compare_running, compare_stored, is_decided
from twinloop.stats.sequential import log_e_pairs, sequential_pairs


def pairs(rng, p, *, only_a=0.0, only_b=0.0, n=200, rows=300):
    """Pairs of trials: both succeed with chance ``p`` but for those that one alone wins."""
    u = rng.random((rows, n))
    won_a = u < only_a
    won_b = (u >= only_a) & (u < only_a + only_b)
    both = (u >= only_a + only_b) & (rng.random((rows, n)) < p)
    return (won_a | both).astype(float), (won_b | both).astype(float)


def test_without_a_difference_the_wealth_is_the_closed_form_of_a_sign_test():
    rng = np.random.default_rng(1)
    a, b = rng.random(300) < 0.8, rng.random(300) < 0.65
    w, tied = np.cumsum(a & ~b), np.cumsum(b & ~a)
    closed = (w + tied + 1) * np.log(2) + betaln(w + 1, tied + 1) + np.log(1 - betainc(w + 1, tied + 1, 0.5))
    np.testing.assert_allclose(log_e_pairs(a, b, alternative="greater"), closed, atol=1e-8)


def test_wrong_decisions_stay_within_alpha_however_often_one_looks():
    rng, alpha = np.random.default_rng(2), 0.1
    a, b = pairs(rng, 0.7, only_a=0.1, only_b=0.1)
    called = (log_e_pairs(a, b).max(axis=1) >= -np.log(alpha)).mean()
    assert called <= alpha + 2 * np.sqrt(alpha * (1 - alpha) / len(a))
    a, b = pairs(rng, 0.7, only_a=0.15, only_b=0.05)  # the difference is the margin: never equivalent
    above = log_e_pairs(a, b, difference=0.1, alternative="less").max(axis=1) >= -np.log(alpha)
    assert above.mean() <= alpha + 2 * np.sqrt(alpha * (1 - alpha) / len(a))


def test_confidence_sequences_hold_the_difference_at_every_look():
    rng, level = np.random.default_rng(3), 0.8
    a, b = pairs(rng, 0.6, only_a=0.2, only_b=0.1)
    refused = (log_e_pairs(a, b, difference=0.1).max(axis=1) >= -np.log(1 - level)).mean()
    assert refused <= 1 - level + 2 * np.sqrt(level * (1 - level) / len(a))
    made = sequential_pairs(a[0], b[0], level=level)  # the range of accepted values, on its grid
    inside = [d for d in (-0.5, 0.0, 0.1, 0.2, 0.5) if made.low[-1] <= d <= made.high[-1]]
    kept = [d for d in (-0.5, 0.0, 0.1, 0.2, 0.5) if log_e_pairs(a[0], b[0], difference=d).max() < -np.log(1 - level)]
    assert inside == kept


def test_the_same_outcomes_are_equivalent_and_never_better():
    won = np.random.default_rng(4).random(200) < 0.5
    found = compare_outcomes(won, won, margin=0.1)
    assert (found.answer, found.discordant_counts) == ("equivalent", (0, 0))
    assert found.fixed_p_value == 1.0
    assert "equivalent within 0.1: decided at pair" in found.format_sentence()


def test_a_better_policy_is_found_early_and_told():
    rng = np.random.default_rng(5)
    a, b = pairs(rng, 0.6, only_a=0.3, n=200, rows=1)
    found = compare_outcomes(a[0], b[0], names=("new", "old"), slices=["x"] * 100 + ["y"] * 100)
    assert found.answer == "better"
    assert found.decided is not None
    assert found.decided < 60
    assert found.format_sentence().startswith("new is better than old: decided at pair")
    assert float(found.interval.low) > 0
    assert sum(row[0] for row in found.by_slice.values()) == 200
    assert compare_outcomes(b[0], a[0]).answer == "worse"
    assert is_decided(a[0], b[0], alpha=0.05, margin=None)
    assert not is_decided(a[0, :5], b[0, :5], alpha=0.05, margin=0.05)


def test_few_pairs_decide_nothing_and_say_so():
    found = compare_outcomes(np.array([1, 0, 1]), np.array([0, 0, 1]))
    assert found.answer == "undecided"
    assert found.decided is None
    assert "undecided after 3 pairs" in found.format_sentence()
    assert "--margin" in found.format_sentence()


def stored(policy, won, **changes):
    n = len(won)
    rows = {"slice": ["s"] * n, "trial": [f"s#{i}" for i in range(n)], "success": won, "valid": [True] * n}
    facts = {"suite": "nominal", "twin_hash": "t", "task": "pick", "run_seed": 1, "extra": {"suite_hash": "h"}}
    return Evaluation(policy=policy, trials=pa.table(rows), **{**facts, **changes})


def test_stored_evaluations_are_paired_by_trial_and_not_by_row():
    won = [bool(x) for x in np.random.default_rng(6).random(60) < 0.5]
    made = stored("a", won)
    turned = dataclasses.replace(made, policy="b", trials=made.trials.take(list(range(59, -1, -1))))
    assert compare_stored(made, turned).discordant_counts == (0, 0)
    lost = compare_stored(made, stored("c", [False] * 60))
    assert lost.discordant_counts == (sum(won), 0)
    assert lost.answer == "better"


def test_a_lost_world_is_no_success_of_either():
    won = [True] * 60
    whole, lost = stored("a", won), stored("b", won)
    at = lost.trials.column_names.index("valid")
    lost = dataclasses.replace(lost, trials=lost.trials.set_column(at, "valid", pa.array([False] * 20 + [True] * 40)))
    assert compare_stored(whole, lost).discordant_counts == (20, 0)
    assert compare_stored(lost, whole).discordant_counts == (0, 20)


def test_a_lost_world_is_no_success_while_it_runs():
    """A runner whose every world succeeds, and loses those of one policy afterwards."""

    kept, lost = (make_candidate("expert", name=name) for name in ("kept", "lost"))
    runner: Any = SimpleNamespace(
        suite=SimpleNamespace(name="one", slices=(SimpleNamespace(name="s"),)),
        run_seed=0,
        run=lambda who, trials: [{"success": True, "valid": who is kept} for _ in trials],
    )
    found, rows, _ = compare_running(kept, lost, runner, max_pairs=64)
    assert found.answer == "better"
    assert found.discordant_counts == (len(rows), 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run_seed": 2}, r"run seed 1 and 2.*same --suite, --seed and --twin"),
        ({"twin_hash": "u"}, "twin t and u"),
        ({"extra": {"suite_hash": "g"}}, "another version of the suite nominal"),
        ({"domain": "real"}, "domain sim and real"),
    ],
)
def test_what_was_not_tried_alike_is_not_paired(changes, said):
    with pytest.raises(InputError, match=said):
        compare_stored(stored("a", [True]), stored("b", [True], **changes))


def test_margins_and_outcomes_that_are_none_are_refused():
    with pytest.raises(InputError, match="margin of equivalence must be between 0 and 1"):
        compare_outcomes(np.ones(3), np.ones(3), margin=5)
    with pytest.raises(InputError, match="confidence level must be between 0 and 1"):
        compare_outcomes(np.ones(3), np.ones(3), alpha=5)
    with pytest.raises(InputError, match="Give both values of every pair"):
        log_e_pairs([1, 0], [1])
    a = stored("a", [True])
    b = dataclasses.replace(a, trials=a.trials.set_column(1, "trial", pa.array(["other"])))
    with pytest.raises(InputError, match="no trial in common"):
        compare_stored(a, b)
