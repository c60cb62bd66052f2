"""Servo logs as cases of the bench: scored at their own times, fitted at some firmware gains, good at others."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.real_data import so101
from benchmarks.real_data.bam_servo import CASE, GAIN, PUBLISHED_ZERO, STRUCTURES, on_grid, run_errors
from benchmarks.real_data.case import Fitted
from benchmarks.real_data.second_order import SecondOrder, _response
from twinloop.dataset.logs.sets.registry import load_set
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import load_twin

# What the fit to all shared runs gives, rounded.
IDENTIFIED = {
    "actuator/pendulum/torque_constant": 0.39,
    "actuator/pendulum/resistance": 2.6,
    "actuator/pendulum/thermal_resistance": 28.0,
    "actuator/pendulum/thermal_time": 0.95,
    "joint/pendulum/load_friction": 0.46,
    "joint/pendulum/frictionloss": 0.004,
    "joint/pendulum/armature": 0.002,
    "sensor/pendulum/offset": 0.018,
}
LENGTH, MASS = 0.12, 0.4


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=2)


def shared(name):
    data = os.environ.get("TWINLOOP_DATA")
    if not data or not (Path(data) / name).is_dir():
        pytest.skip(f"{name} is not in TWINLOOP_DATA")
    return Path(data) / name


def planted_run(gain, seconds=2.0):
    """Simulate the twin with ``IDENTIFIED``, a given weight, and the motor off at the end; return BAM's JSON."""
    twin = load_twin("xl330_pendulum")
    values = {**IDENTIFIED, "link/weight/mass": MASS, "link/weight/com/x": LENGTH - 0.1}
    values |= {"actuator/pendulum/firmware_gain": gain, "actuator/pendulum/voltage": 7.4}
    offset = IDENTIFIED["sensor/pendulum/offset"]
    time = np.arange(round(seconds * twin.control_hz) + 1) / twin.control_hz
    goal = 0.8 * np.sin(3.0 * time)
    start = replace(InitialState.home(twin, 1), qpos=np.array([[offset]]), command=np.array([[goal[0]]]))
    made = rollout(
        open_backend("threads", nthread=1), twin, twin.table(1, values), start, goal[None, :-1, None], len(time) - 1
    )
    position, on = made.qpos[0, :, 0] - offset, time < 2 * seconds / 3
    position[~on] = 0.3  # readings while the motor is off are ignored
    columns = {"timestamp": time, "position": position, "goal_position": goal, "speed": 0 * time, "load": 0 * time}
    columns |= {"input_volts": 7.4 + 0 * time, "temp": 30 + 0 * time}
    entries = [
        {**{name: float(column[row]) for name, column in columns.items()}, "torque_enable": bool(on[row])}
        for row in range(len(time))
    ]
    head = {"mass": MASS, "length": LENGTH, "kp": gain, "vin": 7.4, "motor": "xl330", "trajectory": "sin"}
    return {**head, "entries": entries}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bam_servo")
    (folder / "xl330_raw").mkdir()
    for gain in (100, 200, 400):
        (folder / "xl330_raw" / f"run_{gain}.json").write_text(json.dumps(planted_run(gain)))
    return load_set(CASE.name, folder)


class TestPlanted:
    def test_the_planted_servo_has_no_error_at_any_gain_mass_and_length(self, planted, backend):
        """The physics of two runs differ by where their steps' boundaries round: a hundredth of a count."""
        assert [episode.conditions[GAIN] for episode in planted] == [100.0, 200.0, 400.0]
        np.testing.assert_allclose(run_errors(IDENTIFIED, planted, backend), 0.0, atol=2e-5)
        assert (run_errors(PUBLISHED_ZERO, planted, backend) > 5e-3).all()

    def test_each_gain_is_left_out_whole_also_within_a_training_part(self, planted):
        def gains(folds):
            return [[sorted({e.conditions[GAIN] for e in part}) for part in (f.training, f.test)] for f in folds]

        outer = CASE.folds(planted)
        assert gains(outer) == [[[200.0, 400.0], [100.0]], [[100.0, 400.0], [200.0]], [[100.0, 200.0], [400.0]]]
        assert gains(CASE.inner_folds(outer[0].training)) == [[[400.0], [200.0]], [[200.0], [400.0]]]
        assert CASE.inner_folds(planted[:1]) == []

    @pytest.mark.slow
    def test_a_fit_at_two_gains_foresees_the_third(self, planted, backend):
        fold, structure = CASE.folds(planted)[2], "load friction and heat"
        fitted = CASE.fit(fold.training, structure, backend)
        assert set(fitted.values) == set(STRUCTURES[structure]) == set(IDENTIFIED)
        errors = [run_errors(values, fold.test, backend)[0] for values in (fitted.values, PUBLISHED_ZERO)]
        assert errors[0] < 3e-3 < 0.2 * errors[1]

    def test_the_error_is_the_mean_over_runs_in_mrad(self, planted, backend):
        errors = CASE.errors(Fitted(values=PUBLISHED_ZERO), planted, backend)
        assert errors.metrics[0] == pytest.approx(1e3 * run_errors(PUBLISHED_ZERO, planted, backend).mean())
        assert errors.units == ("mrad",)

    def test_the_grid_keeps_the_run_and_adds_the_arms_length(self, planted):
        [even] = on_grid(planted[:1], 100.0)
        assert np.diff(even.time) == pytest.approx(0.01)
        assert even.conditions["length_shift"] == pytest.approx(0.02)


