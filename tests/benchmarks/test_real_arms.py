"""The torque-controlled arms: first speeds come from the past, published parameters are scored as published."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.real_data import crazyflie, double_pendulum, simple_pendulum
from benchmarks.real_data.arm_windows import (
    REPLAY,
    at_rate,
    body_inertial,
    inertia_matrix,
    one_step_per_frame,
    past_speeds,
    rms_errors,
    window_errors,
)
from benchmarks.real_data.case import PUBLISHED, Fitted
from benchmarks.real_data.run_zeros import SPREAD, window_errors_with_zeros, zero_weights
from benchmarks.real_data.simple_pendulum import REGRESSION, published_values
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.units import UnitMap
from twinloop.dataset.logs.sets.registry import load_set
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import load_twin

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
    made = LoggedSignal(
        time=time, values=4.0 * 0.6 * np.cos(4.0 * time + seed)[:, None], columns=("pendulum",), unit="rad/s"
    )
    push = LoggedSignal(time=time, values=torque[:, None], columns=("pendulum",), unit="N·m")
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
    assert arm.mass[0] * depth == pytest.approx(REGRESSION["mc"])
    assert inertia_matrix(arm)[0, 1, 1] + arm.mass[0] * depth**2 + armature == pytest.approx(REGRESSION["J"])
    assert values["joint/pendulum/frictionloss"] == pytest.approx(REGRESSION["Fc"] * np.pi / 2)


def test_errors_are_root_mean_squares_over_windows():
    errors = rms_errors(np.array([[0.01], [0.04], [0.04]]), ["joint"])
    assert errors.metrics == pytest.approx([np.sqrt(0.03)])


def test_a_twin_has_no_error_on_its_own_motion_and_some_on_anothers():
    twin, backend = load_twin("simple_pendulum"), open_backend("threads", nthread=1)
    (run,) = at_rate([swing()], SPAN)

    whole = prepare_replay(twin, [run], replace(REPLAY, window=None))
    own = replay(backend, whole, whole.twin.table(1))[0, 0]
    fresh = replace(run, state=own, signals={**run.signals, "joint_velocity": _speeds_of(own, run)})
    error = window_errors(twin, [fresh], {}, backend)
    assert error.shape == (3, 1)
    other = window_errors(twin, [fresh], {"joint/pendulum/frictionloss": 0.05}, backend)
    assert error.mean() < 0.01 * other.mean()


def _speeds_of(position, run):
    return replace(run.signals["joint_velocity"], values=np.gradient(position, run.time, axis=0))


def test_runs_of_the_identifications_controller_train_and_all_others_test():
    [fold] = simple_pendulum.CASE.folds([swing(1), swing(0), swing(2)])
    assert [e.task for e in fold.training] == ["pd/system_identification"]
    assert [e.index for e in fold.test] == [1, 2]
    first, second = simple_pendulum.CASE.inner_folds(fold.training)
    assert [first.name, second.name] == ["first", "second"]
    np.testing.assert_array_equal(np.concatenate([first.test[0].time, second.test[0].time]), swing(0).time)
    assert first.training[0] is not first.test[0]
    np.testing.assert_array_equal(first.training[0].time, second.test[0].time)


def test_errors_are_pooled_over_all_windows_and_told_by_controller():
    runs, backend = (
        [swing(1), replace(swing(2), task="third", conditions={"mass_variant": 1.0})],
        open_backend("threads"),
    )
    errors = simple_pendulum.CASE.errors(Fitted(), runs, backend)
    assert [name.rsplit(" windows, ")[-1] for name in errors.names] == ["all", "other", "third, 1 kg"]
    pooled, *each = errors.metrics**2
    assert pooled == pytest.approx(np.mean(each))  # as many windows each
    published = simple_pendulum.CASE.references([])[PUBLISHED]
    assert not np.allclose(simple_pendulum.CASE.errors(published, runs, backend).metrics, errors.metrics)


def arm_run(zero, *, seconds=3.0, seed=0):
    """Simulate the double pendulum's twin under torques, with offsets of the encoder zeros in the readings."""
    twin, hz = one_step_per_frame(load_twin("double_pendulum")), 500.0
    time = np.arange(round(seconds * hz)) / hz
    torque = np.stack([0.5 * np.sin(4.0 * time + seed) + 0.6, 0.3 * np.sin(7.0 * time)], axis=1)
    still, push = (
        LoggedSignal(time=time, values=values, columns=("shoulder", "elbow"), unit=unit)
        for values, unit in ((np.zeros((len(time), 2)), "rad/s"), (torque, "N·m"))
    )
    run = Episode(
        index=seed,
        time=time,
        action=torque,
        state=np.tile(-np.asarray(zero), (len(time), 1)),
        units=twin.units,
        command="torque",
        signals={"joint_velocity": still, "joint_torque": push},
    )
    whole = prepare_replay(twin, [run], replace(REPLAY, window=None))
    offsets = {f"sensor/{joint}/offset": value for joint, value in zip(("shoulder", "elbow"), zero, strict=True)}
    moved = replay(open_backend("threads", nthread=1), whole, whole.twin.table(1, offsets))[0, 0]
    speeds = replace(still, values=np.gradient(moved, time, axis=0))
    return replace(run, state=moved, signals={"joint_velocity": speeds, "joint_torque": push})


