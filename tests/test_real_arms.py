"""The torque-controlled arms: first speeds come from the past, published parameters are scored as published."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from twinloop.core.records import Episode, Signal
from twinloop.core.units import UnitMap
from twinloop.dataset.registry import load_set
from twinloop.loop.real import crazyflie, double_pendulum, simple_pendulum
from twinloop.loop.real.arm_windows import REPLAY, at_rate, past_speeds, rms_scores, window_errors
from twinloop.loop.real.simple_pendulum import PUBLISHED, published_values
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import load_twin
from twinloop.twin.inertia import body_inertial, inertia_matrix

SPAN = 0.04


def folder(name):
    data = os.environ.get("TWINLOOP_DATA")
    if not data or not (Path(data) / name).is_dir():
        pytest.skip(f"{name} is not in TWINLOOP_DATA")
    return Path(data) / name


def swing(seed=0, hz=300, seconds=2.0):
    """A run of the simple pendulum under torques, as its twin moves; readings in steps of an encoder."""
    twin = load_twin("simple_pendulum")
    time = np.arange(round(seconds * hz)) / hz
    torque = 1.5 * np.sin(2 * np.pi * (1.0 + 0.3 * seed) * time + seed)
    position = 0.6 * np.sin(4.0 * time + seed)
    made = Signal(time=time, values=4.0 * 0.6 * np.cos(4.0 * time + seed)[:, None], columns=("pendulum",), unit="rad/s")
    push = Signal(time=time, values=torque[:, None], columns=("pendulum",), unit="N·m")
    return Episode(
        index=seed,
        time=time,
        action=torque[:, None],
        state=position[:, None],
        units=twin.units,
        command="torque",
        task="pd/system_identification" if seed == 0 else "other",
        signals={"joint_velocity": made, "joint_torque": push},
    )


def test_a_parabola_has_its_own_speed_whatever_comes_later():
    time = np.cumsum(np.full(60, 0.002) + 0.0005 * np.sin(np.arange(60)))
    path = np.stack([1 + 2 * time - 3 * time**2, -time], axis=-1)
    speeds = past_speeds(time, path, SPAN)
    known = ~np.isnan(speeds[:, 0])
    assert known[4:].all()
    assert not known[:3].any()
    np.testing.assert_allclose(speeds[known, 0], (2 - 6 * time)[known], atol=1e-9)
    np.testing.assert_allclose(speeds[known, 1], -1.0, atol=1e-9)
    other = path.copy()
    other[40:] += 5.0
    np.testing.assert_array_equal(past_speeds(time, other, SPAN)[:40], speeds[:40])


def test_the_speed_of_a_coarse_encoder_is_known_better_than_its_differences():
    time = np.arange(400) / 500
    truth, step = 2.0 * np.cos(4.0 * time), 3.8e-4
    read = np.round(0.5 * np.sin(4.0 * time) / step)[:, None] * step
    raw = np.gradient(read[:, 0], time)[20:] - truth[20:]
    fitted = past_speeds(time, read, SPAN)[20:, 0] - truth[20:]
    assert np.sqrt(np.mean(fitted**2)) < 0.4 * np.sqrt(np.mean(raw**2))


def test_published_parameters_are_those_of_the_twin_that_is_scored():
    twin = load_twin("simple_pendulum")
    values = published_values(twin)
    arm = body_inertial(twin, twin.table(1, values), "arm")
    depth, armature = -arm.com[0, 2], twin.params["joint/pendulum/armature"].nominal
    assert arm.mass[0] * depth == pytest.approx(PUBLISHED["mc"])
    assert inertia_matrix(arm)[0, 1, 1] + arm.mass[0] * depth**2 + armature == pytest.approx(PUBLISHED["J"])
    assert values["joint/pendulum/frictionloss"] == pytest.approx(PUBLISHED["Fc"] * np.pi / 2)


def test_errors_are_weighted_by_windows_and_bounded_over_episodes():
    squares = np.array([[0.01], [0.04], [0.09]])
    (score,) = rms_scores(squares, np.array([1, 1, 2]), ["joint"], targets=[0.3], source="a test")
    assert score.value == pytest.approx(np.sqrt((0.01 + 0.04 + 0.18) / 4))
    assert 0.1 - 1e-9 < score.low < score.value < score.high < 0.3 + 1e-9
    assert score.reached
    (alone,) = rms_scores(squares[:1], np.array([4]), ["joint"], targets=[0.05], source="a test")
    assert np.isnan(alone.low)
    assert not alone.reached


def test_a_twin_has_no_error_on_its_own_motion_and_some_on_anothers():
    twin, backend = load_twin("simple_pendulum"), open_backend("threads", nthread=1)
    (run,) = at_rate([swing()], SPAN)

    whole = prepare_replay(twin, [run], replace(REPLAY, window=None))
    own = replay(backend, whole, whole.twin.table(1))[0, 0]
    fresh = replace(run, state=own, signals={**run.signals, "joint_velocity": _speeds_of(own, run)})
    error, windows = window_errors(twin, [fresh], {}, backend)
    assert windows[0] == 3
    other = window_errors(twin, [fresh], {"joint/pendulum/frictionloss": 0.05}, backend)[0]
    assert error[0, 0] < 0.01 * other[0, 0]


def _speeds_of(position, run):
    return replace(run.signals["joint_velocity"], values=np.gradient(position, run.time, axis=0))


def test_runs_of_the_identifications_controller_train_and_all_others_test():
    training, test = simple_pendulum.CASE.split([swing(1), swing(0), swing(2)])
    assert [e.task for e in training] == ["pd/system_identification"]
    assert [e.index for e in test] == [1, 2]


def flight(index):
    """Half a minute in the air between two rests, all four throttles alike."""
    time = np.linspace(0.0, 50.0, 5001)
    throttle = np.where((time > 5.0) & (time < 45.0), 0.6, 0.0)
    nothing = np.empty((len(time), 0))
    motor = Signal(time=time, values=np.tile(throttle[:, None], 4), columns=("m1", "m2", "m3", "m4"), unit="1")
    return Episode(
        index=index,
        time=time,
        action=nothing,
        state=nothing,
        units=UnitMap(joints=(), source="a test"),
        command="none",
        signals={"motor": motor},
    )


def test_take_off_and_landing_are_left_out_and_no_moment_is_both_trained_and_tested_on():
    training, test = crazyflie.CASE.split([flight(0), flight(1)])
    assert training[0].index == 0
    assert len(training[0]) == 5001
    pieces = [*training[1:], *test]
    assert min(piece.time[0] for piece in pieces) == pytest.approx(8.0, abs=0.03)
    assert max(piece.time[-1] for piece in pieces) == pytest.approx(42.0, abs=0.03)
    seen = np.concatenate([piece.time for piece in training[1:]])
    assert not np.isin(np.concatenate([piece.time[1:-1] for piece in test]), seen).any()
    whole = crazyflie.airborne([flight(0)])
    assert whole[0].time[0] == pytest.approx(8.0, abs=0.03)
    again = crazyflie.airborne(test)
    assert [len(a) for a in again] == [pytest.approx(2.5 * len(p), rel=0.02) for p in test]


@pytest.mark.slow
def test_the_drones_thrust_curve_holds_the_published_one_and_its_yaw_stays_open():
    case, backend = crazyflie.CASE, open_backend("threads", nthread=2)
    training, test = case.split(load_set(case.name, folder(case.name)))
    scores = {score.name: score for score in case.score(case.fit(training, backend), test, backend)}
    assert all(score.reached for name, score in scores.items() if name.startswith("thrust"))
    assert scores["inertia about z"].reached
    assert 1e-5 < scores["inertia about x"].value < 4e-5


@pytest.mark.slow
def test_the_simple_pendulum_beats_its_published_parameters_on_every_controller():
    case, backend = simple_pendulum.CASE, open_backend("threads", nthread=2)
    training, test = case.split(load_set(case.name, folder(case.name)))
    scores = case.score(case.fit(training, backend), test, backend)
    assert all(score.reached for score in scores), scores


@pytest.mark.slow
def test_the_double_pendulum_beats_the_refit_on_a_run_left_out():
    case, backend = double_pendulum.CASE, open_backend("threads", nthread=2)
    training, test = case.split(load_set(case.name, folder(case.name)))
    before = case.score(None, test, backend)
    after = case.score(case.fit(training, backend), test, backend)
    assert all(score.reached for score in after), after
    assert all(a.value < 0.5 * b.value for a, b in zip(after, before, strict=True))
