"""An inertial unit: its formula, its noise by Allan deviation, its presets against their data sheets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from twinloop.core.params import SeedPath
from twinloop.sensors.force_torque import ForceTorque
from twinloop.sensors.imu import NORMALS_PER_SAMPLE, Imu, imu_readings
from twinloop.sensors.servo import ServoFeedback
from twinloop.stats import allan_curve, allan_noise
from twinloop.twin.devices import device_presets
from twinloop.twin.quantities.sensing import SENSING

G, DEGREE, HOUR = 9.80665, np.pi / 180, 3600.0


def values_of(name):
    return {key: rated.value for key, rated in device_presets()[name].values.items()}


def at_rest(unit, n, *, seed=0, nworld=1):
    """Readings of a unit at rest, after the random choice of one episode per world."""
    chance = np.random.default_rng(seed).standard_normal((nworld, n, NORMALS_PER_SAMPLE))
    still = np.zeros((nworld, n, 3))
    return imu_readings(unit, still, np.broadcast_to([0.0, 0.0, G], still.shape), period=1 / unit.rate, normals=chance)


@pytest.mark.parametrize(("kind", "model"), [("imu", Imu), ("force_torque", ForceTorque), ("servo", ServoFeedback)])
def test_a_models_fields_are_the_parameters_of_its_kind(kind, model):
    quantities = {quantity.quantity: quantity.default for quantity in SENSING if quantity.device == kind}
    assert {field.name: field.default for field in dataclasses.fields(model)} == quantities


def test_an_ideal_unit_reports_the_truth():
    rate, force = np.random.default_rng(0).standard_normal((2, 3, 20, 3))
    reported = imu_readings(Imu(), rate, force, period=0.01)
    np.testing.assert_array_equal(reported[0], rate)
    np.testing.assert_array_equal(reported[1], force)


def test_scale_misalignment_bias_and_g_sensitivity_are_the_matrix_formula():
    rng = np.random.default_rng(1)
    names = [field.name for field in dataclasses.fields(Imu) if field.name[-2:] in {"_x", "_y", "_z"}]
    names += [field.name for field in dataclasses.fields(Imu) if "misalignment" in field.name]
    values = {name: rng.uniform(-0.1, 0.1, 4) for name in names}
    unit = Imu(**values)
    rate, force = rng.standard_normal((2, 4, 7, 3))
    reported = imu_readings(unit, rate, force, period=0.01)
    for triad, truth, said in (("gyro", rate, reported[0]), ("accel", force, reported[1])):
        for world in range(4):
            scale = np.diag([values[f"{triad}_scale_error_{a}"][world] for a in "xyz"])
            off = np.array(
                [[0.0 if a == b else values[f"{triad}_misalignment_{a}{b}"][world] for b in "xyz"] for a in "xyz"]
            )
            bias = np.array([values[f"{triad}_bias_{a}"][world] for a in "xyz"])
            expected = truth[world] @ (np.eye(3) + scale + off).T + bias
            if triad == "gyro":
                expected += force[world] * [values[f"gyro_g_sensitivity_{a}"][world] for a in "xyz"]
            np.testing.assert_allclose(said[world], expected, atol=1e-14)


def test_readings_saturate_and_count():
    rate = np.linspace(-10.0, 10.0, 401)[None, :, None] * np.ones(3)
    said, _ = imu_readings(Imu(gyro_range=4.0, gyro_step=0.25), rate, 0 * rate, period=0.01)
    assert (said.min(), said.max()) == (-4.0, 4.0)
    np.testing.assert_array_equal(said / 0.25, np.round(said / 0.25))
    inside = np.abs(rate) < 4.0
    assert np.abs(said - rate)[inside].max() <= 0.125 + 1e-12


@pytest.mark.parametrize("name", ["bmi055", "d435i_imu", "adis16448"])
@pytest.mark.parametrize("triad", ["gyro", "accel"])
def test_the_allan_deviation_of_a_unit_at_rest_returns_its_white_noise(name, triad):
    values = values_of(name)
    unit = Imu(**{key: value for key, value in values.items() if key.rpartition("_")[2] != "step"})
    shortest, found = 100.0 / (2 * np.pi * values["bandwidth"]), []
    for seed in range(8):
        readings = dict(zip(("gyro", "accel"), at_rest(unit, round(120 * values["rate"]), seed=seed), strict=True))
        curves = [allan_curve(axis, 1 / values["rate"], shortest=shortest) for axis in readings[triad][0].T]
        found.extend(allan_noise(curve).white for curve in curves)
    truth = values[f"{triad}_noise"]
    assert np.mean([float(white.estimate) for white in found]) == pytest.approx(truth, rel=0.05)
    assert np.mean([white.covers(truth) for white in found]) >= 0.75  # of 24 intervals of 95 %


def test_the_slopes_are_those_of_white_noise_flicker_and_random_walk():
    """N/√τ below, 0.664 B in the middle, K √(τ/3) above: −1/2, 0, +1/2, with the requested coefficients."""
    unit = Imu(rate=100.0, gyro_noise=1e-3, gyro_instability=2e-3, gyro_walk=3e-4)
    curves = [
        allan_curve(axis, 0.01, longest=0.2) for seed in range(3) for axis in at_rest(unit, 120_000, seed=seed)[0][0].T
    ]
    time, mean = curves[0].time, np.sqrt(np.mean([c.deviation.estimate**2 for c in curves], axis=0))
    expected = np.sqrt(1e-6 / time + (2 * np.log(2) / np.pi) * 4e-6 + 9e-8 * time / 3)
    inside = time < 150
    np.testing.assert_allclose(mean[inside], expected[inside], rtol=0.15)
    slope = np.gradient(np.log(mean), np.log(time))
    assert slope[time < 0.05].mean() == pytest.approx(-0.5, abs=0.05)
    parts = {"gyro_noise": -0.5, "gyro_instability": 0.0, "gyro_walk": 0.5}
    for name, wanted in parts.items():
        alone = Imu(rate=100.0, **{name: 1e-3})
        runs = [at_rest(alone, 60_000, seed=seed)[0][0] for seed in range(4)]
        found = np.sqrt(
            np.mean([allan_curve(axis, 0.01).deviation.estimate ** 2 for run in runs for axis in run.T], axis=0)
        )
        at = allan_curve(runs[0][:, 0], 0.01).time
        usable = (at > 0.2) & (at < 20.0)
        fit = np.polyfit(np.log(at[usable]), np.log(found[usable]), 1)[0]
        assert fit == pytest.approx(wanted, abs=0.08), name


def test_the_bias_walks_as_the_root_of_time():
    gyro, _ = at_rest(Imu(rate=50.0, gyro_walk=0.02), 500, nworld=1500)
    time = np.arange(500) / 50.0
    growth = gyro[:, 1:].var(axis=(0, 2)) / time[1:]
    np.testing.assert_allclose(growth, 0.02**2, rtol=0.12)


def test_presets_are_their_data_sheets():
    """One-sided densities of a data sheet are √2 times the preset's; floors are 0.664 of it."""
    bosch, analog = values_of("bmi055"), values_of("adis16448")
    assert bosch["gyro_noise"] == pytest.approx(0.014 * DEGREE / np.sqrt(2), rel=1e-3)
    assert bosch["accel_noise"] == pytest.approx(150e-6 * G / np.sqrt(2), rel=1e-3)
    assert bosch["gyro_step"] == pytest.approx(DEGREE / 32.8, rel=1e-4)
    assert bosch["accel_step"] == pytest.approx(G / 512, rel=1e-4)
    assert bosch["accel_range"] == pytest.approx(4 * G, rel=1e-5)
    assert analog["gyro_noise"] == pytest.approx(0.66 * DEGREE / np.sqrt(HOUR), rel=1e-3)
    assert analog["gyro_instability"] == pytest.approx(14.5 * DEGREE / HOUR / 0.6643, rel=1e-3)
    assert analog["accel_noise"] == pytest.approx(0.11 / np.sqrt(HOUR), rel=1e-3)
    assert analog["accel_instability"] == pytest.approx(0.25e-3 * G / 0.6643, rel=1e-3)
    assert analog["accel_range"] == pytest.approx(18 * G, rel=1e-4)
    assert analog["accel_step"] == pytest.approx(0.833e-3 * G, rel=1e-4)


def test_chance_is_a_function_of_episode_and_sample():
    seeds = SeedPath.of(3, [7, 8])
    numbers = [seeds.take([w] * 5).uniforms("rollout/sensor/x", size=4, step=np.arange(5)) for w in (0, 1)]
    np.testing.assert_array_equal(
        numbers[1], SeedPath.of(3, [8] * 5).uniforms("rollout/sensor/x", size=4, step=range(5))
    )
    assert not np.any(numbers[0] == numbers[1])
