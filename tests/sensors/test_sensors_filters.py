"""What sensors do to signals over time: closed forms of lag, play and counting, and of errors that wander."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.sensors.filters import (
    ALLAN_FLOOR,
    FLICKER_TIMES,
    apply_play,
    digitize,
    flicker_noise,
    low_pass,
    low_pass_noise,
    random_walk,
)
from twinloop.stats import allan_curve


def unevenly(n, end, seed=0):
    return np.sort(np.random.default_rng(seed).uniform(0.0, end, n))


@pytest.mark.parametrize("frequency", [3.0, 10.0, 40.0])
def test_a_low_pass_lags_and_weakens_as_the_closed_form_says(frequency):
    cutoff, time = 10.0, unevenly(8000, 2.0)
    out = low_pass(time, np.sin(2 * np.pi * frequency * time)[:, None], cutoff)[:, 0]
    late = time > 1.0  # the beginning has died away
    basis = np.stack([np.sin(2 * np.pi * frequency * time), np.cos(2 * np.pi * frequency * time)], axis=1)
    (in_phase, quadrature), *_ = np.linalg.lstsq(basis[late], out[late], rcond=None)
    ratio = frequency / cutoff
    assert np.hypot(in_phase, quadrature) == pytest.approx(1 / np.sqrt(1 + ratio**2), rel=2e-3)
    assert np.arctan2(-quadrature, in_phase) == pytest.approx(np.arctan(ratio), abs=3e-3)


def test_a_low_pass_is_exact_for_a_ramp_at_any_spacing_and_nothing_without_a_bandwidth():
    time = np.stack([unevenly(50, 1.0), np.linspace(0.0, 1.0, 50)])
    lag = 1 / (2 * np.pi * 5.0)
    start = time - time[:, :1]
    expected = start - lag * (1.0 - np.exp(-start / lag))
    np.testing.assert_allclose(low_pass(time, start[..., None], 5.0)[..., 0], expected, atol=1e-14)
    both = low_pass(time, start[..., None], [0.0, 5.0])[..., 0]
    np.testing.assert_array_equal(both[0], start[0])
    np.testing.assert_allclose(both[1], expected[1], atol=1e-14)


def test_filtered_noise_keeps_its_density_and_has_the_deviation_of_its_bandwidth():
    rate, cutoff = 1000.0, 50.0
    normals = np.random.default_rng(1).standard_normal((1, 400_000, 1))
    out = np.sqrt(rate) * low_pass_noise(normals, 1 / rate, cutoff)[0, :, 0]
    decay = np.exp(-2 * np.pi * cutoff / rate)
    assert out.std() == pytest.approx(np.sqrt(rate * (1 - decay) / (1 + decay)), rel=0.01)
    assert out.std() == pytest.approx(np.sqrt(np.pi * cutoff), rel=0.02)  # D √(π/2 B) with D = √2
    curve = allan_curve(out, 1 / rate)
    slow = (curve.time > 0.5) & (curve.time < 3.0)
    np.testing.assert_allclose((curve.deviation.estimate * np.sqrt(curve.time))[slow], 1.0, rtol=0.05)


def test_play_is_a_loop_of_its_width_and_forgets_nothing():
    up, down = np.linspace(-1.0, 1.0, 201), np.linspace(1.0, -1.0, 201)
    signal = np.concatenate([up, down, up])[None, :, None]
    out = apply_play(signal, 0.3)[0, :, 0]
    gap = out[201:402] - out[402:][::-1]
    np.testing.assert_allclose(gap[np.abs(down) < 0.5], 0.3, atol=1e-12)
    np.testing.assert_array_equal(apply_play(signal, 0.0), signal)


@given(st.floats(-50, 50), st.floats(0.1, 20), st.floats(0.001, 1))
def test_what_is_digitized_is_within_its_range_and_half_a_step(value, limit, step):
    out = float(digitize(value, limit, step))
    assert abs(out - np.clip(value, -limit, limit)) <= step / 2 + 1e-9
    assert out / step == pytest.approx(round(out / step), abs=1e-6)
    assert digitize(value, 0.0, 0.0) == value


def test_a_walks_variance_grows_linearly():
    normals = np.random.default_rng(2).standard_normal((4000, 200, 1))
    walk = random_walk(normals, 0.05, 0.3)[..., 0]
    assert not walk[:, 0].any()
    time = 0.05 * np.arange(200)
    np.testing.assert_allclose(walk.var(axis=0)[1:] / time[1:], 0.3**2, rtol=0.1)


def test_flicker_is_flat_at_its_floor_over_decades():
    """The Allan variance of the sum is that of its parts, in closed form (IEEE 952, C.14)."""
    time = np.geomspace(0.2, 500.0, 60)
    ratio = time[:, None] / np.array(FLICKER_TIMES)
    part = (2 * ratio - 3 + 4 * np.exp(-ratio) - np.exp(-2 * ratio)) / ratio**2
    floor = np.sqrt(part.sum(axis=1) * np.log(10.0) / np.pi) / ALLAN_FLOOR
    assert np.abs(floor - 1.0).max() < 0.04
    made = flicker_noise(np.random.default_rng(3).standard_normal((1, 60_000, 8, len(FLICKER_TIMES))), 0.01, 0.7)[0]
    curves = [allan_curve(made[:, i], 0.01).deviation.estimate for i in range(8)]
    time = allan_curve(made[:, 0], 0.01).time
    mean = np.sqrt(np.mean(np.square(curves), axis=0))
    usable = (time > 0.2) & (time < 10.0)
    np.testing.assert_allclose(mean[usable], 0.7 * ALLAN_FLOOR, rtol=0.1)


def test_worlds_do_not_disturb_each_other():
    normals = np.random.default_rng(4).standard_normal((3, 50, 2, len(FLICKER_TIMES)))
    levels, periods = np.array([0.1, 0.0, 0.4]), np.array([0.01, 0.02, 0.005])
    together = flicker_noise(normals, periods, levels)
    assert not together[1].any()
    np.testing.assert_array_equal(together[2], flicker_noise(normals[2:], periods[2:], levels[2:])[0])
    walks = random_walk(normals[..., 0], periods, levels)
    np.testing.assert_array_equal(walks[2], random_walk(normals[2:, ..., 0], periods[2:], levels[2:])[0])


def test_even_and_uneven_steps_are_filtered_alike():
    time = np.arange(300) * 0.002
    signal = np.random.default_rng(5).standard_normal((2, 300, 4))
    shaken = time + np.where(np.arange(300) % 2, 1e-10, 0.0)  # too uneven to count as even, by a small margin
    both = np.stack([time, shaken])
    even = low_pass(np.stack([time, time]), signal, 30.0)
    np.testing.assert_allclose(low_pass(both, signal, 30.0), even, atol=1e-6)
    single = low_pass(time[:1], signal[0, :1], 30.0)
    np.testing.assert_array_equal(single, signal[0, :1])


def test_a_signal_that_jumps_is_followed_from_what_it_jumps_to():
    time = np.linspace(0.0, 1.0, 41)
    arrives, leaves = np.zeros((2, 1, 41, 1))
    arrives[0, 11:], leaves[0, 10:] = 1.0, 1.0  # from 0 to 1 at the tenth point
    out = low_pass(time[None], leaves, 3.0, left_limits=arrives)[0, :, 0]
    expected = np.where(time > time[10], 1.0 - np.exp(-(time - time[10]) * 2 * np.pi * 3.0), 0.0)
    np.testing.assert_allclose(out, expected, atol=1e-12)
    np.testing.assert_array_equal(low_pass(time[None], leaves, 0.0, left_limits=arrives), arrives)
