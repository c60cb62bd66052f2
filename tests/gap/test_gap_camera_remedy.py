"""Planted changes of a camera are named with their values, and correcting them closes the gap."""

import numpy as np
import pytest

from benchmarks.error_rates.gap.vision_scenes import camera_images
from twinloop.core.imaging import linear_to_srgb
from twinloop.core.params import SeedPath
from twinloop.gap.vision.camera_detail import fit_blur
from twinloop.gap.vision.camera_remedy import apply_remedies, compute_statistics, find_remedies, redevelop_episodes
from twinloop.gap.vision.develop import CameraResponse, noise_variance, redevelop_images
from twinloop.gap.vision.difference import compute_image_metrics
from twinloop.gap.vision.image_statistics import (
    compute_image_statistics,
    measure_edge_spread,
    measure_noise,
    sample_pixels,
)
from twinloop.sensors.camera import CameraModel, CameraSeeds, develop
from twinloop.sensors.camera.blur import blur_images
from twinloop.sensors.camera.tone import display_of_linear

BASE = {"noise_scale": 1.0, "read_noise": 2.0, "full_well": 6000.0}
LOOK = CameraResponse(model=CameraModel(**BASE), blur=0.6)
EPISODES = 8


@pytest.fixture(scope="module")
def sim():
    images = camera_images(EPISODES, **BASE)
    pixels = [sample_pixels(part, seed=i) for i, part in enumerate(images)]
    return images, pixels, compute_statistics(images)


def _found(sim, **planted):
    images, pixels, statistics = sim
    real = compute_statistics(camera_images(EPISODES, first=100, **{**BASE, **planted}), seed=50)
    return real, find_remedies(real, statistics, pixels, images, LOOK, sensor="front")


PLANTED = [
    ({"exposure_compensation": 0.4}, {"exposure_compensation": 0.08}),
    ({"white_balance_red": 1.2}, {"white_balance_red": 0.04}),
    ({"blur": 1.1}, {"blur": 0.08}),
    ({"read_noise": 20.0}, {"read_noise": 4.5}),
    ({"white_balance_red": 1.15, "white_balance_blue": 0.8}, {"white_balance_red": 0.04, "white_balance_blue": 0.04}),
    ({"gamma": 1.25}, {"gamma": 0.08}),
    ({"vignetting": 0.4}, {"vignetting": 0.12}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("planted", "tolerance"), PLANTED, ids=lambda value: "-".join(value))
def test_a_planted_change_is_named_with_its_value_and_closes_the_gap(sim, planted, tolerance):
    _named_and_closed(sim, planted, tolerance)


def test_two_planted_changes_are_told_apart_and_closed(sim):
    _named_and_closed(sim, {"white_balance_red": 1.2, "blur": 1.1}, {"white_balance_red": 0.05, "blur": 0.08})


def _named_and_closed(sim, planted, tolerance):
    real, found = _found(sim, **planted)
    values = {remedy.quantity: remedy for remedy in found}
    assert set(planted) <= set(values), f"{list(values)} for {planted}"
    for name, off in tolerance.items():
        assert abs(values[name].value - planted[name]) < off
        assert values[name].parameter == f"sensor/front/{name}"
    after = compute_statistics(redevelop_episodes(sim[0], LOOK, apply_remedies(LOOK, found)))
    target, before, now = (compute_image_metrics(s).mean for s in (real, sim[2], after))
    spread = compute_image_metrics(sim[2]).values.std(axis=0)
    large = np.abs(target - before) > 3 * spread
    assert large.any()
    assert (np.abs(target - now) < 0.35 * np.abs(target - before))[large].all()


@pytest.mark.slow
def test_another_seed_of_the_same_camera_needs_nothing(sim):
    _, found = _found(sim)
    assert found == ()


def test_undoing_and_doing_again_is_the_same_image():
    image = camera_images(1, gamma=1.2, white_balance_red=1.3, saturation=0.8)[0]
    look = CameraResponse(model=CameraModel(gamma=1.2, white_balance_red=1.3, saturation=0.8))
    again = redevelop_images(image, look, look)
    assert np.abs(again.astype(int) - image).max() <= 1


def test_developing_again_is_what_the_other_camera_delivers():
    old, new = camera_images(1, blur=0.0)[0], camera_images(1, blur=0.0, exposure_compensation=-0.5, gamma=1.2)[0]
    look = CameraResponse()
    made = redevelop_images(old, look, look.with_values(exposure_compensation=-0.5, gamma=1.2))
    assert np.abs(made.astype(int) - new).max() <= 2


def test_a_spot_can_be_taken_away_as_well():
    sharp, soft = camera_images(6, blur=0.5), camera_images(6, blur=1.0)
    real = np.array([measure_edge_spread(part) for part in sharp])
    found = fit_blur(real, soft, CameraResponse(blur=1.0))
    assert found is not None
    assert abs(found.value - 0.5) < 0.12


def test_the_width_of_an_edge_is_its_spot():
    light = np.full((1, 80, 80, 3), 0.1, dtype=np.float32)
    light[:, 20:60, 20:60] = 0.6
    images = [np.rint(255 * linear_to_srgb(blur_images(light, blur))).astype(np.uint8) for blur in (0.8, 1.2, 1.6)]
    squares = np.square([measure_edge_spread(image) for image in images])
    assert np.diff(squares) == pytest.approx(
        np.diff(np.square([0.8, 1.2, 1.6])), rel=0.2
    )  # samples fall next to the edge


def test_the_noise_of_a_flat_surface_is_the_sensors():
    light = np.full((1, 200, 200, 3), 0.25, dtype=np.float32)
    model = CameraModel(noise_scale=2.0, read_noise=10.0, full_well=3000.0)
    seeds = CameraSeeds(path=SeedPath.of(0, [1]), sensor="front")
    shown = develop(light, model, time=[0.0], numbers=[0], seeds=seeds)
    slope = (display_of_linear(0.2501, model) - display_of_linear(0.2499, model)) / 0.0002
    expected = noise_variance(np.array(0.25), model) * (255 * slope) ** 2 + 1 / 12
    found = measure_noise(shown)
    assert found[np.isfinite(found)] == pytest.approx(float(expected), rel=0.08)


def test_statistics_of_a_grey_card():
    card = np.full((2, 64, 64, 3), 100, dtype=np.uint8)
    card[:, :, 32:] = 150
    row = compute_image_statistics(card, sample_pixels(card))
    assert row.means[0] == pytest.approx(125.0)
    assert row.contrast[0] == pytest.approx(25.0)
    assert row.balance[0] == pytest.approx(1.0)
    assert row.chroma[0] == pytest.approx(0.0)
    assert np.nanmax(row.noise[0]) == 0.0
