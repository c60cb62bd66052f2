"""Summaries of evaluations: planted success rates, and the worst slice's interval though it was chosen."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from twinloop.core.errors import InputError
from twinloop.core.evaluation import Evaluation
from twinloop.evaluate.summary import EvaluationSummary, compute_worst_rate


def planted(rates, n, seed):
    """An evaluation whose slices have these success rates."""
    random = np.random.default_rng(seed)
    names = [f"s{i}" for i in range(len(rates)) for _ in range(n)]
    won = np.concatenate([random.random(n) < rate for rate in rates])
    rows = {
        "slice": names,
        "trial": [f"{name}#{i}" for i, name in enumerate(names)],
        "success": won,
        "progress": won.astype(float),
        "valid": [True] * len(names),
    }
    return Evaluation(policy="p", suite="s", trials=pa.table(rows))


def test_intervals_hold_planted_rates_as_often_as_they_say():
    rates, held, overall = (0.2, 0.7, 0.95), [], []
    for seed in range(60):
        made = EvaluationSummary.of(planted(rates, 30, seed), level=0.9)
        held += [item.success.covers(rates[int(item.name[1:])]) for item in made.slices]
        overall.append(made.overall.covers(np.mean(rates)))
    assert np.mean(held) >= 0.9  # exact: never below
    assert np.mean(overall) >= 0.9


def test_the_worst_slice_is_given_an_interval_that_knows_it_was_chosen():
    alike, unlike, naive = [], [], []
    for seed in range(300):
        random = np.random.default_rng(seed)
        counts = [(int(random.binomial(20, 0.8)), 20) for _ in range(12)]
        alike.append(compute_worst_rate(counts, level=0.9).covers(0.8))
        own = min(compute_worst_rate([pair], level=0.9).high.item() for pair in counts)
        naive.append(own >= 0.8)
        rates = np.linspace(0.5, 0.95, 12)
        counts = [(int(random.binomial(20, rate)), 20) for rate in rates]
        unlike.append(compute_worst_rate(counts, level=0.9).covers(0.5))
    assert np.mean(alike) >= 0.9
    assert np.mean(unlike) >= 0.9
    assert np.mean(naive) < 0.9  # the interval of one slice, taken of the worst of twelve, does not hold


def test_slices_come_worst_first_and_lost_worlds_count_as_no_success():
    rows = {
        "slice": ["good"] * 3 + ["bad"] * 3,
        "trial": ["0", "1", "2"] * 2,
        "success": [True, True, True, True, False, False],
        "progress": [1.0, 1.0, 1.0, 1.0, 0.5, None],
        "time_s": [2.0, 3.0, 4.0, 5.0, None, None],
        "peak_force_n": [1.0, 2.0, 9.0, None, None, None],
        "violations": [0, 2, 0, None, None, None],
        "valid": [True, True, True, False, True, True],
        "reason": [None, None, None, "diverged", None, None],
    }
    made = EvaluationSummary.of(Evaluation(policy="p", suite="s", trials=pa.table(rows)))
    bad, good = made.slices
    assert (bad.name, bad.successes, bad.invalid, bad.reasons) == ("bad", 0, 1, ("diverged",))
    assert (good.time_s, good.peak_force_n, good.peak_force_most_n) == (3.0, 2.0, 9.0)
    assert good.violating == pytest.approx(1 / 3)
    assert math.isnan(bad.violating)
    assert made.overall.estimate == 0.5
    assert made.worst.estimate == 0.0
    metrics = {metric.name: metric for metric in made.headline()}
    assert metrics["success/bad"].estimate == 0.0
    assert metrics["invalid"].estimate == pytest.approx(1 / 6)
    assert metrics["violating"].estimate == pytest.approx(1 / 3)  # of the trials with a recorded value
    with pytest.raises(InputError, match="Write 95 % as 0.95"):
        EvaluationSummary.of(planted([0.5], 3, 0), level=95)
