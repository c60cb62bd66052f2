"""Scored trials: validation, selection and pairing."""

import numpy as np
import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.trials import Trials, pair_trials


def _trials() -> Trials:
    return Trials(
        policy=("a", "a", "b", "b", "a"),
        domain=("real", "sim", "real", "sim", "real"),
        score=np.array([1.0, 0.5, 0.0, 1.0, 0.25]),
        success=(True, None, False, True, False),
        task=("lift",) * 5,
        condition=("bright", "bright", "dark", "dark", "dark"),
        pair=("1", "1", "1", "1", "2"),
        origin="bench.csv",
    )


def test_selectors_keep_every_column_aligned():
    trials = _trials()
    chosen = trials.where(policy="a", domain="real")
    assert chosen.score.tolist() == [1.0, 0.25]
    assert chosen.success == (True, False)
    assert chosen.condition == ("bright", "dark")
    assert trials.policies == ("a", "b")
    assert trials.conditions == ("bright", "dark")
    assert trials.tasks == ("lift",)
    assert len(trials.real) == 3
    assert len(trials.sim) == 2
    assert Trials.concatenate_trials([trials.real, trials.sim]).score.tolist() == [1.0, 0.0, 0.25, 0.5, 1.0]
    assert len(Trials.concatenate_trials([])) == 0
    assert not trials.score.flags.writeable


def test_counts_and_successes():
    trials = Trials.of_counts("a", "real", 3, 10, task="lift")
    assert trials.counts() == (3, 10)
    assert trials.select_measure("success").sum() == trials.score.sum() == 3
    assert trials.has_outcomes
    assert not _trials().has_outcomes


def test_pairs_join_what_was_tried_in_both_domains():
    both = pair_trials(_trials())
    assert both.policy == ("a", "b")
    assert both.real.tolist() == [1.0, 0.0]
    assert both.sim.tolist() == [0.5, 1.0]
    again = Trials.concatenate_trials([_trials(), _trials().take([1]), Trials.of_counts("a", "sim", 0, 1)])
    assert pair_trials(again).sim.tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"score": np.array([75.0, 20.0])}, r"Trial 0 \(real, a\) of t\.csv has a score outside 0 to 1.*2 such"),
        ({"score": np.array([0.5, np.nan])}, r"Trial 1 \(sim, a\) .*outside"),
        ({"domain": ("real", "mujoco")}, r"Trial 1 \(mujoco, a\) of t\.csv is neither real nor sim"),
        ({"policy": ("", "a")}, r"has no policy name"),
        ({"policy": ("a",)}, r"1 entries of policy for 2 scores"),
        ({"success": (True,)}, r"1 entries of success for 2 scores"),
    ],
)
def test_what_is_no_trial_is_named(change, words):
    good = {"policy": ("a", "a"), "domain": ("real", "sim"), "score": np.array([0.0, 1.0]), "origin": "t.csv"}
    Trials(**good)
    with pytest.raises(InputError, match=words):
        Trials(**{**good, **change})


def test_what_is_not_there_is_named():
    with pytest.raises(UnknownNameError, match="Unknown policy 'c' in bench.csv. Existing: a, b."):
        _trials().where(policy="c")
    with pytest.raises(InputError, match=r"1 of 5 trials of bench.csv have no outcome.*1 \(sim, a"):
        _trials().counts()
    with pytest.raises(InputError, match="Policy a, real: 4 successes of 3 trials"):
        Trials.of_counts("a", "real", 4, 3)
