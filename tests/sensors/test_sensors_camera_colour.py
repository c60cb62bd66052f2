"""From filters to colours to display values: balance, drift, demosaicing, matrices, curves, edges."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cameras import camera_seeds, flat, scene
from twinloop.core.imaging import LUMA
from twinloop.sensors.camera import CameraModel, develop
from twinloop.sensors.camera.colour import DriftProcess, apply_filters, demosaic, filter_colours
from twinloop.sensors.camera.tone import (
    apply_tone,
    compute_tone_steps,
    display_of_linear,
    linear_of_display,
    sharpen_image,
)

PI = (2.00971, -0.51461, -0.49511, -0.52109, 2.01003, -0.48894, -0.09527, -0.67318, 1.76845)
CURVE = (0.0, 0.0, 0.1, 0.35, 0.5, 0.8, 1.0, 1.0)
MOSAICS = ["rggb", "bggr", "grbg", "gbrg"]


def seen(model, light):
    return develop(light, model, time=np.zeros(len(light)), numbers=np.arange(len(light)))


def linear(image):
    return linear_of_display(image / 255.0, CameraModel())


@pytest.mark.parametrize("mosaic", ["none", *MOSAICS])
def test_a_sensor_that_knows_its_filters_gives_true_colours(mosaic):
    model = CameraModel(bits=14, mosaic=mosaic, red_response=0.4, blue_response=0.7, colour_matrix=PI, full_well=1e5)
    colours = np.array([[0.5, 0.5, 0.5], [0.6, 0.3, 0.2], [0.2, 0.5, 0.3], [0.15, 0.2, 0.6]], dtype=np.float32)
    for colour in colours:
        image = seen(model, np.broadcast_to(colour, (1, 16, 16, 3)))
        wanted = seen(CameraModel(), np.broadcast_to(colour, (1, 16, 16, 3)))
        assert np.abs(image.astype(int) - wanted).max() <= 1


def test_filters_let_white_through_alike():
    light = apply_filters(flat(0.7, 8, 8), CameraModel(colour_matrix=PI, mosaic="rggb"))
    assert light == pytest.approx(0.7)


def test_white_balance_scales_channels():
    model = CameraModel(white_balance_red=1.25, white_balance_blue=0.8)
    ratio = linear(seen(model, flat(0.4, 8, 8))).mean(axis=(0, 1, 2)) / 0.4
    assert ratio == pytest.approx([1.25, 1.0, 0.8], abs=0.01)


def test_highlights_stay_white_where_one_filter_is_full_before_the_others():
    model = CameraModel(bits=12, mosaic="rggb", red_response=0.4, blue_response=0.6)
    assert np.all(seen(model, flat(3.0, 8, 8)) == 255)


def test_white_balance_drifts_as_said():
    time = np.linspace(0.0, 4.0, 9)
    paths = np.array([DriftProcess.of(camera_seeds(e), "w", 2.0).at(time) for e in range(1500)])
    assert paths.var() == pytest.approx(1.0, abs=0.05)
    for lag in (1, 2, 4):
        assert np.mean(paths[:, 0] * paths[:, lag]) == pytest.approx(np.exp(-time[lag] / 2.0), abs=0.08)


def test_drift_is_a_function_of_time_whatever_was_asked_before():
    waves = DriftProcess.of(camera_seeds(), "w", 2.0)
    assert waves.at(np.array([3.0]))[0] == waves.at(np.array([0.0, 0.4, 3.0]))[2]


def test_no_saturation_is_grey_of_the_same_luma():
    light = np.broadcast_to(np.array([0.6, 0.3, 0.1], dtype=np.float32), (1, 8, 8, 3))
    image = seen(CameraModel(saturation=0.0), light)
    assert np.all(image == image[..., :1])
    assert linear(image).mean() == pytest.approx(light[0, 0, 0] @ LUMA, abs=0.005)


@pytest.mark.parametrize("mosaic", MOSAICS)
@pytest.mark.parametrize("malvar", [False, True])
def test_demosaicing_keeps_what_is_known_and_slopes_of_grey(mosaic, malvar):
    y, x = np.mgrid[:12, :14]
    plane = (0.1 + 0.02 * x + 0.03 * y)[None]
    colours = demosaic(plane, mosaic, malvar=malvar)
    for site, known in enumerate(filter_colours(mosaic)):
        here = (0, slice(site // 2, None, 2), slice(site % 2, None, 2))
        assert np.array_equal(colours[(*here, known)], plane[here])
    assert colours[0, 2:-2, 2:-2] == pytest.approx(plane[0, 2:-2, 2:-2, None].repeat(3, axis=-1))


def test_malvar_is_nearer_to_the_truth_than_bilinear_as_its_authors_found():
    """On average 5 dB over bilinear in their images, whose colours differ less between pixels than brightness."""
    y, x = np.mgrid[:96, :120]
    texture = 1.0 + 0.3 * np.sin(0.9 * x + 0.4 * y) + 0.2 * np.sin(0.5 * x - 0.8 * y)
    truth = texture[None, :, :, None] * np.array([0.5, 0.4, 0.3])
    plane = apply_filters(truth, CameraModel(mosaic="rggb"))
    error = [np.mean((demosaic(plane, "rggb", malvar=malvar) - truth)[:, 4:-4, 4:-4] ** 2) for malvar in (False, True)]
    assert 10.0 * np.log10(error[0] / error[1]) > 4.0


@settings(deadline=None, max_examples=60)
@given(
    gamma=st.floats(0.3, 3.0),
    contrast=st.floats(0.3, 3.0),
    brightness=st.floats(-0.3, 0.3),
    curve=st.sampled_from([(), CURVE]),
)
def test_the_tone_curve_has_an_inverse(gamma, contrast, brightness, curve):
    model = CameraModel(gamma=gamma, contrast=contrast, brightness=brightness, tone_curve=curve)
    display = np.linspace(0.02, 0.98, 40)
    reached = display[np.abs(display - 0.5 - brightness) < 0.49]
    there = linear_of_display(reached, model)
    inside = (there > 1e-9) & (there < 1.0 - 1e-9)
    assert display_of_linear(there[inside], model) == pytest.approx(reached[inside], abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(gamma=st.floats(0.3, 3.0), contrast=st.floats(0.3, 3.0), curve=st.sampled_from([(), CURVE]))
def test_eight_bits_are_the_curve_rounded(gamma, contrast, curve):
    model = CameraModel(gamma=gamma, contrast=contrast, tone_curve=curve)
    light = np.random.default_rng(0).uniform(-0.1, 1.2, 5000)
    exact = 255.0 * display_of_linear(light, model)
    assert np.abs(apply_tone(light, compute_tone_steps(model)) - exact).max() <= 0.5 + 1e-6


def test_contrast_keeps_black_white_and_the_middle():
    model = CameraModel(contrast=2.0)
    assert display_of_linear(linear_of_display([0.0, 0.5, 1.0], CameraModel()), model) == pytest.approx([0, 0.5, 1])
    assert display_of_linear(linear_of_display(0.6, CameraModel()), model) > 0.65


def test_sharpening_leaves_even_places_and_overshoots_at_edges():
    image = np.full((20, 20, 3), 100, dtype=np.uint8)
    image[:, 10:] = 160
    sharp = sharpen_image(image, 1.0).astype(int)
    assert np.all(sharp[:, :9] == 100)
    assert np.all(sharp[:, 11:] == 160)
    assert np.all(sharp[:, 9] == 100 - 15)  # a quarter of the step, which the mean over 1, 2, 1 takes away
    assert np.all(sharp[:, 10] == 160 + 15)


def test_colours_of_filters_do_not_change_the_light():
    light = scene()
    before = light.copy()
    seen(dataclasses.replace(CameraModel(), colour_matrix=PI, mosaic="rggb", bits=10), light)
    assert np.array_equal(light, before)
