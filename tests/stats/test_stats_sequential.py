"""Anytime-valid comparisons: the published formula step by step, false alarms under peeking, coverage at every look."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

from twinloop.core.errors import InputError
from twinloop.stats import decision_blocks, log_e_rates, log_e_scores, sequential_rates, sequential_scores


def plain(a, b, gamma=0.5):
    """Turner, Ly and Grünwald's wealth for p_b > p_a, one pair after the other."""
    wealth, out, won_a, won_b = 1.0, [], 0, 0
    for n, (x, y) in enumerate(zip(a, b, strict=True)):
        p_a, p_b = (won_a + gamma) / (n + 2 * gamma), (won_b + gamma) / (n + 2 * gamma)
        if p_b > p_a:
            p_0 = (p_a + p_b) / 2
            for p, seen in ((p_a, x), (p_b, y)):
                wealth *= p if seen else 1 - p
                wealth /= p_0 if seen else 1 - p_0
        won_a, won_b = won_a + x, won_b + y
        out.append(wealth)
    return np.log(out)


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_it_is_the_published_formula(gamma):
    random = np.random.default_rng(0)
    a, b = random.random((5, 60)) < 0.3, random.random((5, 60)) < 0.6
    fast = log_e_rates(a, b, alternative="less", gamma=gamma)
    np.testing.assert_allclose(fast, [plain(x, y, gamma) for x, y in zip(a, b, strict=True)], atol=1e-12)
    two = log_e_rates(a, b, gamma=gamma)
    np.testing.assert_allclose(np.exp(two), (np.exp(fast) + np.exp([plain(y, x, gamma) for x, y in zip(a, b)])) / 2)  # noqa: B905


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (3, 5)])
@pytest.mark.parametrize(("shift", "p_b"), [(0.0, 0.05), (0.0, 0.5), (0.25, 0.3), (-0.4, 0.8)])
def test_false_alarms_under_peeking_stay_below_alpha(sizes, shift, p_b):
    random = np.random.default_rng(7)
    a, b = (random.binomial(n, p, (1500, 60)) for n, p in zip(sizes, (p_b + shift, p_b), strict=True))
    for side in ("two-sided", "greater", "less"):
        log_e = log_e_rates(a, b, size_a=sizes[0], size_b=sizes[1], difference=shift, alternative=side)
        assert (decision_blocks(log_e) > 0).mean() <= 0.05


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize(("shift", "p_b"), [(0.0, 0.1), (0.0, 0.5), (0.3, 0.4), (-0.3, 0.9)])
def test_the_mean_wealth_over_all_outcomes_is_at_most_one(sizes, shift, p_b):
    ways = np.array(list(product(*[range(sizes[0] + 1)] * 3, *[range(sizes[1] + 1)] * 3)))
    a, b = ways[:, :3], ways[:, 3:]
    for further, side in ((0.0, "two-sided"), (-0.05, "greater"), (0.05, "less")):  # and within the hypothesis
        p_a = np.clip(p_b + shift + further, 0, 1)
        chance = binom.pmf(a, sizes[0], p_a).prod(axis=1) * binom.pmf(b, sizes[1], p_b).prod(axis=1)
        wealth = np.exp(log_e_rates(a, b, size_a=sizes[0], size_b=sizes[1], difference=shift, alternative=side))
        assert (chance @ wealth <= 1 + 1e-9).all()
        assert chance @ wealth[:, 0] <= 1 + 1e-9


def test_published_rates_are_decided_as_fast_as_published():
    random = np.random.default_rng(3)
    a, b = random.random((2000, 200)) < 0.56, random.random((2000, 200)) < 0.92
    at = decision_blocks(log_e_rates(a, b, alternative="less"))
    assert (at > 0).all()
    assert 20 <= np.median(at) <= 24  # SAVI on the recorded trials: 20


def test_the_confidence_sequence_covers_at_every_look():
    random = np.random.default_rng(5)
    missed = 0
    for _ in range(30):
        found = sequential_rates(random.random(40) < 0.7, random.random(40) < 0.4)
        missed += bool(((found.low > 0.3) | (found.high < 0.3)).any())
        assert (np.diff(found.low) >= 0).all()
        assert (np.diff(found.high) <= 0).all()
    assert missed <= 3
    narrow = sequential_rates(random.random(1000) < 0.7, random.random(1000) < 0.4).interval
    assert float(narrow.high - narrow.low) < 0.2
    assert bool(narrow.covers(0.3))


def test_zero_leaves_the_confidence_sequence_when_the_test_stops():
    random = np.random.default_rng(11)
    found = sequential_rates(random.random(120) < 0.9, random.random(120) < 0.5)
    assert found.stopped is not None
    assert found.low[found.stopped - 1] >= -0.005  # a step of the grid
    assert found.low[found.stopped - 2] < 0
    assert found.p_value[found.stopped - 1] <= 0.05 < found.p_value[found.stopped - 2]


@pytest.mark.parametrize("law", [(2, 2), (0.3, 0.3), (5, 1)])
def test_scores_keep_alpha_and_are_decided(law):
    random = np.random.default_rng(13)
    a, b = random.beta(*law, (800, 80)), random.beta(*law, (800, 80))
    for side in ("two-sided", "greater"):
        assert (decision_blocks(log_e_scores(a, b, alternative=side)) > 0).mean() <= 0.05
    found = sequential_scores(random.beta(6, 3, 300), random.beta(3, 6, 300))
    assert found.stopped is not None
    assert found.stopped < 60
    assert bool(found.interval.covers(1 / 3))


def test_scores_of_zero_and_one_agree_with_rates_about_the_verdict():
    random = np.random.default_rng(17)
    a, b = random.random(150) < 0.85, random.random(150) < 0.45
    for found in (sequential_rates(a, b), sequential_scores(a, b)):
        assert found.stopped is not None
        assert found.stopped < 80


def test_bad_input_is_named():
    with pytest.raises(InputError, match="Arm b has a block whose number of successes is not an integer from 0 to 1"):
        log_e_rates([1, 0], [0.5, 1])
    with pytest.raises(InputError, match="Give both arms of every block"):
        log_e_rates([1, 0, 1], [1, 1])
    with pytest.raises(InputError, match="no block of trials"):
        log_e_rates([], [])
    with pytest.raises(InputError, match="γ = 0"):
        log_e_rates([1], [1], gamma=0)
    with pytest.raises(InputError, match=r"Value 1\.2 \(number 1\) is outside its bounds 0 to 1"):
        log_e_scores([0.2, 1.2], [0.1, 0.1])
