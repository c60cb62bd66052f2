"""What pixels add to light: EMVA 1288's photon transfer, patterns of units, wells, darkness, rows."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm, poisson

from support.cameras import camera_seeds, flat
from twinloop.sensors.camera import CameraModel, list_stages
from twinloop.sensors.camera.exposure import CaptureExposure, manual_exposure
from twinloop.sensors.camera.seeds import POISSON_BELOW, poisson_of_words
from twinloop.sensors.camera.sensor import add_noise, digitize_electrons, unit_pattern
from twinloop.sensors.camera.stages import CameraUnit, Capture, list_sensing_stages

SENSOR = CameraModel(noise_scale=1.0, bits=12, black_level=256, full_well=8000, electron_rate=8e5, exposure_time=0.01)


def raw(model, light, *, number=0, seeds=None):
    """Digital numbers of one capture of light ``(height, width, 3)``."""
    shot = Capture(
        number, manual_exposure(model), np.ones(3), CameraUnit(model, seeds or camera_seeds(), *light.shape[:2])
    )
    for stage in list_sensing_stages(model):
        light = stage.function(light, shot)
    return light.astype(np.float64)


def photon_transfer(model, levels, size=120):
    """Mean and temporal variance of digital numbers at each level of light, by the difference of two captures."""
    pairs = [
        [raw(model, flat(level, size, size)[0], number=2 * i + k) for k in (0, 1)] for i, level in enumerate(levels)
    ]
    mean = np.array([np.mean(pair) for pair in pairs])
    variance = np.array([np.var(pair[0] - pair[1]) / 2.0 for pair in pairs])
    return mean, variance, variance * np.sqrt(2.0 / (3 * size**2))


@settings(deadline=None, max_examples=12)
@given(gain=st.floats(1.0, 12.0), read=st.floats(1.0, 8.0), adc=st.floats(0.0, 8.0), well=st.floats(2e3, 2e4))
def test_noise_variance_against_signal_is_the_photon_line(gain, read, adc, well):
    model = dataclasses.replace(
        SENSOR, gain=gain, read_noise=read, adc_noise=adc, full_well=well, electron_rate=100.0 * well
    )
    mean, variance, error = photon_transfer(model, np.linspace(0.02, 0.8, 9) / gain)
    slope, intercept = np.polyfit(mean - model.black_level, variance, 1, w=1.0 / error)
    weights = np.vstack([mean - model.black_level, np.ones(len(mean))]).T / error[:, None]
    spread = np.sqrt(np.diag(np.linalg.inv(weights.T @ weights)))
    system = 3839.0 / well * gain  # 12 bits less the black level, at a full well
    assert abs(slope - system) < 4.0 * spread[0] + 1e-3 * system
    dark = system**2 * (read**2 + (adc / gain) ** 2) + 1.0 / 12.0
    assert abs(intercept - dark) < 4.0 * spread[1] + 0.01 * dark


def test_noise_scale_scales_the_standard_deviation():
    loud = dataclasses.replace(SENSOR, noise_scale=2.0)
    ratio = raw(loud, flat(0.3)[0]).std() / raw(SENSOR, flat(0.3)[0]).std()
    assert ratio == pytest.approx(2.0, rel=0.01)


@settings(deadline=None, max_examples=12)
@given(mean=st.floats(0.01, POISSON_BELOW - 0.01), number=st.integers(0, 1000))
def test_few_electrons_are_poisson_distributed(mean, number):
    size = 40_000
    counts = poisson_of_words(camera_seeds().words("p", size, number=number), np.full(size, mean)).astype(int)
    expected = poisson.pmf(np.arange(130), mean) * size
    seen = np.bincount(counts, minlength=130)
    usual = expected > 5.0
    square = ((seen - expected)[usual] ** 2 / expected[usual]).sum()
    assert square < usual.sum() + 6.0 * np.sqrt(2.0 * usual.sum())


@settings(deadline=None, max_examples=12)
@given(mean=st.floats(POISSON_BELOW, 200.0), read=st.floats(1.5, 8.0))
def test_more_electrons_are_distributed_as_a_poisson_number_and_its_reading(mean, read):
    size = 250_000
    model = CameraModel(noise_scale=1.0, read_noise=read)
    drawn = add_noise(np.full((1, size), mean), model, CaptureExposure(0.01, 1.0), camera_seeds(), 0).ravel()
    x, counts = np.linspace(mean - 30.0, mean + 60.0, 200), np.arange(400)
    exact = (poisson.pmf(counts, mean)[:, None] * norm.cdf((x - counts[:, None]) / read)).sum(axis=0)
    seen = np.searchsorted(np.sort(drawn), x) / size
    assert np.abs(exact - seen).max() < 1e-3 + 2.0 / np.sqrt(size)
    skewness = np.mean((drawn - mean) ** 3) / mean
    assert skewness == pytest.approx(1.0, abs=6.0 * np.sqrt(15.0 * (mean + read**2) ** 3 / size) / mean + 0.1)


def test_normal_numbers_are_normal_in_the_middle_and_in_the_tails():
    numbers = camera_seeds().normals("n", 1_000_000)
    assert kstest(numbers, "norm").pvalue > 1e-3
    assert numbers.mean() == pytest.approx(0.0, abs=4e-3)
    assert numbers.var() == pytest.approx(1.0, abs=6e-3)
    assert (np.abs(numbers) > 4.0).mean() == pytest.approx(2.0 * norm.sf(4.0), rel=0.5)


def test_dark_signal_and_its_noise_grow_with_time():
    lit, times = dataclasses.replace(SENSOR, dark_current=5000.0), np.array([0.02, 0.05, 0.1])
    seen = [raw(dataclasses.replace(lit, exposure_time=time), flat(0.0, 200, 200)[0]) for time in times]
    system = 3839.0 / lit.full_well
    assert [dark.mean() - 256 for dark in seen] == pytest.approx(system * 5000.0 * times, rel=0.01)
    assert [dark.var() - 1 / 12 for dark in seen] == pytest.approx(system**2 * 5000.0 * times, rel=0.04)


def test_what_a_full_well_cannot_hold_is_lost():
    at = [raw(dataclasses.replace(SENSOR, read_noise=3.0), flat(level)[0]) for level in (0.9, 1.5, 4.0)]
    assert at[0].mean() == pytest.approx(256 + 0.9 * 3839, rel=1e-3)
    assert np.all(at[1] == 4095)
    assert np.all(at[2] == 4095)


def test_response_and_dark_signal_are_the_units_and_stay():
    model = dataclasses.replace(SENSOR, prnu=0.02, dsnu=5.0, noise_scale=0.2)
    bright = [raw(model, flat(0.7)[0], number=number) for number in (0, 1)]
    dark = [raw(model, flat(0.0)[0], number=number) for number in (0, 1)]
    assert np.corrcoef(bright[0].ravel(), bright[1].ravel())[0, 1] > 0.9
    assert np.corrcoef(dark[0].ravel(), dark[1].ravel())[0, 1] > 0.9
    assert (bright[0] - dark[0]).std() / (bright[0] - dark[0]).mean() == pytest.approx(0.02, rel=0.05)
    assert dark[0].std() == pytest.approx(np.hypot(5.0 * 3839.0 / 8000.0, np.sqrt(1 / 12)), rel=0.03)


@pytest.mark.parametrize("mosaic", ["none", "rggb"])
def test_no_pixel_has_a_negative_sensitivity(mosaic):
    model = dataclasses.replace(SENSOR, prnu=2.0, mosaic=mosaic)
    normal = np.random.default_rng(0).normal
    response = unit_pattern(model, lambda _purpose, size: normal(size=size), 8, 8).response
    assert response.min() == 0.0
    assert response.max() > 1.0


def test_a_serial_number_is_a_unit_whatever_the_run_and_no_number_another_in_every_episode():
    model = dataclasses.replace(SENSOR, prnu=0.05, noise_scale=0.0)
    light = flat(0.5, 40, 40)[0]
    units = [raw(model, light, seeds=camera_seeds(episode)) for episode in (0, 1)]
    assert abs(np.corrcoef(units[0].ravel(), units[1].ravel())[0, 1]) < 0.1
    same = [
        raw(model, light, seeds=camera_seeds(e, run=r, sensor=s, serial="B7")) for e, r, s in [(0, 0, "a"), (5, 9, "b")]
    ]
    assert np.array_equal(same[0], same[1])


def test_row_noise_stands_in_the_spectrum_where_only_rows_differ():
    model = dataclasses.replace(SENSOR, read_noise=2.0, row_noise=4.0, mosaic="rggb")
    seen = (raw(model, flat(0.0, 256, 256)[0]) - 256.0) / (3839.0 / 8000.0)
    power = np.abs(np.fft.fft2(seen - seen.mean())) ** 2 / seen.size
    pixels, rows = power[:, 1:].mean(), power[1:, 0].mean()
    assert pixels == pytest.approx(2.0**2, rel=0.1)  # and the converter's, 1/12 of 0.48² less than that
    assert rows == pytest.approx(2.0**2 + 256 * 4.0**2, rel=0.3)
    again = raw(model, flat(0.0, 256, 256)[0], number=1).mean(axis=1)
    assert abs(np.corrcoef(seen.mean(axis=1), again)[0, 1]) < 0.25


def test_columns_differ_alike_in_every_capture():
    model = dataclasses.replace(SENSOR, read_noise=2.0, column_noise=3.0)
    means = [raw(model, flat(0.0, 200, 200)[0], number=number).mean(axis=(0, 2)) for number in (0, 1)]
    assert np.corrcoef(means[0], means[1])[0, 1] > 0.99
    assert means[0].std() == pytest.approx(3.0 * 3839.0 / 8000.0, rel=0.15)


def test_read_noise_before_and_after_the_gain_tell_apart_at_two_gains():
    seen = {}
    for gain in (1.0, 16.0):
        model = dataclasses.replace(SENSOR, gain=gain, read_noise=1.49, adc_noise=2.6)
        seen[gain] = np.sqrt(raw(model, flat(0.0, 200, 200)[0]).var() - 1 / 12) / (3839.0 / 8000.0 * gain)
    assert seen[1.0] == pytest.approx(3.0, rel=0.02)  # as measured of the IMX477
    assert seen[16.0] == pytest.approx(1.5, rel=0.02)


def test_a_camera_without_any_of_it_has_no_such_stage():
    names = [stage.name for stage in list_stages(SENSOR)]
    assert names == ["filters", "electrons", "noise", "converter", "white_balance", "tone"]


def test_the_converter_rounds_and_ends_at_black_and_white():
    model = CameraModel(bits=8, full_well=255.0)
    seen = digitize_electrons(np.array([-3.0, 10.4, 10.6, 254.4, 300.0]), model, 1.0)
    assert seen.dtype == np.uint16
    assert seen.tolist() == [0, 10, 11, 254, 255]
    assert digitize_electrons(np.array([10.4, 200.0]), model, 4.0).tolist() == [42, 255]