def test_what_was_identified_lifts_the_real_weight_and_what_was_published_does_not(backend):
    lifts = [episode for episode in load_set(CASE.name, shared("bam_servo")) if episode.task == "lift_and_drop"]
    assert len(lifts) == 3
    identified, published = (1e3 * run_errors(values, lifts, backend) for values in (IDENTIFIED, PUBLISHED_ZERO))
    assert (identified < 22.0).all()
    assert (published > 1.6 * identified).all()


@pytest.mark.slow
def test_a_fit_to_two_gains_predicts_the_third(backend):
    """Gain 200 from 100 and 800; six parameters without heat and load friction leave 50 mrad there."""
    fold = next(f for f in CASE.folds(load_set(CASE.name, shared("bam_servo"))) if f.name == "gain 200")
    fitted = CASE.fit(fold.training, CASE.candidates[0].structure, backend)
    assert CASE.errors(fitted, fold.test, backend).metrics[0] < 25.0
    assert CASE.fit(fold.training, CASE.candidates[0].structure, backend).values == fitted.values


def test_the_arms_blocks_of_ten_episodes_are_left_out_whole(backend):
    episodes = load_set(so101.CASE.name, shared("so101_pick_place_tape"))
    folds = so101.CASE.folds(episodes)
    assert [fold.name for fold in folds] == ["0 to 9", "10 to 19", "20 to 29", "30 to 39"]
    assert [[len(fold.training), len(fold.test)] for fold in folds] == [[30, 10]] * 4
    assert [fold.name for fold in so101.CASE.inner_folds(folds[3].training)] == ["0 to 9", "10 to 19", "20 to 29"]
    errors = so101.CASE.errors(Fitted(), folds[3].test[:2], backend)
    assert errors.names == tuple(load_twin("so101_tabletop").robot.joints)
    assert all(0.2 < value < 8.0 for value in errors.metrics)


def test_a_candidates_dry_friction_changes_the_arms_replay_and_not_the_twin(backend):
    [episode] = load_set(so101.CASE.name, shared("so101_pick_place_tape"))[:1]
    soft, stiff, again = (
        so101.CASE.errors(Fitted(prediction=name), [episode], backend).metrics for name in (*so101.IMPEDANCES, "")
    )
    assert not np.allclose(soft, stiff, rtol=1e-2)
    np.testing.assert_array_equal(soft, again)


def test_a_planted_second_order_law_is_found(backend):
    """The law's own response of a log's commands, with a delay of 80 ms; the sampled law is exact."""
    [episode] = load_set(so101.CASE.name, shared("so101_pick_place_tape"))[:1]
    logs = prepare_replay(load_twin("so101_tabletop"), [episode])
    truth = np.tile([np.log(12.0), np.log(0.8), 0.08, 0.5], (len(logs.joints), 1))
    told = replace(logs, measured=SecondOrder(params=truth).readings(logs))
    assert np.abs(told.measured - logs.measured).max() > 1.0
    np.testing.assert_allclose(SecondOrder.fit(told).params, truth, atol=2e-3)


def test_the_law_follows_a_step_as_its_formula_says():
    """Damping 1: x = 1 − (1 + ω t) e^(−ω t) after the delay."""
    time, frequency = np.arange(60) / 30.0, 6.0
    command = np.ones((1, 60))
    command[0, 0] = 0.0
    position = _response(np.array([np.log(frequency), 0.0, 2 / 30.0, 0.0]), command, np.zeros(1), 30.0)[0]
    late = np.maximum(time - 3 / 30.0, 0.0)
    np.testing.assert_allclose(position, 1 - (1 + frequency * late) * np.exp(-frequency * late), atol=1e-9)
