"""A force/torque sensor: coupling, hysteresis, drift, noise, range."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.sensors.force_torque import COMPONENTS, COUPLINGS, NORMALS_PER_SAMPLE, ForceTorque, force_torque_readings
from twinloop.twin.devices import device_presets


def preset(name, **changed):
    values = {key: rated.value for key, rated in device_presets()[name].values.items()}
    return ForceTorque(**{**values, **changed})


def chance(nworld, n, seed=0):
    return np.random.default_rng(seed).standard_normal((nworld, n, NORMALS_PER_SAMPLE))


def test_an_ideal_sensor_reports_the_truth():
    load = np.random.default_rng(0).standard_normal((2, 9, 6))
    np.testing.assert_array_equal(force_torque_readings(ForceTorque(), load, period=0.01), load)


def test_crosstalk_is_a_matrix_in_parts_of_the_ranges():
    sensor = preset("ati_mini45", crosstalk=0.015, force_scale_error=0.01, torque_scale_error=-0.02)
    uniform = np.random.default_rng(1).uniform(size=(2000, COUPLINGS))
    matrix = sensor.coupling_matrix(uniform)
    span = np.array([145, 145, 290, 5, 5, 5.0])
    in_ranges = matrix / span[:, None] * span
    off = in_ranges[:, ~np.eye(6, dtype=bool)]
    assert 0.0149 < np.abs(off).max() <= 0.015
    assert off.std() == pytest.approx(0.015 / np.sqrt(3), rel=0.02)
    diagonal = np.diagonal(matrix, axis1=1, axis2=2)
    np.testing.assert_allclose(diagonal, np.broadcast_to([1.01] * 3 + [0.98] * 3, diagonal.shape))
    quiet = preset("ati_mini45", crosstalk=0.015, force_step=0.0, torque_step=0.0)
    load = np.random.default_rng(2).uniform(-0.3, 0.3, (2000, 4, 6)) * span
    said = force_torque_readings(quiet, load, period=0.001, unit_uniforms=uniform)
    np.testing.assert_allclose(said, np.einsum("wij,wnj->wni", quiet.coupling_matrix(uniform), load), atol=1e-12)


def test_one_load_makes_every_component_speak_but_without_crosstalk_its_own_only():
    load = np.zeros((1, 3, 6))
    load[..., 2] = 100.0
    uniform = np.random.default_rng(3).uniform(size=(1, COUPLINGS))
    assert (force_torque_readings(ForceTorque(crosstalk=0.01), load, period=0.01, unit_uniforms=uniform) != 0).all()
    assert not force_torque_readings(ForceTorque(), load, period=0.01)[..., [0, 1, 3, 4, 5]].any()


def test_hysteresis_is_a_loop_in_parts_of_the_range():
    sensor = ForceTorque(hysteresis=0.02, force_range_z=200.0)
    up = np.linspace(0, 100, 101)
    load = np.zeros((1, 201, 6))
    load[0, :, 2] = np.concatenate([up, up[-2::-1]])
    said = force_torque_readings(sensor, load, period=0.01)[0, :, 2]
    loop = said[101:][::-1][10:90] - said[:100][10:90]
    np.testing.assert_allclose(loop, 0.02 * 200.0, atol=1e-9)


def test_noise_and_drift_are_those_of_the_parameters():
    sensor = ForceTorque(force_noise_x=1.2, force_noise_z=0.5, torque_noise_y=0.02, force_walk=0.1)
    still = np.zeros((800, 300, 6))
    said = force_torque_readings(sensor, still, period=0.01, normals=chance(800, 300))
    time = 0.01 * np.arange(300)
    variance = said.var(axis=0)
    np.testing.assert_allclose(variance[:, 0], 1.44 + 0.01 * time, rtol=0.2)
    np.testing.assert_allclose(variance[:, 1], 0.01 * time, rtol=0.25)
    assert variance[:, 4].mean() == pytest.approx(0.02**2, rel=0.02)
    assert not variance[:, [3, 5]].any()


def test_bias_saturation_and_counts_come_last():
    sensor = ForceTorque(force_bias_x=3.0, force_range_x=10.0, force_step=0.5, torque_step=0.1)
    load = np.zeros((1, 41, 6))
    load[0, :, 0] = np.linspace(-20, 20, 41)
    said = force_torque_readings(sensor, load, period=0.01)[0]
    np.testing.assert_array_equal(said[:, 0], np.clip(load[0, :, 0] + 3.0, -10, 10))
    assert len(COMPONENTS) == said.shape[1]


def test_the_ft300_is_its_data_sheet():
    sensor = preset("robotiq_ft300")
    np.testing.assert_array_equal(sensor.wrench("noise"), [1.2, 1.2, 0.5, 0.02, 0.02, 0.12])
    np.testing.assert_array_equal(sensor.wrench("range"), [300] * 3 + [30] * 3)
    assert sensor.force_walk == pytest.approx(3.0 / np.sqrt(24 * 3600), rel=1e-2)
