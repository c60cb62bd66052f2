"""Demonstrations of a failure rate: exact counts, and error rates that hold whenever one looks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from twinloop.core.errors import InputError
from twinloop.stats.proportion import (
    claim_probability,
    failure_rate_bound,
    log_wealth,
    sequential_claim_trials,
    trials_to_claim,
)


def test_no_failure_allowed_is_the_closed_form():
    assert trials_to_claim(1e-3) == math.ceil(math.log(0.05) / math.log(1 - 1e-3)) == 2995
    assert trials_to_claim(0.1) == 29
    assert trials_to_claim(0.01, confidence=0.99) == 459


def test_published_numbers_with_failures_allowed():
    """59 and 93 trials show 95 % reliability at 95 % confidence with 0 and 1 failures: tables of success-run tests."""
    assert [trials_to_claim(0.05, failures=k) for k in range(3)] == [59, 93, 124]


@given(rate=st.floats(1e-4, 0.5), failures=st.integers(0, 20), confidence=st.floats(0.5, 0.999))
def test_the_count_is_the_least_that_shows_it(rate, failures, confidence):
    n = trials_to_claim(rate, confidence=confidence, failures=failures)
    assert binom.cdf(failures, n, rate) <= (1 - confidence) * (1 + 1e-9)
    assert n - 1 <= failures or binom.cdf(failures, n - 1, rate) > (1 - confidence) * (1 - 1e-9)
    assert failure_rate_bound(failures, n, confidence=confidence) <= rate * (1 + 1e-6)


def test_a_policy_at_the_claimed_rate_passes_as_rarely_as_promised():
    n = trials_to_claim(0.02, failures=2)
    assert claim_probability(0.02, n, 2) <= 0.05
    np.testing.assert_allclose(claim_probability([0.0, 1.0], n, 2), [1.0, 0.0])


def test_wealth_is_a_martingale_at_the_rate_and_shrinks_above_it():
    """After one trial the expected wealth is that before, in closed form, at the rate itself, and less beyond."""
    for f, s in ((0, 0), (0, 40), (3, 100)):
        now, lost, won = (np.exp(log_wealth(f + i, s + j, 0.05)) for i, j in ((0, 0), (1, 0), (0, 1)))
        assert 0.05 * lost + 0.95 * won == pytest.approx(now, rel=1e-9)
        assert 0.08 * lost + 0.92 * won < now
    assert np.exp(log_wealth(0, 0, 0.05)) == pytest.approx(1.0)


def test_looking_after_every_trial_errs_no_more_often_than_promised():
    ends = sequential_claim_trials(0.05, failures=4)
    assert (np.diff(ends) > 0).all()
    rng = np.random.default_rng(0)
    runs, most = 4000, int(ends[-1])
    failed = np.cumsum(rng.random((runs, most)) < 0.05, axis=1)
    wrong = np.zeros(runs, dtype=bool)
    for allowed, end in enumerate(ends):
        wrong |= failed[:, end - 1] <= allowed
    assert wrong.mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert ends[0] > trials_to_claim(0.05)  # the price of looking


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: trials_to_claim(0.0), "The failure rate 0 is not between 0 and 1"),
        (lambda: trials_to_claim(0.1, confidence=1.0), "The confidence 1 is not between 0 and 1"),
        (lambda: trials_to_claim(0.1, failures=-1), "The number of allowed failures is -1"),
        (lambda: trials_to_claim(1e-12), "needs more than 1,000,000,000 trials"),
        (lambda: failure_rate_bound(3, 2), "3 failures of 2 trials is not a result"),
    ],
)
def test_what_cannot_be_claimed_is_told(call, said):
    with pytest.raises(InputError, match=said):
        call()
