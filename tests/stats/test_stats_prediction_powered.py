"""Real means with simulation's help: no bias, coverage at few trials for any simulator, and saved trials."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.stats import (
    PairedTrials,
    bounded_mean,
    clopper_pearson,
    control_variate,
    post_stratified,
    prediction_powered,
    trials_saved,
)
from twinloop.stats.betting import log_e_adaptive, log_e_mean
from twinloop.stats.prediction_powered import log_e_prediction_powered, rectify


def coins(p, q, rho, shape, random):
    """Real and simulated successes at rates p and q that correlate by rho."""
    both = p * q + rho * np.sqrt(p * (1 - p) * q * (1 - q))
    real = random.random(shape) < p
    sim = np.where(real, random.random(shape) < both / p, random.random(shape) < (q - both) / (1 - p))
    return real.astype(float), sim.astype(float)


def trials(p, q, rho, n, k, random):
    real, sim = coins(p, q, rho, n, random)
    return PairedTrials(real=real, sim=sim, more=(random.random(k) < q).astype(float))


@pytest.mark.parametrize("n", [5, 10, 20, 50])
@pytest.mark.parametrize(("p", "q", "rho"), [(0.6, 0.6, 0.0), (0.6, 0.5, 0.8), (0.05, 0.1, 0.6), (0.98, 0.7, 0.1)])
def test_prediction_powered_betting_covers(n, p, q, rho):
    random = np.random.default_rng(n)
    real, sim = coins(p, q, rho, (800, n), random)
    made = rectify(real, sim, (random.random((800, 10 * n)) < q).astype(float))
    assert made.values.mean() == pytest.approx(p, abs=0.03)
    missed = log_e_prediction_powered(made, p, alpha=0.05).max(axis=-1) >= np.log(20)
    assert missed.mean() <= 0.05
    # bounds are known before each value
    assert (made.values >= made.low - 1e-12).all()
    assert (made.values <= made.high + 1e-12).all()


@pytest.mark.parametrize(("n", "p", "q", "rho"), [(5, 0.6, 0.6, 0.0), (20, 0.6, 0.5, 0.8), (20, 0.05, 0.1, 0.6)])
def test_post_stratified_intervals_cover_and_do_no_harm(n, p, q, rho):
    random = np.random.default_rng(3)
    held, ratio = [], []
    for _ in range(20):
        given = trials(p, q, rho, n, 100 * n, random)
        found = post_stratified(given)
        alone = clopper_pearson(int(given.real.sum()), n)
        held.append(bool(found.covers(p)))
        ratio.append(float((found.high - found.low) / (alone.high - alone.low)))
    assert np.mean(held) >= 0.9
    assert np.mean(ratio) <= 1.15


def test_a_simulator_that_predicts_narrows_the_interval():
    random = np.random.default_rng(5)
    given = trials(0.6, 0.6, 0.95, 100, 20_000, random)
    alone = clopper_pearson(int(given.real.sum()), 100)
    found = post_stratified(given)
    assert found.high - found.low < 0.8 * (alone.high - alone.low)
    saved = trials_saved(given)
    assert float(saved.low) > 50


def test_scores_gain_where_simulation_is_close():
    random = np.random.default_rng(6)
    base = random.beta(2, 2, 400)
    real, sim = np.clip(base[:200] + random.normal(0, 0.03, 200), 0, 1), base[:200]
    given = PairedTrials(real=real, sim=sim, more=random.beta(2, 2, 20_000))
    alone, combined = bounded_mean(real), prediction_powered(given)
    assert bool(combined.covers(0.5))
    assert combined.high - combined.low < 0.9 * (alone.high - alone.low)


def test_ppi_is_its_formula_and_beta_is_the_one_of_least_variance():
    random = np.random.default_rng(7)
    given = trials(0.7, 0.6, 0.6, 60, 600, random)
    ppi = control_variate(given, coefficient="ppi")
    plain = given.real.mean() - (given.sim.mean() - given.more.mean())
    assert float(ppi.mean.estimate) == pytest.approx(plain)
    error = np.sqrt((given.real - given.sim).var(ddof=1) / 60 + given.more.var(ddof=1) / 600)
    assert float(ppi.mean.high) == pytest.approx(plain + 1.959964 * error)
    tuned = control_variate(given, coefficient="ppi++")
    expected = 0.6 * np.sqrt(0.21 / 0.24) * 600 / 660
    assert tuned.beta == pytest.approx(expected, abs=0.25)
    assert tuned.mean.high - tuned.mean.low <= ppi.mean.high - ppi.mean.low + 1e-9


def test_cross_fitted_coefficients_leave_their_own_pair_out():
    random = np.random.default_rng(8)
    given = trials(0.6, 0.6, 0.7, 12, 100, random)
    spread = np.concatenate([given.sim, given.more]).var() * 10
    slow = []
    for i in range(12):
        f, g = np.delete(given.real, i), np.delete(given.sim, i)
        slow.append(np.sum((f - f.mean()) * (g - g.mean())) / spread * 100 / 112)
    assert control_variate(given).beta == pytest.approx(np.mean(slow))


def test_many_trials_make_all_estimates_agree_with_the_truth():
    random = np.random.default_rng(9)
    given = trials(0.7, 0.5, 0.5, 400, 4_000, random)
    found = [control_variate(given, coefficient=c).mean for c in ("ppi", "ppi++", "cross-fitted")]
    for interval in (*found, prediction_powered(given), post_stratified(given)):
        assert bool(interval.covers(0.7))
        assert float(interval.estimate) == pytest.approx(0.7, abs=0.07)
    variance = 400 * 0.25 * (10 / 11) / (1 - 0.25 * 10 / 11)
    assert float(trials_saved(given).estimate) == pytest.approx(variance, rel=0.4)


def test_nothing_is_saved_by_a_simulator_that_knows_nothing():
    random = np.random.default_rng(10)
    found = [float(trials_saved(trials(0.5, 0.5, 0.0, 60, 600, random), draws=20).estimate) for _ in range(40)]
    assert np.median(found) < 2


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(max_examples=25, deadline=None)
def test_bets_do_not_depend_on_order_and_intervals_hold_what_was_seen(values):
    x = np.array(values)
    assert log_e_mean(x, 0.4)[-1] == pytest.approx(log_e_mean(x[::-1], 0.4)[-1], abs=1e-9)
    found = bounded_mean(x)
    assert 0 <= float(found.low) <= float(found.high) <= 1


@pytest.mark.parametrize("law", [(0.5, 0.5), (2, 5), (20, 1)])
def test_betting_keeps_its_level(law):
    random = np.random.default_rng(11)
    x, truth = random.beta(*law, (3000, 20)), law[0] / sum(law)
    assert (log_e_adaptive(x, truth, alpha=0.05).max(axis=-1) >= np.log(20)).mean() <= 0.05
    assert (log_e_mean(x, truth).max(axis=-1) >= np.log(20)).mean() <= 0.05


def test_all_successes_have_an_interval_and_no_correlation():
    given = PairedTrials(real=np.ones(8), sim=np.ones(8), more=np.ones(80))
    assert float(post_stratified(given).low) < 0.75
    assert float(prediction_powered(given).high) == 1.0
    saved = trials_saved(given)
    assert float(saved.estimate) == 0.0
    assert np.isnan(saved.low)
    assert "same outcome" in saved.method
    assert np.isfinite(float(control_variate(given).mean.low))


def test_wrong_input_is_named():
    with pytest.raises(InputError, match="2 real trials cannot be paired with 1"):
        PairedTrials(real=np.ones(2), sim=np.ones(1), more=np.ones(5))
    with pytest.raises(InputError, match="is outside its bounds 0 to 1"):
        PairedTrials(real=np.array([1.4]), sim=np.ones(1), more=np.ones(5))
    with pytest.raises(InputError, match="3 further simulated trials are fewer than the 4 real ones"):
        rectify(np.ones(4), np.ones(4), np.ones(3))
    with pytest.raises(InputError, match="use the betting interval"):
        post_stratified(PairedTrials(real=np.array([0.3]), sim=np.ones(1), more=np.ones(5)))
    with pytest.raises(InputError, match="at least 3 are needed"):
        control_variate(PairedTrials(real=np.ones(2), sim=np.ones(2), more=np.ones(5)))
