"""What glass and dirt do to light: vignetting, glare, ghosts, dust."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cameras import camera_seeds, flat, scene
from twinloop.sensors.camera.shading import CELL, compute_glare, dust_shadows, interpolate_cells, vignetting_factors


def through(light, **how):
    spread = compute_glare(light, **{"scattered": 0.0, "width": 0.3, "ghost": 0.0, **how})
    return spread.direct_share * light + spread.interpolate_pixels(*light.shape[1:3])


@settings(deadline=None, max_examples=30)
@given(angle=st.floats(0.1, 1.2), height=st.integers(2, 60), width=st.integers(2, 60))
def test_light_falls_off_with_the_fourth_power_of_the_cosine(angle, height, width):
    """A lens whose corner is at a given angle: each pixel's loss follows from its angle."""
    seen = vignetting_factors(height, width, 1.0 - np.cos(angle) ** 4)
    focal = 0.5 * np.hypot(width, height) / np.tan(angle)
    x, y = np.arange(width) + 0.5 - width / 2, np.arange(height) + 0.5 - height / 2
    own = np.arctan(np.hypot(x, y[:, None]) / focal)
    assert seen == pytest.approx(np.cos(own) ** 4, rel=1e-9)


def test_no_vignetting_leaves_light_as_it_is_and_corners_lose_what_they_are_said_to():
    assert np.all(vignetting_factors(48, 64, 0.0) == 1.0)
    assert vignetting_factors(4000, 4000, 0.4)[0, 0] == pytest.approx(0.6, abs=1e-3)


@settings(deadline=None, max_examples=20)
@given(scattered=st.floats(0, 0.5), ghost=st.floats(0, 0.3), height=st.integers(17, 90), width=st.integers(17, 90))
def test_an_even_image_stays_even(scattered, ghost, height, width):
    light = flat(0.4, height, width)
    assert through(light, scattered=scattered, ghost=ghost) == pytest.approx(light, rel=1e-5)


def test_a_black_spot_in_white_shows_the_glare():
    """As ISO 9358 measures it: the light in the middle of a small black spot in a white field."""
    light = flat(1.0, 160, 160)
    light[:, 76:84, 76:84] = 0.0
    assert through(light, scattered=0.03)[0, 80, 80] == pytest.approx([0.03] * 3, rel=0.02)


def test_glare_of_a_lamp_spreads_as_wide_as_it_is_said_to():
    light = flat(0.0, 320, 320)
    light[:, 152:168, 152:168] = 100.0
    seen = through(light, scattered=0.1, width=0.1)[0, :, :, 0]
    row = seen[160] - seen[160].min()
    row[150:170] = np.interp(np.arange(150, 170), [149, 170], row[[149, 170]])
    spread = np.sqrt(np.average((np.arange(320) - 159.5) ** 2, weights=row))
    assert spread == pytest.approx(0.1 * 320, rel=0.1)
    assert (seen - 0.9 * light[0, :, :, 0]).sum() == pytest.approx(0.1 * light[..., 0].sum(), rel=0.01)


def test_a_ghost_stands_opposite():
    light = flat(0.0, 160, 240)
    light[:, 16:32, 32:48] = 50.0
    ghost = through(light, ghost=0.01)[0, :, :, 0] - 0.99 * light[0, :, :, 0]
    y, x = np.unravel_index(ghost.argmax(), ghost.shape)
    assert abs(y + 0.5 - (160 - 24)) <= CELL / 2
    assert abs(x + 0.5 - (240 - 40)) <= CELL / 2
    assert ghost.max() == pytest.approx(0.5, rel=0.2)


@given(size=st.integers(1, 200))
def test_between_cells_is_linear_between_their_middles(size):
    low, high, part = interpolate_cells(size)
    cells = -(-size // CELL)
    middles = np.array([(CELL * i + min(CELL * (i + 1), size)) / 2 for i in range(cells)])
    place = middles[low] * (1 - part) + middles[high] * part
    assert place == pytest.approx(np.clip(np.arange(size) + 0.5, middles[0], middles[-1]))


def test_dust_takes_light_at_places_that_stay_and_as_many_as_expected():
    shades = [dust_shadows(96, 128, camera_seeds(e), count=2.5, radius=0.01, depth=0.5) for e in range(300)]
    assert all(shade.max() <= 1.0 and shade.min() > 0.0 for shade in shades)
    clean = np.mean([np.all(shade == 1.0) for shade in shades])
    assert clean == pytest.approx(np.exp(-2.5), abs=0.06)
    again = dust_shadows(96, 128, camera_seeds(7), count=2.5, radius=0.01, depth=0.5)
    assert np.array_equal(again, shades[7])


def test_dust_lies_at_the_same_places_of_images_of_other_sizes():
    small, large = (dust_shadows(64 * k, 96 * k, camera_seeds(1), count=6, radius=0.03, depth=0.5) for k in (1, 4))
    shrunk = large.reshape(64, 4, 96, 4).mean(axis=(1, 3))
    assert np.corrcoef(shrunk.ravel(), small.ravel())[0, 1] > 0.98


def test_specks_grow_with_their_radius():
    lost = [(1.0 - dust_shadows(200, 200, camera_seeds(1), count=8, radius=r, depth=0.2)).sum() for r in (0.02, 0.04)]
    assert lost[1] / lost[0] == pytest.approx(4.0, rel=0.3)


def test_light_is_not_written_to():
    light = scene()
    before = light.copy()
    through(light, scattered=0.1, ghost=0.1)
    assert np.array_equal(light, before)
