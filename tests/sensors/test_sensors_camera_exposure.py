"""Exposure by hand and by itself: levels, limits, lag, lamps."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cameras import flat, scene
from twinloop.sensors.camera import CameraModel, CameraPipeline, develop
from twinloop.sensors.camera.exposure import (
    full_scale_exposure,
    manual_exposure,
    settle_exposure,
    split_exposure,
    update_exposure,
)
from twinloop.sensors.camera.pipeline import compute_exposure_factor
from twinloop.sensors.camera.tone import linear_of_display

LIT = CameraModel(exposure_time=0.02, electron_rate=1e5, full_well=4e3)
AUTO = dataclasses.replace(LIT, exposure="auto", exposure_target=0.2)


def level(image):
    """Mean linear level of a delivered image."""
    return float(linear_of_display(image / 255.0, CameraModel()).mean())


def levels(model, lights, spacing=0.1):
    images = develop(np.concatenate(lights), model, time=spacing * np.arange(len(lights)), numbers=range(len(lights)))
    return np.array([level(image) for image in images])


@settings(deadline=None, max_examples=30)
@given(gain=st.floats(1.0, 8.0), stops=st.floats(-3.0, 3.0), time=st.floats(1e-3, 0.05), light=st.floats(1e-3, 0.05))
def test_by_hand_the_level_is_light_times_time_times_gain(gain, stops, time, light):
    model = dataclasses.replace(LIT, gain=gain, exposure_compensation=stops, exposure_time=time)
    exact = min(light * time * gain * 2.0**stops * model.electron_rate / model.full_well, 1.0)
    assert levels(model, [flat(light, 4, 4)])[0] == pytest.approx(exact, abs=0.003 + 0.01 * exact)


def test_a_compensation_below_what_gain_can_give_shortens_the_exposure():
    less = dataclasses.replace(LIT, exposure_compensation=-1.0)
    assert manual_exposure(less) == pytest.approx((0.01, 1.0))
    assert manual_exposure(dataclasses.replace(less, gain=4.0)) == pytest.approx((0.02, 2.0))


def test_an_instant_fills_the_wells_with_white():
    assert manual_exposure(CameraModel()) == (full_scale_exposure(CameraModel()), 1.0)
    assert develop(flat(1.0, 4, 4), CameraModel(), time=[0.0], numbers=[0]).min() == 255


def test_automatic_exposure_is_at_rest_before_the_first_image():
    for light in (0.05, 0.3, 0.9):
        assert levels(AUTO, [flat(light, 16, 16)] * 3) == pytest.approx(0.2, abs=0.004)


def test_no_compensation_seeks_a_level_that_is_nearly_saturated():
    luma = np.full((8, 8), 0.3)
    for stops in (2.5, 6.0):
        assert compute_exposure_factor(luma, dataclasses.replace(AUTO, exposure_compensation=stops)) == pytest.approx(
            0.9 / 0.3
        )


def test_automatic_exposure_settles_with_its_time_constant():
    model, before, after = dataclasses.replace(AUTO, exposure_lag=0.3), 0.1, 0.25
    seen = levels(model, [flat(before, 16, 16)] * 2 + [flat(after, 16, 16)] * 8)
    excess = np.log(seen[2:] / 0.2)
    assert excess == pytest.approx(np.log(after / before) * np.exp(-np.arange(8) * 0.1 / 0.3), abs=0.02)


def test_irregular_captures_settle_by_time_not_by_number():
    model, time = dataclasses.replace(AUTO, exposure_lag=0.3), np.array([0.0, 0.05, 0.35, 0.4, 1.0])
    light = np.concatenate([flat(0.1, 16, 16), *[flat(0.25, 16, 16)] * 4])
    seen = [level(image) for image in develop(light, model, time=time, numbers=range(5))]
    excess = np.log(2.5) * np.exp(-(time[1:] - time[1]) / 0.3)
    assert np.log(np.array(seen[1:]) / 0.2) == pytest.approx(excess, abs=0.02)


def test_without_lag_the_next_image_is_right():
    seen = levels(AUTO, [flat(0.1, 16, 16), flat(0.3, 16, 16), flat(0.3, 16, 16)])
    assert seen == pytest.approx([0.2, 0.6, 0.2], abs=0.01)


def test_a_bright_image_of_which_little_is_seen_takes_several_to_come_down():
    seen = levels(AUTO, [flat(0.01, 16, 16)] + [flat(1.0, 16, 16)] * 5)
    assert seen[1] == 1.0  # saturated: the camera measures at most five times too bright
    assert seen[2] == 1.0
    assert seen[-1] == pytest.approx(0.2, abs=0.004)


def test_limits_are_kept():
    strongest = dataclasses.replace(AUTO, gain_max=8.0)
    assert levels(strongest, [flat(0.01, 16, 16)])[0] == pytest.approx(0.01 * 0.02 * 8.0 * 25.0, abs=0.001)
    shortest = dataclasses.replace(AUTO, exposure_time_min=1e-3)
    assert levels(shortest, [flat(20.0, 16, 16)])[0] == pytest.approx(20.0 * 0.001 * 25.0, abs=0.004)


def test_highlights_decide_where_the_mean_would_leave_them_dark():
    luma = np.full((50, 50), 0.05)
    luma[:, 0] = 0.1  # two percent
    model = dataclasses.replace(AUTO, exposure_highlight=0.8)
    assert compute_exposure_factor(luma, dataclasses.replace(model, exposure_highlight=0.0)) == pytest.approx(
        0.2 / luma.mean()
    )
    assert compute_exposure_factor(luma, model) == pytest.approx(8.0)
    luma[:, 0] = 1.0
    assert compute_exposure_factor(luma, model) == pytest.approx(0.2 / luma.mean())


@pytest.mark.parametrize(("mains", "step"), [(50.0, 0.01), (60.0, 1 / 120)])
def test_exposures_are_whole_half_periods_of_the_mains_where_they_are_as_long(mains, step):
    model = dataclasses.replace(AUTO, mains_hz=mains, exposure_time=0.033)
    time, gain = split_exposure(model, 0.029)
    assert time / step == pytest.approx(round(time / step))
    assert time * gain == pytest.approx(0.029)
    assert split_exposure(model, 0.004) == (0.004, 1.0)


@settings(deadline=None, max_examples=50)
@given(factor=st.floats(0.1, 10.0), passed=st.floats(0.0, 2.0))
def test_following_is_a_first_order_filter_of_the_logarithm(factor, passed):
    model = dataclasses.replace(AUTO, exposure_lag=0.4, gain_max=256.0)
    once = update_exposure(model, 0.01, factor, passed)
    half = update_exposure(model, 0.01, factor, passed / 2)
    left = factor / (half / 0.01)  # the remaining change after half the time
    assert update_exposure(model, half, left, passed / 2) == pytest.approx(once, rel=1e-9)


def test_rest_is_where_nothing_more_is_wanted():
    assert settle_exposure(AUTO, lambda product: 0.0123 / product) == pytest.approx(0.0123, rel=1e-6)


def test_it_is_told_beforehand_how_long_the_next_image_gathers_light():
    model, camera = AUTO, CameraPipeline(dataclasses.replace(AUTO, exposure_lag=0.1))
    assert camera.next_exposure_time(0.0) is None
    lights = [0.5, 0.8, 0.8, 0.6]
    for number, light in enumerate(lights):
        told = camera.next_exposure_time(0.05 * number)
        image = camera.develop(flat(light, 16, 16), time=[0.05 * number], numbers=[number])
        if told is not None:  # at a gain of 1 the level gives the exposure time
            assert level(image) / light * full_scale_exposure(model) == pytest.approx(told, rel=0.02)
    assert CameraPipeline(LIT).next_exposure_time(0.0) == 0.02
    assert CameraPipeline(CameraModel()).next_exposure_time(0.0) == 0.0


@pytest.mark.parametrize("flashes", range(1, 30))
def test_an_exposure_of_whole_flashes_of_lamps_is_not_cut(flashes):
    model = dataclasses.replace(AUTO, mains_hz=50.0, exposure_time=0.3)
    assert split_exposure(model, flashes / 100.0) == pytest.approx((flashes / 100.0, 1.0))


def test_a_camera_goes_on_where_its_last_images_ended():
    light = np.concatenate([scene(count=3), 3.0 * scene(count=3)])
    model = dataclasses.replace(AUTO, exposure_lag=0.2)
    time, numbers = 0.05 * np.arange(6), np.arange(6)
    whole = develop(light, model, time=time, numbers=numbers)
    camera = CameraPipeline(model)
    parts = [camera.develop(light[i : i + 2], time=time[i : i + 2], numbers=numbers[i : i + 2]) for i in (0, 2, 4)]
    assert np.array_equal(np.concatenate(parts), whole)
