"""Rolling shutters: closed-form weights, skew by readout and speed, blur by exposure and speed, nothing at rest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.imaging import Intrinsics
from twinloop.sensors.camera.lens import Lens
from twinloop.sensors.camera.remap import Remap, rendered_view
from twinloop.sensors.camera.shutter import Shutter, combine_subframes, row_weights, subframe_times

HEIGHT, WIDTH = 96, 128
TIMES = st.floats(1e-4, 0.1)


def edge(position):
    """An image ``(n, WIDTH)`` whose light begins at ``position`` ``(n,)`` in pixels, in exact coverage."""
    return np.clip(np.arange(1, WIDTH + 1) - np.asarray(position)[:, None], 0.0, 1.0)


def moving_edge(shutter, count, speed):
    """Looks at a vertical edge at column 40 at the image's time, moving at ``speed`` in pixels per second."""
    places = 40.0 + speed * (subframe_times(shutter, count) - shutter.middle)
    rows = np.repeat(edge(places)[:, None], HEIGHT, axis=1)
    return np.repeat(rows[..., None], 3, axis=-1).astype(np.float32)


def edge_places(image):
    """Position of the dark edge in each row, in pixels."""
    return WIDTH - image[..., 0].astype(np.float64).sum(axis=1)


class TestWeights:
    @given(exposure=TIMES, readout=TIMES, count=st.integers(2, 12), seed=st.integers(0, 2**31))
    def test_they_integrate_what_is_linear_between_looks(self, exposure, readout, count, seed):
        shutter = Shutter(exposure_time=exposure, readout=readout)
        value = np.random.default_rng(seed).uniform(0, 1, count)
        times = subframe_times(shutter, count)
        height = 5
        for r, weights in enumerate(row_weights(shutter, count, height)):
            begin = r * readout / height
            knots = np.unique(np.concatenate([[begin, begin + exposure], times]))
            knots = knots[(knots >= begin) & (knots <= begin + exposure)]
            integral = np.trapezoid(np.interp(knots, times, value), knots)
            assert weights @ value == pytest.approx(integral / exposure, rel=1e-6, abs=1e-9)

    @given(
        exposure=st.one_of(st.just(0.0), TIMES),
        readout=st.one_of(st.just(0.0), TIMES),
        count=st.integers(1, 20),
        height=st.integers(1, 50),
        kind=st.sampled_from(["rolling", "global"]),
    )
    def test_every_row_is_a_mean_of_looks(self, exposure, readout, count, height, kind):
        weights = row_weights(Shutter(exposure_time=exposure, readout=readout, kind=kind), count, height)
        assert weights.shape == (height, count)
        assert (weights >= -1e-12).all()
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12)

    @given(exposure=TIMES, readout=TIMES, count=st.integers(2, 20))
    def test_a_row_sees_what_happens_while_it_is_exposed(self, exposure, readout, count):
        """Their mean time is the middle of the row's exposure, since a time is linear in itself."""
        shutter = Shutter(exposure_time=exposure, readout=readout)
        height = 7
        means = row_weights(shutter, count, height) @ subframe_times(shutter, count)
        np.testing.assert_allclose(means, np.arange(height) * readout / height + exposure / 2, atol=1e-9)

    def test_looks_span_the_image_and_its_time_is_their_middle(self):
        shutter = Shutter(exposure_time=0.01, readout=0.03)
        np.testing.assert_allclose(subframe_times(shutter, 5), [0.0, 0.01, 0.02, 0.03, 0.04])
        assert subframe_times(shutter, 1).tolist() == [shutter.middle] == [0.02]
        assert Shutter(exposure_time=0.01, readout=0.03, kind="global").span == 0.01


