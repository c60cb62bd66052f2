"""Intervals against closed forms, and their coverage measured by simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from twinloop.core.errors import InputError
from twinloop.stats import (
    bootstrap,
    bootstrap_mean,
    bootstrap_paired,
    clopper_pearson,
    wilson,
)


def ar1(rng, n, rho, size):
    noise = rng.normal(size=(size, n))
    out = np.empty_like(noise)
    out[:, 0] = noise[:, 0] / np.sqrt(1 - rho**2)
    for t in range(1, n):
        out[:, t] = rho * out[:, t - 1] + noise[:, t]
    return out


def test_bootstrap_of_a_mean_agrees_with_normal_theory():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=400)
    interval = bootstrap_mean(values, draws=4000)
    half = 1.96 * values.std(ddof=1) / np.sqrt(400)
    assert interval.estimate == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_bca_leans_towards_the_long_tail():
    values = np.random.default_rng(1).exponential(size=25)
    bca, percentile = (bootstrap_mean(values, draws=4000, method=m) for m in ("bca", "percentile"))
    assert bca.high > percentile.high
    assert bca.low > percentile.low


def test_bootstrap_draws_clusters_and_is_a_function_of_its_seed():
    clusters = np.random.default_rng(2).normal(size=(8, 3))
    first, again, other = (bootstrap_mean(clusters, seed=s) for s in (5, 5, 6))
    assert np.array_equal(first.low, again.low)
    assert not np.array_equal(first.low, other.low)
    assert first.low.shape == (3,)


def test_weights_are_lengths():
    interval = bootstrap_mean([1.0, 3.0], weights=[3, 1])
    assert interval.estimate == pytest.approx(1.5)


def test_paired_difference_of_equal_clusters_is_zero_and_smaller_than_the_unpaired_spread():
    before = np.random.default_rng(3).normal(10.0, 5.0, size=20)
    same = bootstrap_paired(before, before)
    assert same.low == same.high == 0.0
    shifted = bootstrap_paired(before, before - 0.5)
    assert shifted.covers(-0.5)
    assert shifted.high < 0.0


def test_a_statistic_may_be_anything_of_the_clusters():
    values = np.arange(1.0, 12.0)
    interval = bootstrap(lambda rows: np.median(values[rows], axis=1), len(values), method="percentile")
    assert interval.estimate == 6.0
    assert 1.0 < interval.low < 6.0 < interval.high < 11.0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: bootstrap_mean([1.0]), "needs at least 2"),
        (lambda: bootstrap_mean([1.0, 2.0], level=95), "Write 95 % as 0.95"),
        (lambda: bootstrap_paired([1.0, 2.0], [1.0]), "the same clusters to both"),
        (lambda: wilson(3, 2), "3 successes of 2 trials"),
        (lambda: clopper_pearson(0, 0), "0 successes of 0 trials"),
    ],
)
def test_mistakes_are_named(call, text):
    with pytest.raises(InputError, match=text):
        call()


def test_wilson_and_clopper_pearson_published_values():
    # Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for successes, trials, score, exact in [
        (81, 263, (0.2553, 0.3662), (0.2527, 0.3676)),
        (15, 148, (0.0624, 0.1605), (0.0578, 0.1617)),
        (0, 20, (0.0, 0.1611), (0.0, 0.1684)),
        (1, 29, (0.0061, 0.1718), (0.0009, 0.1776)),
    ]:
        for interval, wanted in ((wilson(successes, trials), score), (clopper_pearson(successes, trials), exact)):
            assert (interval.low, interval.high) == pytest.approx(wanted, abs=6e-5)


@given(st.integers(1, 60), st.floats(0.02, 0.98))
def test_clopper_pearson_never_covers_less_than_it_says(trials, rate):
    outcomes = np.arange(trials + 1)
    covered = [bool(clopper_pearson(int(k), trials, level=0.9).covers(rate)) for k in outcomes]
    assert binom.pmf(outcomes, trials, rate) @ covered >= 0.9 - 1e-9


def test_bootstrap_over_episodes_covers_under_correlated_noise():
    """Mean absolute error over 12 episodes of 80 correlated frames, 300 repetitions of a 90 % interval."""
    rng = np.random.default_rng(5)
    truth = np.sqrt(2 / np.pi) / np.sqrt(1 - 0.9**2)
    covered = 0
    for _ in range(300):
        errors = np.abs(ar1(rng, 80, 0.9, 12)).mean(axis=1)
        covered += bool(bootstrap_mean(errors, level=0.9, draws=500).covers(truth))
    assert 0.83 <= covered / 300 <= 0.96


def test_a_share_is_printed_with_its_interval():
    assert wilson(1, 1).percent() == "100% [21%, 100%]"
    assert wilson(3, 4).percent(1) == "75.0% [30.1%, 95.4%]"
