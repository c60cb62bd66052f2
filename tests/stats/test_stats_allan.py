"""Allan deviations: closed forms for every kind of noise, the plain definition, and intervals that keep their level."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import toeplitz

from twinloop.core.errors import InputError
from twinloop.stats import allan_curve, allan_noise

PERIOD = 0.01


def record(n, *, white=0.0, walk=0.0, seed=0):
    rng = np.random.default_rng(seed)
    drift = np.cumsum(rng.standard_normal(n)) * walk * np.sqrt(PERIOD)
    return white / np.sqrt(PERIOD) * rng.standard_normal(n) + drift


def test_it_is_the_mean_square_difference_of_neighbouring_averages():
    values = record(400, white=1.0, walk=0.3)
    curve = allan_curve(values, PERIOD, longest=0.3)
    for time, found in zip(curve.time, curve.deviation.estimate, strict=True):
        m = round(time / PERIOD)
        pairs = [
            np.mean(values[i + m : i + 2 * m]) - np.mean(values[i : i + m]) for i in range(len(values) - 2 * m + 1)
        ]
        assert found == pytest.approx(np.sqrt(0.5 * np.mean(np.square(pairs))))


def test_white_noise_falls_and_a_random_walk_rises_with_the_root_of_time():
    white = allan_curve(record(100_000, white=0.02), PERIOD)
    np.testing.assert_allclose(white.deviation.estimate[:20] * np.sqrt(white.time[:20]), 0.02, rtol=0.03)
    walk = allan_curve(record(400_000, walk=0.5), PERIOD, longest=0.005)
    long = walk.time > 0.2
    np.testing.assert_allclose((walk.deviation.estimate / np.sqrt(walk.time / 3.0))[long], 0.5, rtol=0.1)
    assert np.abs(white.slope[:15] + 0.5).max() < 0.05
    assert np.abs(walk.slope[long] - 0.5).mean() < 0.1


def test_intervals_hold_the_truth_as_often_as_they_say():
    curves = [allan_curve(record(3000, white=0.1, seed=seed), PERIOD) for seed in range(200)]
    truth = 0.1 / np.sqrt(curves[0].time)
    covered = np.mean([curve.deviation.covers(truth) for curve in curves], axis=0)
    assert 0.9 < covered.min() <= covered.max() < 0.995  # 95 % of 200: 190 ± 6 at two deviations


@pytest.mark.parametrize(
    ("noise", "slope", "accuracy"), [("white", -0.5, 0.02), ("flicker", 0.0, 0.1), ("walk", 0.5, 0.1)]
)
def test_degrees_of_freedom_are_those_of_the_exact_quadratic_form(noise, slope, accuracy):
    """The variance is xᵀAx of Gaussian x with covariance LLᵀ: its freedom is tr(B)²/tr(B²) with B = LᵀAL."""
    n = 600
    steps = np.arange(1, n)
    impulse = {
        "white": np.eye(n)[0],
        "flicker": np.concatenate([[1.0], np.cumprod((steps - 0.5) / steps)]),
        "walk": np.ones(n),
    }[noise]
    filtered = toeplitz(impulse, np.zeros(n))
    curve = allan_curve(filtered @ np.random.default_rng(3).standard_normal(n), PERIOD)
    of_this_kind = np.abs(curve.slope - slope) < 0.25
    assert of_this_kind.sum() >= 5
    for time, found in zip(curve.time[of_this_kind], curve.freedom[of_this_kind], strict=True):
        m = round(time / PERIOD)
        lag = np.arange(n) - np.arange(n + 1 - 2 * m)[:, None]
        difference = 1.0 * ((m <= lag) & (lag < 2 * m)) - ((lag >= 0) & (lag < m))
        form = (difference @ filtered) @ (difference @ filtered).T
        assert found == pytest.approx(np.trace(form) ** 2 / np.sum(form * form), rel=accuracy), m


def test_planted_coefficients_come_back_within_their_intervals():
    fits = [allan_noise(allan_curve(record(60_000, white=0.05, walk=0.02, seed=seed), PERIOD)) for seed in range(40)]
    assert np.mean([fit.white.covers(0.05) for fit in fits]) > 0.85
    assert np.mean([fit.walk.covers(0.02) for fit in fits]) > 0.85
    assert np.mean([float(fit.white.estimate) for fit in fits]) == pytest.approx(0.05, rel=0.01)
    assert np.mean([float(fit.walk.estimate) for fit in fits]) == pytest.approx(0.02, rel=0.1)


def test_what_is_not_there_has_an_interval_from_zero():
    fit = allan_noise(allan_curve(record(50_000, white=0.05), PERIOD))
    assert fit.walk.low == 0.0
    assert 0.0 < fit.walk.high < 0.03


@pytest.mark.parametrize("bad", [np.zeros(4), np.zeros((20, 3)), np.full(20, np.nan)])
def test_what_is_no_record_is_refused(bad):
    with pytest.raises(InputError, match="An Allan deviation needs a series of at least 9 finite numbers"):
        allan_curve(bad, PERIOD)


def test_averages_longer_than_half_the_record_are_refused():
    with pytest.raises(InputError, match="A record of 1 s is too short for averages over"):
        allan_curve(np.arange(100.0), PERIOD, shortest=0.6)