def test_a_planted_zero_is_weighed_from_the_windows_before():
    """After two of five windows the error is a fraction of the error with zero 0; without an offset the error is
    unchanged.
    """
    twin, backend = one_step_per_frame(load_twin("double_pendulum")), open_backend("threads", nthread=1)
    noise = np.array([0.002, 0.002])
    run = arm_run((0.06, -0.03))
    plain = np.sqrt(window_errors(twin, [run], {}, backend))
    found = np.sqrt(window_errors_with_zeros(twin, run, {}, noise, backend))
    assert plain.shape == found.shape == (5, 2)
    assert (found[2:].mean(axis=0) < 0.4 * plain[2:].mean(axis=0)).all()
    fine = arm_run((0.0, 0.0))
    assert (np.sqrt(window_errors_with_zeros(twin, fine, {}, noise, backend))[2:] < 4e-3).all()


def test_weights_of_zeros_begin_with_the_prior_and_know_nothing_of_later_windows():
    rng = np.random.default_rng(0)
    zeros, noise = np.array([[0.0, 0.0], [SPREAD, 0.0], [0.0, 2 * SPREAD]]), np.array([0.01, 0.02])
    squares = rng.uniform(0.0, 1e-3, size=(3, 5, 2))
    weights = zero_weights(zeros, squares, noise)
    prior = np.exp([0.0, -0.5, -2.0])
    np.testing.assert_allclose(weights[:, 0], prior / prior.sum())
    np.testing.assert_allclose(weights.sum(axis=0), 1.0)
    cauchy = prior * np.prod(1.0 / (1.0 + squares[:, 0] / noise**2), axis=-1)
    np.testing.assert_allclose(weights[:, 1], cauchy / cauchy.sum())
    later = squares.copy()
    later[:, 3:] = 7.0
    np.testing.assert_array_equal(zero_weights(zeros, later, noise)[:, :4], weights[:, :4])


def flight(index):
    """Half a minute in the air between two rests, with four equal throttles."""
    time = np.linspace(0.0, 50.0, 5001)
    throttle = np.where((time > 5.0) & (time < 45.0), 0.6, 0.0)
    nothing = np.empty((len(time), 0))
    motor = LoggedSignal(time=time, values=np.tile(throttle[:, None], 4), columns=("m1", "m2", "m3", "m4"), unit="1")
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
    folds = crazyflie.CASE.folds([flight(0), flight(1)])
    assert [fold.name for fold in folds] == ["pieces 1, …", "pieces 2, …", "pieces 3, …"]
    tested = np.sort(np.concatenate([piece.time[1:-1] for fold in folds for piece in fold.test]))
    assert len(np.unique(tested)) == len(tested)
    for fold in folds:
        assert fold.training[0].index == 0
        assert len(fold.training[0]) == 5001
        pieces = [*fold.training[1:], *fold.test]
        assert min(piece.time[0] for piece in pieces) == pytest.approx(8.0, abs=0.03)
        assert max(piece.time[-1] for piece in pieces) == pytest.approx(42.0, abs=0.03)
        seen = np.concatenate([piece.time for piece in fold.training[1:]])
        assert not np.isin(np.concatenate([piece.time[1:-1] for piece in fold.test]), seen).any()
        inner = crazyflie.CASE.inner_folds(fold.training)
        assert {f.name for f in inner} == {f.name for f in folds} - {fold.name}
        training = set(map(id, fold.training))
        assert all(id(piece) in training for f in inner for piece in [*f.training, *f.test])
    whole = crazyflie.airborne([flight(0)])
    assert whole[0].time[0] == pytest.approx(8.0, abs=0.03)
    again = crazyflie.airborne(folds[0].test)
    assert [len(a) for a in again] == [pytest.approx(2.5 * len(p), rel=0.02) for p in folds[0].test]


@pytest.mark.slow
def test_the_drones_thrust_is_the_published_one_within_2_percent_and_its_yaw_stays_open():
    case, backend = crazyflie.CASE, open_backend("threads", nthread=2)
    fold = case.folds(load_set(case.name, folder(case.name)))[0]
    fitted = case.fit(fold.training, crazyflie.LIFTED, backend)
    constants = {constant.name: constant for constant in case.constants(fitted)}
    thrusts = [constant for name, constant in constants.items() if name.startswith("thrust")]
    assert [constant.value for constant in thrusts] == pytest.approx([c.published for c in thrusts], rel=0.02)
    assert constants["thrust of a rotor at throttle 0.5"].covers
    assert np.isnan(constants["inertia about z"].value)
    assert 1e-5 < constants["inertia about x"].value < 4e-5
    after, before = (case.errors(known, fold.test, backend).metrics for known in (fitted, Fitted()))
    assert (after < before).all()


@pytest.mark.slow
def test_the_simple_pendulum_beats_its_published_parameters_on_every_controller():
    case, backend = simple_pendulum.CASE, open_backend("threads", nthread=2)
    [fold] = case.folds(load_set(case.name, folder(case.name)))
    fitted = replace(case.fit(fold.training, "friction, 60 ms", backend), prediction="60 ms")
    published = case.references(fold.training)[PUBLISHED]
    after, before = (case.errors(known, fold.test, backend).metrics for known in (fitted, published))
    assert (after < before).all()


@pytest.mark.slow
def test_the_double_pendulum_beats_its_published_parameters_on_a_run_left_out():
    case, backend = double_pendulum.CASE, open_backend("threads", nthread=2)
    fold = next(f for f in case.folds(load_set(case.name, folder(case.name))) if "143704" in f.name)
    fitted = case.fit(fold.training, "bodies and friction", backend)
    known = (replace(fitted, prediction="zero estimated"), fitted, Fitted())
    estimated, zero, published = (case.errors(each, fold.test, backend).metrics for each in known)
    assert (estimated < 0.6 * zero).all()
    assert (zero < 0.8 * published).all()
