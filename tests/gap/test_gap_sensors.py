"""Planted differences between sensors come back with their sizes and what would close them; equal sensors are equal."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import LogError, UnitsError
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.seeds import generator
from twinloop.core.units import JointUnit, UnitMap
from twinloop.gap.sensors.channels import sensor_channels
from twinloop.gap.sensors.measure import measure_sensors
from twinloop.stats import octave_edges, spectrum, welch_test

HZ, SECONDS = 100.0, 8.0


def unit_map(unit="rad", scale=1.0):
    return UnitMap(joints=(JointUnit(joint="elbow", unit=unit, scale=scale, offset=0.0),), source="test")


def log(*, seed, count=6, noise=1e-3, step=0.0, lag=0.08, jitter=0.0, lose=0.0, unit="rad", scale=1.0, gyro=0.0):
    """Smooth motions under commands ``lag`` s earlier, read by a sensor with these errors."""
    rng = generator(seed, "test/sensors")
    episodes = []
    for index in range(count):
        time = np.arange(0, SECONDS, 1 / HZ)
        time = time + jitter * rng.uniform(-0.5, 0.5, len(time))
        time = time[rng.uniform(size=len(time)) >= lose]
        pace, turn = rng.uniform(0.4, 0.8, 3), rng.uniform(0, 6, 3)

        def path(at, pace=pace, turn=turn):
            return sum(np.sin(2 * np.pi * f * at + p) for f, p in zip(pace, turn, strict=True)) * 0.4

        reading = path(time - lag) + noise * rng.standard_normal(len(time))
        reading = np.round(reading / step) * step if step else reading
        rates = gyro * np.sqrt(200.0) * rng.standard_normal((int(200 * SECONDS), 3))
        signals = {}
        if gyro:
            at = np.arange(len(rates)) / 200.0
            signals = {
                "angular_velocity/imu": LoggedSignal(time=at, values=rates, columns=("x", "y", "z"), unit="rad/s")
            }
        episodes.append(
            Episode(
                index=index,
                time=time,
                action=path(time)[:, None] / scale,
                state=reading[:, None] / scale,
                units=unit_map(unit, scale),
                signals=signals,
            )
        )
    return episodes


def row(gap, quantity, channel="position/elbow"):
    return next(r for r in gap.differences if (r.channel, r.quantity) == (channel, quantity))


def test_equal_sensors_do_not_differ():
    gap = measure_sensors(log(seed=0), log(seed=1))
    assert gap.significant_differences == ()
    assert row(gap, "noise").real == pytest.approx(1e-3, rel=0.1)
    assert row(gap, "lag").real == pytest.approx(0.08, abs=2e-3)
    assert bool(row(gap, "noise").difference.covers(0.0))
    assert all(band.p_value > 0.05 for band in gap.bands)


@pytest.mark.parametrize(
    ("planted", "quantity", "real", "sim"),
    [
        ({"noise": 3e-3}, "noise", 3e-3, 1e-3),
        ({"lag": 0.11}, "lag", 0.11, 0.08),
        ({"jitter": 4e-3}, "jitter", 4e-3 / math.sqrt(6), 0.0),
        ({"lose": 0.05}, "missing", 0.05, 0.0),
    ],
)
def test_a_planted_difference_is_found_with_its_size(planted, quantity, real, sim):
    gap = measure_sensors(log(seed=0, **planted), log(seed=1))
    found = row(gap, quantity)
    assert found.differs
    assert found.real == pytest.approx(real, rel=0.15)
    assert found.sim == pytest.approx(sim, rel=0.1, abs=1e-9)
    assert found.difference.low <= found.real - found.sim <= found.difference.high


def test_counts_are_found_and_named_as_the_twins_resolution():
    gap = measure_sensors(log(seed=0, noise=0.0, step=0.002), log(seed=1, noise=0.0))
    found = row(gap, "step")
    assert found.differs
    assert found.real == pytest.approx(0.002, rel=1e-3)
    assert found.remedy.parameter == "sensor/elbow/resolution"
    assert found.remedy.value == pytest.approx(0.002, rel=1e-3)
    assert not row(measure_sensors(log(seed=0, step=0.002), log(seed=1, step=0.002)), "step").differs


def test_the_value_that_closes_the_noise_adds_to_what_the_twin_has():
    nominal = {"sensor/elbow/noise": 1e-3}
    gap = measure_sensors(log(seed=0, noise=3e-3), log(seed=1, noise=1e-3), nominal=nominal)
    assert row(gap, "noise").remedy.parameter == "sensor/elbow/noise"
    assert row(gap, "noise").remedy.value == pytest.approx(3e-3, rel=0.05)


def test_the_lag_says_that_it_may_be_the_motors():
    found = row(measure_sensors(log(seed=0, lag=0.11), log(seed=1)), "lag")
    assert found.remedy.parameter == "timing/readings/delay"
    assert found.remedy.value == pytest.approx(0.03, abs=3e-3)
    assert "actuator/elbow/delay" in found.remedy.remark


def test_gyroscope_noise_comes_back_as_a_density():
    nominal = {"sensor/unit/gyro_noise": 1e-4}
    sim = [
        Episode(
            index=e.index, time=e.time, action=e.action, state=e.state, units=e.units,
            signals={"angular_velocity/unit": e.signals["angular_velocity/imu"]},
        )
        for e in log(seed=1, gyro=1e-4)
    ]  # fmt: skip
    same = {"angular_velocity/imu": "angular_velocity/unit"}
    gap = measure_sensors(log(seed=0, gyro=5e-4), sim, same=same, nominal=nominal)
    for axis in "xyz":
        found = row(gap, "noise", f"angular_velocity/imu/{axis}")
        assert found.differs
        assert found.remedy.parameter == "sensor/unit/gyro_noise"
        assert found.remedy.value == pytest.approx(5e-4, rel=0.1)


def test_a_joint_at_rest_gives_an_allan_deviation():
    episodes = log(seed=0)
    still = [
        Episode(
            index=e.index, time=e.time, action=e.action, units=e.units,
            state=np.where(e.time[:, None] < 4.0, 0.3 + 0.001 * np.sin(e.time * 40)[:, None], e.state),
        )
        for e in episodes
    ]  # fmt: skip
    rest = sensor_channels(still, si=True)["position/elbow"].rest
    assert all(span is not None and span[0] == 0 and abs(span[1] - 400) < 12 for span in rest)
    assert measure_sensors(still, still).metrics["position/elbow"][0].allan is not None
    assert measure_sensors(episodes, episodes).metrics["position/elbow"][0].allan is None


def test_units_are_made_one_where_both_are_known_and_refused_where_not():
    gap = measure_sensors(log(seed=0, unit="deg", scale=math.pi / 180), log(seed=1))
    assert gap.significant_differences == ()
    assert gap.units["position/elbow"] == "rad"
    unknown = log(seed=0)
    blank = UnitMap(joints=(JointUnit(joint="elbow", unit="range_m100_100", scale=None, offset=None),), source="log")
    unknown = [Episode(index=e.index, time=e.time, action=e.action, state=e.state, units=blank) for e in unknown]
    with pytest.raises(UnitsError, match="position/elbow is in range_m100_100 in the real log and in rad"):
        measure_sensors(unknown, log(seed=1))


def test_too_few_episodes_and_logs_without_a_common_channel_are_refused():
    with pytest.raises(LogError, match=r"The real log has 2 episodes.* at least 3 of each"):
        measure_sensors(log(seed=0, count=2), log(seed=1))
    other = UnitMap(joints=(JointUnit(joint="knee", unit="rad", scale=1.0, offset=0.0),), source="test")
    knees = [Episode(index=e.index, time=e.time, action=e.action, state=e.state, units=other) for e in log(seed=1)]
    with pytest.raises(LogError, match="share no channel"):
        measure_sensors(log(seed=0), knees)
    with pytest.raises(LogError, match="The real log has no signal acceleration/imu. It has: position"):
        measure_sensors(log(seed=0), log(seed=1), same={"acceleration/imu": "acceleration/x"})


@given(st.integers(0, 2**31), st.floats(0.1, 10.0), st.sampled_from([64, 128, 256]))
@settings(max_examples=20, deadline=None)
def test_the_spectrum_of_white_noise_is_flat_and_integrates_to_its_variance(seed, sd, segment):
    found = spectrum(sd * np.random.default_rng(seed).standard_normal(16384), 50.0, segment=segment)
    assert found.mean_density(1.0, 25.0) == pytest.approx(2 * sd**2 / 50.0, rel=0.12)


def test_octaves_end_at_the_highest_frequency():
    assert octave_edges(1.0, 16.0) == pytest.approx([1, 2, 4, 8, 16])
    assert octave_edges(3.0, 16.0) == pytest.approx([4, 8, 16])


def test_welch_holds_its_level_and_its_interval_the_truth():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0, 1, (5, 4000)), rng.normal(0, 4, (9, 4000))
    test = welch_test(first, second)
    assert np.mean(test.p_value <= 0.05) == pytest.approx(0.05, abs=0.012)
    assert test.difference.covers(0.0).mean() == pytest.approx(0.95, abs=0.012)
    exact = welch_test(np.ones((3, 2)), np.array([[1.0, 2.0]] * 3))
    assert exact.p_value.tolist() == [1.0, 0.0]
    assert exact.difference.low.tolist() == [0.0, -1.0]
