"""Uneven logs onto uniform grids, against closed forms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.units import JointUnit, UnitMap
from twinloop.dataset.logs.resampling import hold, interpolate_rotation, resample, split_gaps

DEGREES = UnitMap(joints=(JointUnit(joint="hip", unit="deg", scale=math.pi / 180, offset=0.0),), source="test")


def uneven(n: int = 200, *, mean: float = 0.005, seed: int = 0) -> np.ndarray:
    """Times whose steps are off by up to a third."""
    return np.cumsum(mean * np.random.default_rng(seed).uniform(0.67, 1.33, n))


def episode(time, state, *, action=None, signals=None, units=DEGREES) -> Episode:
    state = np.asarray(state, dtype=float).reshape(len(time), -1)
    action = state if action is None else np.asarray(action, dtype=float).reshape(len(time), -1)
    return Episode(index=4, time=time, action=action, state=state, units=units, signals=signals or {})


def test_a_line_stays_a_line_and_commands_hold():
    time = uneven()
    (made,) = resample(episode(time, 3 + 20 * time, action=np.arange(len(time))), 100)
    np.testing.assert_allclose(np.diff(made.time), 0.01, atol=1e-12)
    np.testing.assert_allclose(made.state[:, 0], 3 + 20 * made.time, atol=1e-9)
    expected = [np.flatnonzero(time <= moment + 1e-12)[-1] for moment in made.time]
    np.testing.assert_array_equal(made.action[:, 0], expected)
    assert made.index == 4


def test_interpolating_a_sine_errs_by_no_more_than_its_curvature_allows():
    time = uneven()
    (made,) = resample(episode(time, 50 * np.sin(12 * time)), 250)
    bound = np.diff(time).max() ** 2 / 8 * 50 * 12**2  # of linear interpolation: h²/8 · max |f″|
    error = np.abs(made.state[:, 0] - 50 * np.sin(12 * made.time)).max()
    assert 0.1 * bound < error < bound


def test_a_joint_that_turns_on_past_180_degrees_never_sweeps_back():
    time = uneven()
    true = 150 + 300 * time
    (made,) = resample(episode(time, (true + 180) % 360 - 180), 120)
    np.testing.assert_allclose(made.state[:, 0], 150 + 300 * made.time, atol=1e-9)


def test_a_slide_does_not_wrap():
    slide = UnitMap(joints=(JointUnit(joint="rail", unit="m", scale=1.0, offset=0.0),), source="test")
    time = np.arange(20) / 100
    jump = np.where(np.arange(20) < 10, 0.0, 6.2)
    (made,) = resample(episode(time, jump, units=slide), 100)
    np.testing.assert_allclose(made.state[:, 0], jump)


def test_poses_turn_at_constant_rate_whatever_the_sign_of_their_quaternions():
    time = uneven(80)
    angle = 5.0 * time
    wxyz = np.stack([np.cos(angle / 2), 0 * time, 0 * time, np.sin(angle / 2)], axis=1)
    wxyz[::3] *= -1
    at = np.linspace(time[0], time[-1], 333)
    made = interpolate_rotation(time, wxyz, at)
    expected = np.stack([np.cos(2.5 * at), 0 * at, 0 * at, np.sin(2.5 * at)], axis=1)
    np.testing.assert_allclose(np.abs(np.sum(made * expected, axis=1)), 1, atol=1e-12)
    assert (np.sum(made[1:] * made[:-1], axis=1) > 0).all()


def test_signals_of_other_rates_come_onto_the_frames_that_they_cover():
    time = np.arange(101) / 100
    fast = np.arange(200, 800) / 1000
    signals = {
        "acceleration/imu": LoggedSignal(
            time=fast, values=np.outer(fast, [1, 2, 3]), columns=("x", "y", "z"), unit="m/s²"
        ),
        "enabled": LoggedSignal(
            time=np.array([0.0, 0.505]), values=np.array([[0.0], [1.0]]), columns=("on",), unit="1"
        ),
        "pose/cube": LoggedSignal(
            time=np.array([0.0, 1.0]),
            values=np.array([[0, 0, 0, 1, 0, 0, 0], [1, 2, 3, 0, 0, 0, 1.0]]),
            columns=tuple("xyzwijk"),
            unit="",
        ),
    }
    (made,) = resample(episode(time, time, signals=signals), 50)
    acceleration = made.signals["acceleration/imu"]
    assert (acceleration.time[0], acceleration.time[-1]) == (pytest.approx(0.2), pytest.approx(0.78))
    np.testing.assert_allclose(acceleration.values, np.outer(acceleration.time, [1, 2, 3]), atol=1e-12)
    enabled = made.signals["enabled"]
    np.testing.assert_array_equal(enabled.values[:, 0], enabled.time > 0.505)
    middle = made.signals["pose/cube"].values[25]
    np.testing.assert_allclose(middle, [0.5, 1, 1.5, math.sqrt(0.5), 0, 0, math.sqrt(0.5)], atol=1e-12)


def test_gaps_stay_gaps():
    time = np.concatenate([np.arange(50), 80 + np.arange(30), 200 + np.arange(1)]) / 100
    log = episode(time, time, signals={"x": LoggedSignal(time=time, values=time[:, None], columns=("x",), unit="m")})
    switch = LoggedSignal(time=np.array([0.0, 0.6]), values=np.array([[0.0], [1.0]]), columns=("on",), unit="1")
    log = replace(log, signals={**log.signals, "enabled": switch})
    pieces = split_gaps(log)
    assert [p.signals["enabled"].values.tolist() for p in pieces] == [[[0.0]], [[1.0]]]
    assert pieces[1].signals["enabled"].time[0] == pieces[1].time[0]
    assert [(len(p), p.time[0], p.time[-1]) for p in pieces] == [(50, 0.0, 0.49), (30, 0.8, 1.09)]
    assert [len(p.signals["x"]) for p in pieces] == [50, 30]
    assert [len(p) for p in split_gaps(log, longest_s=0.5)] == [80]
    assert [(p.time[0], p.time[-1]) for p in resample(log, 200)] == [
        (0.0, pytest.approx(0.49)),
        (0.8, pytest.approx(1.09)),
    ]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 60), st.floats(20, 300), st.integers(0, 1000))
def test_resampling_at_its_own_grid_changes_nothing(n, rate, seed):
    random = np.random.default_rng(seed)
    time = 1.5 + np.arange(n) / rate
    log = episode(time, random.uniform(-80, 80, n), action=random.normal(size=n))
    (made,) = resample(log, rate)
    assert len(made) == n
    np.testing.assert_allclose(made.state, log.state, atol=1e-6)
    np.testing.assert_array_equal(made.action, log.action)


def test_what_cannot_be_done_is_said():
    log = episode(np.arange(5) / 10, np.arange(5))
    with pytest.raises(InputError, match="0 Hz is not above 0"):
        resample(log, 0)
    np.testing.assert_array_equal(hold([1, 2], [[5], [6]], [0, 1, 1.5, 9])[:, 0], [5, 5, 5, 6])
