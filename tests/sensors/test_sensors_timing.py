"""Readings on a separate clock: never from the future, on time, and as exact between records as promised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.one_joint import joints_twin, run
from twinloop.core.errors import InputError
from twinloop.core.params import SeedPath
from twinloop.core.seeds import uniforms
from twinloop.rollout.sensing import joint_readings
from twinloop.sensors import find_newest_sample, interpolate_hermite
from twinloop.simulate import InitialState
from twinloop.twin import load_twin

RATE, PHASE, DELAY = (f"timing/readings/{name}" for name in ("rate", "phase", "delay"))
SPEED = 2.0


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return joints_twin(tmp_path_factory.mktemp("readings"))


@pytest.fixture(scope="module")
def arm():
    return load_twin("so101_tabletop")


def coasting(twin, values, nstep=60, seeds=True, nworld=1):
    """A joint that nothing slows, at `SPEED` from 0: its position is its time. Readings and true times."""
    bare = {"joint/j0/damping": 0.0, "joint/j0/frictionloss": 0.0, "actuator/j0/kp": 1e-6, "sensor/j0/resolution": 0.0}
    table = twin.table(nworld, {**bare, **values})
    table = table.with_seeds(SeedPath.of(0, range(nworld))) if seeds else table
    start = replace(InitialState.home(twin, nworld), qvel=np.full((nworld, 1), SPEED))
    result = run(twin, table, np.zeros((nworld, nstep, 1)), initial=start)
    readings = joint_readings(twin, table, result.qpos[:, :-1], qvel=result.qvel[:, :-1], time=result.time[:, :-1])
    return readings[..., 0], result.time[:, :-1]


class TestFilterLag:
    def test_a_coasting_joint_is_read_where_it_was_a_lag_ago(self, twin):
        readings, time = coasting(twin, {"sensor/j0/lag": [0.0, 0.02, 0.05]}, nworld=3)
        expected = SPEED * (time - np.array([[0.0], [0.02], [0.05]]))
        np.testing.assert_allclose(readings[:, 40:], expected[:, 40:], atol=1e-3)
        np.testing.assert_allclose(readings[0], SPEED * time[0], atol=1e-4)

    def test_a_swing_is_weakened_and_late_as_a_first_order_filter_makes_it(self, twin):
        time, frequency, lag = np.arange(300)[None] / 100, 12.0, 0.03
        position, speed = np.sin(frequency * time), frequency * np.cos(frequency * time)
        table = twin.table(1, {"sensor/j0/lag": lag, "sensor/j0/resolution": 0.0})
        said = joint_readings(twin, table, position[..., None], qvel=speed[..., None], time=time)[0, :, 0]
        phase = np.arctan(frequency * lag)
        expected = np.sin(frequency * time[0] - phase) / np.hypot(1.0, frequency * lag)
        np.testing.assert_allclose(said[100:], expected[100:], atol=2e-4)

    def test_it_comes_before_the_age_of_a_reading(self, twin):
        readings, time = coasting(twin, {"sensor/j0/lag": 0.02, DELAY: 0.03})
        np.testing.assert_allclose(readings[0, 45:], SPEED * (time[0, 45:] - 0.05), atol=1e-3)

    def test_one_that_changes_with_time_is_refused(self, twin):
        table = twin.table(1).with_steps({"sensor/j0/lag": np.full((1, 4), 0.01)})
        with pytest.raises(
            InputError, match="sensor/j0/lag changes at every control step, but a filter needs a constant value"
        ):
            joint_readings(twin, table, np.zeros((1, 4, 1)), qvel=np.zeros((1, 4, 1)), time=np.arange(4.0)[None])


class TestNewestSample:
    @given(
        rate=st.floats(1.0, 2000.0),
        phase=st.floats(0.0, 1.0),
        delay=st.floats(0.0, 0.2),
        start=st.floats(0.0, 5.0),
    )
    def test_it_is_on_the_sensors_clock_delivered_and_the_newest(self, rate, phase, delay, start):
        time = start + np.arange(50.0)[None] / 33.0
        taken, number = find_newest_sample(time, rate=rate, phase=phase, delay=delay)
        slack = 1e-8 / rate
        assert (taken <= np.maximum(time - delay, 0.0)).all()
        sampled = number > 0
        ticks = (taken * rate - phase)[sampled]
        np.testing.assert_allclose(ticks, number[sampled] - 1, atol=1e-5)
        following = (phase + number) / rate
        assert (following + delay > time - slack).all()
        assert (np.diff(number) >= 0).all()
        assert (taken[~sampled] == 0.0).all()

    def test_asked_at_any_time_it_is_of_that_time(self):
        time = np.array([[0.0, 0.01, 0.05]])
        taken, number = find_newest_sample(time, rate=0.0, phase=0.3, delay=0.02)
        np.testing.assert_allclose(taken, [[0.0, 0.0, 0.03]])
        np.testing.assert_array_equal(number, [[1, 2, 3]])


class TestHermite:
    @given(coefficients=st.lists(st.floats(-3, 3), min_size=4, max_size=4), at=st.floats(0.0, 1.0))
    def test_a_cubic_is_met_exactly(self, coefficients, at):
        cubic = np.polynomial.Polynomial(coefficients)
        time = np.array([[0.0, 0.3, 0.45, 1.0]])
        found = interpolate_hermite(time, cubic(time)[..., None], cubic.deriv()(time)[..., None], np.array([[at]]))
        np.testing.assert_allclose(found[0, 0, 0], cubic(at), atol=1e-12)

    @settings(max_examples=50, deadline=None)
    @given(accelerations=st.lists(st.floats(-1, 1), min_size=8, max_size=8), at=st.floats(0.0, 1.0))
    def test_a_torque_that_jumps_costs_no_more_than_the_promised_bound(self, accelerations, at):
        """Eight constant accelerations within one record interval of length 1."""
        speed, position, time = 0.3, 0.0, 0.0
        seen = None
        for a in accelerations:
            if time <= at <= time + 0.125:
                part = at - time
                seen = position + speed * part + 0.5 * a * part**2
            position, speed, time = position + speed * 0.125 + 0.5 * a * 0.125**2, speed + a * 0.125, time + 0.125
        ends = np.array([[[0.0], [position]]]), np.array([[[0.3], [speed]]])
        found = interpolate_hermite(np.array([[0.0, 1.0]]), *ends, np.array([[at]]))[0, 0, 0]
        assert abs(found - seen) <= 1 / 16 + 1e-12

    def test_a_smooth_motion_costs_the_fourth_power_of_the_interval(self):
        fine = np.linspace(0.0, 1.0, 997)[None]
        worst = []
        for n in (11, 21, 41):
            time = np.linspace(0.0, 1.0, n)[None]
            found = interpolate_hermite(time, np.sin(7 * time)[..., None], 7 * np.cos(7 * time)[..., None], fine)[
                ..., 0
            ]
            worst.append(np.abs(found - np.sin(7 * fine)).max())
            assert worst[-1] <= 7**4 / 384 / (n - 1) ** 4
        np.testing.assert_allclose(np.log2(np.divide(worst[:-1], worst[1:])), 4.0, atol=0.3)

    def test_a_recorded_value_is_given_back_to_the_bit(self):
        time = np.cumsum(uniforms(0, "t", range(3), size=9), axis=1)
        value, slope = uniforms(0, "v", range(3), size=18), uniforms(0, "s", range(3), size=18)
        value, slope = value.reshape(3, 9, 2), slope.reshape(3, 9, 2)
        np.testing.assert_array_equal(interpolate_hermite(time, value, slope, time), value)


class TestInSimulation:
    @settings(max_examples=10, deadline=None)
    @given(rate=st.floats(15.0, 400.0), phase=st.floats(0.0, 1.0), delay=st.floats(0.0, 0.05))
    def test_a_coasting_joint_shows_when_it_was_read(self, twin, rate, phase, delay):
        readings, time = coasting(twin, {RATE: rate, PHASE: phase, DELAY: delay}, seeds=False)
        taken, _ = find_newest_sample(time, rate=rate, phase=phase, delay=delay)
        np.testing.assert_allclose(readings / SPEED, taken, atol=1e-6)

    def test_a_planted_clock_is_found_again_from_the_steps_of_the_readings(self, twin):
        readings, time = coasting(twin, {RATE: 37.0, PHASE: 0.4, DELAY: 0.012}, nstep=400)
        taken = np.unique(np.round(readings[0] / SPEED, 7))[1:]
        period, first = np.polyfit(np.arange(len(taken)), taken, 1)
        assert 1 / period == pytest.approx(37.0, rel=1e-4)
        assert first * 37.0 == pytest.approx(0.4, abs=5e-3)
        age = time[0] - readings[0] / SPEED
        assert 0.012 <= age[10:].min() < 0.012 + 1e-3
        assert age[10:].max() < 0.012 + 1 / 37 + 1e-3

    def test_an_unsteady_loop_reads_at_its_true_times(self, twin):
        values = {DELAY: 0.015, "timing/control/jitter": 0.006, "timing/control/period": 1.2}
        readings, time = coasting(twin, values)
        np.testing.assert_allclose(readings / SPEED, np.maximum(time - 0.015, 0.0), atol=1e-5)
        assert np.ptp(np.diff(time[0])) > 3e-3

    def test_between_steps_a_moving_arm_is_where_finer_records_say(self, tmp_path, twin):
        """The same physics recorded ten times as often."""
        fine = joints_twin(tmp_path, control_hz=1000, substeps=1)
        commands = np.repeat([0.4, -0.3, 0.2, 0.0], 10)[None, :, None]
        values = {DELAY: 0.0137, "sensor/j0/resolution": 0.0}
        coarse = run(twin, twin.table(1, values), commands)
        true = run(fine, fine.table(1), np.repeat(commands, 10, axis=1))
        time = coarse.time[:, :-1]
        seen = joint_readings(twin, twin.table(1, values), coarse.qpos[:, :-1], qvel=coarse.qvel[:, :-1], time=time)
        wanted = np.interp(np.maximum(time[0] - 0.0137, 0.0), true.time[0], true.qpos[0, :, 0])
        acceleration = np.abs(np.diff(true.qvel[0, :, 0])).max() * 1000
        assert np.abs(seen[0, :, 0] - wanted).max() < acceleration / 100**2 / 16

    @pytest.mark.parametrize("step", [3, 17])
    def test_what_is_observed_does_not_know_the_future(self, arm, step):
        values = {RATE: 50.0, PHASE: 0.7, DELAY: 0.01} | {f"actuator/{name}/delay": 0.0 for name in arm.robot.joints}
        commands = arm.home()[1] + 0.3 * np.sin(np.arange(25) / 3)[None, :, None] * np.ones((2, 1, 6))
        commands[1, step:] += 0.2
        result = run(arm, arm.table(2, values), commands)
        seen = joint_readings(arm, arm.table(2, values), result.qpos, qvel=result.qvel, time=result.time)
        np.testing.assert_array_equal(seen[0, : step + 1], seen[1, : step + 1])
        assert np.abs(seen[0, step + 3 :] - seen[1, step + 3 :]).max() > 1e-3


class TestNoiseAndCounts:
    def test_noise_has_the_spread_it_was_given_and_is_each_samples_own(self, twin):
        readings, time = coasting(twin, {"sensor/j0/noise": 0.01}, nworld=40)
        noise = readings - SPEED * time
        assert noise.std() == pytest.approx(0.01, rel=0.05)
        assert abs(noise.mean()) < 4 * 0.01 / np.sqrt(noise.size)
        assert abs(np.corrcoef(noise[:, 1:].ravel(), noise[:, :-1].ravel())[0, 1]) < 0.1

    def test_a_sample_reported_twice_is_one_reading(self, twin):
        readings, _ = coasting(twin, {"sensor/j0/noise": 0.01, RATE: 20.0})
        assert len(np.unique(readings)) == 12  # 20 Hz over 0.6 s

    def test_noise_is_of_the_episode_and_not_of_its_company(self, arm):
        names = {f"sensor/{name}/noise": 0.002 for name in arm.robot.joints}
        qpos = np.tile(arm.home()[0], (3, 7, 1))
        extra = {"qvel": np.zeros((3, 7, arm.model.nv)), "time": np.tile(np.arange(7) / 30, (3, 1))}
        table = arm.table(3, names).with_seeds(SeedPath.of(1, [4, 5, 6]))
        together = joint_readings(arm, table, qpos, **extra)
        alone = joint_readings(arm, table.take([1]), qpos[:1], **{key: value[:1] for key, value in extra.items()})
        np.testing.assert_array_equal(together[1], alone[0])
        assert np.ptp(together, axis=1).min() > 0

    def test_counts_are_as_large_as_the_parameter_says_and_the_robots_own_by_default(self, arm):
        size = np.array([2 * np.pi / 4096, 0.01, 0.0])
        qpos = np.tile(arm.home()[0], (3, 50, 1))
        qpos[..., arm.joint_qpos] += np.linspace(0, 0.5, 50)[None, :, None]
        seen = joint_readings(arm, arm.table(3, {f"sensor/{name}/resolution": size for name in arm.robot.joints}), qpos)
        np.testing.assert_allclose(seen[1] / 0.01, np.round(seen[1] / 0.01), atol=1e-9)
        np.testing.assert_array_equal(seen[2], qpos[2][:, arm.joint_qpos])
        np.testing.assert_array_equal(seen[0], joint_readings(arm, arm.table(1), qpos[:1])[0])
        assert arm.encoder_resolution == pytest.approx(2 * np.pi / 4096)

    def test_what_is_missing_is_named(self, twin):
        noisy = twin.table(1, {"sensor/j0/noise": 0.01})
        whole = {"qvel": np.zeros((1, 2, 1)), "time": np.array([[0.0, 0.1]])}
        with pytest.raises(InputError, match=r"sensor/\*/noise happens by chance, .* has no seed path"):
            joint_readings(twin, noisy, np.zeros((1, 2, 1)), **whole)
        with pytest.raises(InputError, match=r"depend on earlier states. Give velocities and times"):
            joint_readings(twin, twin.table(1, {DELAY: 0.01}), np.zeros((1, 2, 1)))
