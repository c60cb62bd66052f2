"""Simulation-based inference agrees with the fit if both are valid, is calibrated, and reports a wrong twin."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.swing import TRUTH, clips, swing_twin
from twinloop.core.distribution import ResidualNoise
from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.seeds import generator
from twinloop.identify import FitConfig, identify
from twinloop.identify.assembly import fit_space
from twinloop.identify.bands import draw_noise
from twinloop.identify.physics_rate import limit_physics_rate
from twinloop.identify.sbi_bridge import PriorBox, SbiOptions, sample_posterior
from twinloop.identify.sbi_flow import require_sbi
from twinloop.identify.sbi_result import compute_mahalanobis_test, rank_uniformity
from twinloop.identify.sbi_summaries import build_summaries, whiten
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay

CONFIG = FitConfig(
    free=("joint/swing/damping", "actuator/swing/kp"),
    fixed={name: TRUTH[name] for name in ("joint/swing/frictionloss", "actuator/swing/delay")},
)
FREE_TRUTH = np.array([TRUTH["joint/swing/damping"], np.log(TRUTH["actuator/swing/kp"])])


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return swing_twin(tmp_path_factory.mktemp("swing"))


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=1)


def noise_of(rho, sd=0.5):
    one = np.array([1.0])
    return ResidualNoise(channels=("a",), units=("deg",), sd=sd * one, rho=rho * one, structured=0 * one, hz=30.0)


def test_without_sbi_the_command_that_adds_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"needs torch, which is not.*pip install 'twinloop\[sbi\]'"):
        require_sbi()


@given(rho=st.floats(0.0, 0.98))
def test_whitened_noise_is_white_and_of_unit_size(rho):
    noise = noise_of(rho)
    made = draw_noise(noise, generator(0, "test/sbi"), (40, 200, 1))
    white = whiten(made, noise, np.ones(made.shape, dtype=bool))
    assert white.std() == pytest.approx(1.0, abs=0.05)
    assert np.mean(white[:, 1:] * white[:, :-1]) == pytest.approx(0.0, abs=0.05)


def test_ranks_that_pile_up_are_told_from_uniform_ones():
    rng = generator(1, "test/sbi")
    assert rank_uniformity(rng.integers(0, 100, size=300), 99) > 0.01
    narrow = np.clip(np.round(50 + 60 * rng.normal(size=300)), 0, 99)
    assert rank_uniformity(narrow, 99) < 1e-3
    with pytest.raises(InputError, match="from 0 to 9"):
        rank_uniformity([12], 9)


def test_what_lies_far_from_all_draws_is_novel_and_what_is_one_of_them_is_so_at_its_rate():
    rng = generator(2, "test/sbi")
    draws = rng.normal(size=(400, 3)) @ np.array([[1, 0.9, 0], [0, 0.3, 0], [0, 0, 5]])
    assert (
        compute_mahalanobis_test(draws, [0, 1.5, 0])[1] < 0.01
    )  # against the correlation, each coordinate alone is usual
    own = [
        compute_mahalanobis_test(draws, row)[1]
        for row in rng.normal(size=(300, 3)) @ np.array([[1, 0.9, 0], [0, 0.3, 0], [0, 0, 5]])
    ]
    assert np.mean(np.array(own) <= 0.1) == pytest.approx(0.1, abs=0.05)
    with pytest.raises(InputError, match="at least 12"):
        compute_mahalanobis_test(draws[:5], [0, 0, 0])


def test_coordinates_of_a_box_keep_its_limits_and_the_prior_within(twin, backend):
    logs = prepare_replay(twin, clips(twin, backend, TRUTH, count=1))
    whole = PriorBox.of(fit_space(logs, CONFIG)[0])
    z = generator(3, "test/sbi").normal(size=(4000, 2))
    points = whole.to_parameters(z)
    assert ((points >= whole.low) & (points <= whole.high)).all()
    assert points[:, 1].mean() == pytest.approx(np.log(9.0), abs=0.05)  # kp: far from its bounds
    assert points[:, 1].std() == pytest.approx(0.7, rel=0.05)
    part = whole.shrink_around(FREE_TRUTH, np.array([0.01, 0.02]))
    np.testing.assert_allclose(part.high - part.low, [0.02, 0.04])
    assert (np.diff(part.to_parameters(np.array([[-9.0, -9], [0, 0], [9, 9]])), axis=0) > 0).all()
    spread = FREE_TRUTH + np.array([0.001, 0.01]) * z[:1000]
    np.testing.assert_array_equal(part.find_crowded_sides(spread, whole), [False, True])
    assert not whole.find_crowded_sides(points, whole).any()


def test_scores_are_one_step_to_the_parameters_in_standard_errors(twin, backend):
    """To first order a log made elsewhere has its parameters' distance as its score, and nothing left over."""
    logs = limit_physics_rate(prepare_replay(twin, clips(twin, backend, TRUTH, count=5)), CONFIG.replay_hz)
    space = fit_space(logs, CONFIG)[0]
    at = build_summaries(backend, logs, space, FREE_TRUTH, CONFIG)
    error = np.sqrt(np.diag(at.covariance))
    for move in (np.array([2.0, 0.0]), np.array([-1.0, 1.5])):
        score, _ = at(replay(backend, logs, space.table((FREE_TRUTH + move * error)[None]))[0])
        np.testing.assert_allclose(np.sinh(score), move, atol=0.1)
    assert at.noise.rho == pytest.approx(0.9, abs=0.05)


@pytest.mark.slow
def test_the_posterior_is_that_of_the_fit_and_calibrated_and_the_same_again(twin, backend):
    pytest.importorskip("sbi")
    episodes = clips(twin, backend, TRUTH, count=8)
    fit = identify(twin, episodes, backend=backend, config=CONFIG)
    found = sample_posterior(twin, episodes, fit, backend=backend, config=CONFIG, options=SbiOptions(simulations=1500))
    logs = limit_physics_rate(prepare_replay(twin, episodes), CONFIG.replay_hz)
    space = fit_space(logs, CONFIG)[0]
    first_order = np.sqrt(np.diag(build_summaries(backend, logs, space, fit.distribution.mean, CONFIG).covariance))
    ratio = found.samples.std(axis=0) / first_order
    assert ((ratio > 0.75) & (ratio < 1.35)).all()
    assert (np.abs(found.distribution.mean - FREE_TRUTH) < 3.5 * first_order).all()
    assert found.ranks.is_calibrated
    for nominal, interval in zip((0.5, 0.9), found.ranks.coverage, strict=True):
        assert (np.abs(interval.estimate - nominal) < 0.12).all()
    assert not found.misfit.is_misspecified
    few = SbiOptions(simulations=300, rounds=1, checks=40, replicas=60)
    again = [sample_posterior(twin, episodes, fit, backend=backend, config=CONFIG, options=few) for _ in range(2)]
    np.testing.assert_array_equal(again[0].samples, again[1].samples)


@pytest.mark.slow
def test_physics_that_the_twin_lacks_is_said(twin, backend):
    pytest.importorskip("sbi")
    episodes = clips(twin, backend, {**TRUTH, "actuator/swing/delay": 0.08}, count=8)
    fit = identify(twin, episodes, backend=backend, config=CONFIG)
    few = SbiOptions(simulations=600, rounds=1, checks=60)
    found = sample_posterior(twin, episodes, fit, backend=backend, config=CONFIG, options=few)
    assert found.misfit.is_misspecified
    assert "MISSPECIFIED: the twin does not produce such data" in found.text()
