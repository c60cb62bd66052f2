"""Servo logs as cases of the bench: scored at their own times, fitted at some firmware gains, good at others."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from twinloop.dataset.registry import load_set
from twinloop.loop.real import so101
from twinloop.loop.real.bam_servo import CASE, GAIN, PUBLISHED, on_grid, run_errors
from twinloop.loop.real.means import mean_over_episodes
from twinloop.simulate import InitialState, open_backend, rollout
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
    """A run of the twin as ``IDENTIFIED``, with a weight of its own and the motor off at the end, in BAM's JSON."""
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
    position[~on] = 0.3  # what a log says while the motor is off is nobody's business
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
        assert (run_errors(PUBLISHED, planted, backend) > 5e-3).all()

    def test_the_published_test_gain_is_held_out_or_the_next_in_between(self, planted):
        def gains(episodes):
            return [[episode.conditions[GAIN] for episode in part] for part in CASE.split(episodes)]

        assert gains(planted) == [[100.0, 200.0], [400.0]]
        assert gains(planted[:2]) == [[100.0], [200.0]]
        assert gains(planted[:1]) == [[100.0], []]

    @pytest.mark.slow
    def test_a_fit_at_two_gains_foresees_the_third(self, planted, backend):
        training, held = CASE.split(planted)
        fitted = CASE.fit(training, backend)
        assert fitted.result is not None
        assert set(fitted.values) == set(IDENTIFIED)
        errors = [run_errors(values, held, backend)[0] for values in (fitted.values, PUBLISHED)]
        assert errors[0] < 3e-3 < 0.2 * errors[1]

    def test_the_score_is_the_mean_over_runs_in_mrad(self, planted, backend):
        [score] = CASE.score(None, planted, backend)
        errors = run_errors(PUBLISHED, planted, backend)
        assert score.value == pytest.approx(1e3 * errors.mean())
        assert score.low < score.value < score.high
        assert (score.unit, score.target) == ("mrad", 62.9)
        [alone] = CASE.score(None, planted[:1], backend)
        assert alone.value == pytest.approx(1e3 * errors[0])
        assert np.isnan(alone.low)

    def test_the_grid_keeps_the_run_and_adds_the_arms_length(self, planted):
        [even] = on_grid(planted[:1], 100.0)
        assert np.diff(even.time) == pytest.approx(0.01)
        assert even.conditions["length_shift"] == pytest.approx(0.02)


def test_one_episode_has_a_mean_and_no_interval():
    assert mean_over_episodes([[1.0, 3.0]]).estimate.tolist() == [1.0, 3.0]
    assert np.isnan(mean_over_episodes([[1.0, 3.0]]).high).all()
    assert mean_over_episodes([[1.0], [2.0], [6.0]], [1, 1, 2]).estimate[0] == pytest.approx(3.75)


def test_what_was_identified_lifts_the_real_weight_and_what_was_published_does_not(backend):
    lifts = [episode for episode in load_set(CASE.name, shared("bam_servo")) if episode.task == "lift_and_drop"]
    assert len(lifts) == 3
    identified, published = (1e3 * run_errors(values, lifts, backend) for values in (IDENTIFIED, PUBLISHED))
    assert (identified < 22.0).all()
    assert (published > 1.6 * identified).all()


@pytest.mark.slow
def test_a_fit_to_two_gains_predicts_the_third(backend):
    """Gain 200 from 100 and 800; six parameters without heat and load friction leave 50 mrad there."""
    training, held = CASE.split(load_set(CASE.name, shared("bam_servo")))
    fitted = CASE.fit(training, backend)
    [score] = CASE.score(fitted, held, backend)
    assert score.value < 25.0
    assert score.reached
    again = CASE.fit(training, backend)
    assert again.values == fitted.values


def test_the_arms_case_scores_every_joint_in_the_logs_units(backend):
    episodes = load_set(so101.CASE.name, shared("so101_pick_place_tape"))
    training, held = so101.CASE.split(episodes)
    assert [len(training), len(held)] == [30, 10]
    scores = so101.CASE.score(None, held[:2], backend)
    assert [score.name for score in scores] == list(load_twin("so101_tabletop").robot.joints)
    assert all(0.2 < score.value < 8.0 and score.low <= score.value <= score.high for score in scores)
    assert [score.target for score in scores] == [0.24, 0.81, 0.95, 0.30, 0.14, 0.71]