class TestMotion:
    SPEED = 800.0  # px/s

    def test_a_moving_edge_skews_by_readout_times_speed(self):
        shutter = Shutter(exposure_time=0.002, readout=0.03)
        places = edge_places(combine_subframes(moving_edge(shutter, 65, self.SPEED), shutter))
        slope, at_middle = np.polyfit(np.arange(HEIGHT) - HEIGHT / 2, places, 1)
        assert slope * HEIGHT == pytest.approx(0.03 * self.SPEED, rel=1e-3)
        assert at_middle == pytest.approx(40.0, abs=0.01)  # the image's time is that of its middle row
        np.testing.assert_allclose(places, 40.0 + slope * (np.arange(HEIGHT) - HEIGHT / 2), atol=0.02)

    def test_a_moving_edge_blurs_by_exposure_times_speed(self):
        shutter = Shutter(exposure_time=0.025, readout=0.0)
        width = 0.025 * self.SPEED
        row = combine_subframes(moving_edge(shutter, 101, self.SPEED), shutter)[0, :, 0].astype(np.float64)
        spread = np.diff(row, prepend=0.0)
        columns = np.arange(WIDTH)
        variance = spread @ columns**2 - (spread @ columns) ** 2
        # An even spread over its width, sampled by pixels that are one wide: width² / 12 + 1 / 12.
        assert math.sqrt(12.0 * variance - 1.0) == pytest.approx(width, rel=2e-3)

    def test_a_global_shutter_does_not_skew(self):
        shutter = Shutter(exposure_time=0.01, readout=0.03, kind="global")
        image = combine_subframes(moving_edge(shutter, 17, self.SPEED), shutter)
        assert np.array_equal(image, np.broadcast_to(image[:1], image.shape))
        np.testing.assert_allclose(edge_places(image), 40.0, atol=1e-3)

    def test_a_turning_bar_is_bent_as_its_rows_see_it(self):
        """Of a bar through the middle that turns at ω, row r shows the angle that it has when row r is read."""
        shutter, omega = Shutter(exposure_time=1e-4, readout=0.02), 12.0
        count = 401
        rows = np.arange(HEIGHT) + 0.5 - HEIGHT / 2
        angles = omega * (subframe_times(shutter, count) - shutter.middle)
        looks = np.stack([edge(WIDTH / 2 + np.tan(angle) * rows) for angle in angles])
        places = edge_places(combine_subframes(np.repeat(looks[..., None], 3, axis=-1).astype(np.float32), shutter))
        read = (np.arange(HEIGHT) / HEIGHT) * 0.02 + 0.5e-4 - shutter.middle
        np.testing.assert_allclose(places, WIDTH / 2 + np.tan(omega * read) * rows, atol=0.02)

    def test_the_error_falls_with_the_square_of_the_number_of_looks(self):
        """Light that swings: of each row the mean of a sine is known."""
        shutter, omega = Shutter(exposure_time=0.01, readout=0.02), 150.0
        begin = np.arange(HEIGHT) * 0.02 / HEIGHT
        exact = (np.cos(omega * begin) - np.cos(omega * (begin + 0.01))) / (omega * 0.01)
        errors = []
        for count in (9, 17, 33, 65):
            swing = np.sin(omega * subframe_times(shutter, count))
            errors.append(np.abs(row_weights(shutter, count, HEIGHT) @ swing - exact).max())
        rates = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
        assert (rates > 1.8).all()

    @given(count=st.integers(1, 9), seed=st.integers(0, 2**31))
    def test_at_rest_the_image_is_what_every_look_shows_to_the_bit(self, count, seed):
        look = np.random.default_rng(seed).uniform(0, 4, (12, 8, 3)).astype(np.float32)
        looks = np.repeat(look[None], count, axis=0)
        before = looks.copy()
        for shutter in (Shutter(exposure_time=0.01, readout=0.03), Shutter(), Shutter(exposure_time=0.02)):
            assert np.array_equal(combine_subframes(looks, shutter), look)
        assert np.array_equal(looks, before)

    @given(seed=st.integers(0, 2**31), count=st.integers(1, 12))
    def test_a_image_is_its_weighted_looks(self, seed, count):
        looks = np.random.default_rng(seed).uniform(0, 4, (count, 24, 5, 3)).astype(np.float32)
        shutter = Shutter(exposure_time=0.004, readout=0.03)
        plain = np.einsum("hk,khwc->hwc", row_weights(shutter, count, 24), looks.astype(np.float64))
        np.testing.assert_allclose(combine_subframes(looks, shutter), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("red", [1.0, 1.01])
@pytest.mark.parametrize("kind", ["rolling", "global"])
def test_through_a_lens_it_is_the_image_of_looks_through_the_lens(red, kind):
    target = Intrinsics.from_fovy(1.0, width=32, height=24)
    lens = Lens(lens_k1=-0.1, chromatic_red=red)
    view = rendered_view(lens, target)
    remap = Remap.of(lens, view, target)
    looks = np.random.default_rng(0).uniform(0, 1, (9, view.height, view.width, 3)).astype(np.float32)
    for exposure in (0.0, 0.004, 0.05):
        shutter = Shutter(exposure_time=exposure, readout=0.03, kind=kind)
        assert np.array_equal(
            combine_subframes(looks, shutter, lens=remap), combine_subframes(remap.apply(looks), shutter)
        )


def test_what_is_no_shutter_is_refused():
    with pytest.raises(UnknownNameError, match=r"Unknown shutter 'rollin'.*rolling"):
        Shutter(kind="rollin")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"readout of -0\.1 s is impossible"):
        Shutter(readout=-0.1)
    with pytest.raises(InputError, match="An image of 0 subframes is impossible"):
        subframe_times(Shutter(), 0)
