"""Lenses: OpenCV's formulas and their inverse, no empty corner, straight lines come back straight, colours part."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, example, given, reject, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.imaging import Intrinsics
from twinloop.sensors.camera.lens import Lens
from twinloop.sensors.camera.model import make_lens
from twinloop.sensors.camera.remap import Remap, lens_rays, rendered_view
from twinloop.twin.devices import device_presets

TARGET = Intrinsics.from_fovy(math.radians(55.0), width=64, height=48)
COEFFICIENTS = ("lens_k1", "lens_k2", "lens_p1", "lens_p2", "lens_k3", "lens_k4", "lens_k5", "lens_k6")
SMALL = st.floats(-0.4, 0.4)
TILT = st.floats(-0.01, 0.01)
PINHOLES = st.builds(
    Lens,
    lens_k1=SMALL,
    lens_k2=SMALL,
    lens_k3=SMALL,
    lens_k4=SMALL,
    lens_k5=SMALL,
    lens_k6=SMALL,
    lens_p1=TILT,
    lens_p2=TILT,
    chromatic_red=st.floats(0.99, 1.01),
    chromatic_blue=st.floats(0.99, 1.01),
)
BEND = st.floats(-0.05, 0.1)
FISHEYES = st.builds(Lens, model=st.just("fisheye"), lens_k1=BEND, lens_k2=BEND, lens_k3=BEND, lens_k4=BEND)


def vector(lens):
    return np.array([getattr(lens, name) for name in COEFFICIENTS])


def radial(lens):
    """The lens without its tangential distortion."""
    return replace(lens, lens_p1=0.0, lens_p2=0.0)


def directions(angle, count=200, seed=0):
    """Unit vectors up to ``angle`` off the axis."""
    rng = np.random.default_rng(seed)
    off, around = rng.uniform(0, angle, count), rng.uniform(0, 2 * math.pi, count)
    return np.stack([np.sin(off) * np.cos(around), np.sin(off) * np.sin(around), np.cos(off)], axis=-1)


class TestFormulas:
    @given(lens=PINHOLES)
    def test_the_pinhole_is_opencvs(self, lens):
        cv2 = pytest.importorskip("cv2")
        points = np.random.default_rng(1).uniform([-1, -1, 1], [1, 1, 3], (100, 3))
        pixels, _ = cv2.projectPoints(points, np.zeros(3), np.zeros(3), np.eye(3), vector(lens))
        np.testing.assert_allclose(lens.distort(points[:, :2] / points[:, 2:]), pixels[:, 0], atol=1e-12)

    @given(lens=FISHEYES)
    def test_the_fisheye_is_opencvs(self, lens):
        cv2 = pytest.importorskip("cv2")
        points = directions(1.5)
        coefficients = np.array([lens.lens_k1, lens.lens_k2, lens.lens_k3, lens.lens_k4])
        pixels, _ = cv2.fisheye.projectPoints(points[:, None], np.zeros(3), np.zeros(3), np.eye(3), coefficients)
        flat = lens.distort(points[:, :2] / points[:, 2:])
        np.testing.assert_allclose(flat, pixels[:, 0], atol=1e-9)
        seen = lens.project(points)
        known = np.isfinite(seen)
        np.testing.assert_allclose(seen[known], flat[known], atol=1e-9)

    @given(lens=PINHOLES)
    def test_a_pinhole_lens_is_undone(self, lens):
        reach = min(lens.limit * 0.95, 1.0)
        radius = np.linspace(0.0, reach, 200)
        slope = np.diff(radial(lens).distort(np.stack([radius, 0.0 * radius], axis=-1))[:, 0]) / radius[1]
        assume(reach > 0.1 and slope.min() > 0.1)  # if the radius barely rises, tangential distortion folds
        points = np.random.default_rng(2).uniform(-reach, reach, (200, 2)) / math.sqrt(2.0)
        np.testing.assert_allclose(lens.undistort(lens.distort(points)), points, atol=1e-8)

    @given(lens=FISHEYES, seed=st.integers(0, 2**31))
    def test_a_fisheye_is_undone_beyond_a_right_angle_too(self, lens, seed):
        rays = directions(min(lens.limit * 0.98, 3.0), seed=seed)
        np.testing.assert_allclose(lens.rays(lens.project(rays)), rays, atol=1e-7)

    def test_the_middle_is_the_axis(self):
        for lens in (Lens(lens_k1=-0.3), Lens(model="fisheye", lens_k1=0.01)):
            assert lens.rays([0.0, 0.0]).tolist() == [0.0, 0.0, 1.0]
            assert lens.project([0.0, 0.0, 2.0]).tolist() == [0.0, 0.0]


class TestLimit:
    @given(k1=st.floats(-2.0, -0.01))
    def test_of_one_coefficient_it_is_known(self, k1):
        """r (1 + k1 r²) rises until 1 + 3 k1 r² = 0, with the value 2/3 of r there."""
        lens = Lens(lens_k1=k1)
        assert lens.limit == pytest.approx(math.sqrt(-1.0 / (3.0 * k1)), rel=1e-12)
        assert lens.image_limit == pytest.approx(lens.limit * 2.0 / 3.0, rel=1e-12)

    @given(lens=PINHOLES)
    @example(lens=Lens(lens_k3=-5.960464477539063e-08, lens_k4=0.015625, lens_k6=-1.192092896e-07))  # small and bent
    @example(lens=Lens(lens_k5=0.25, lens_k6=1.0863930361499577e-28))  # nothing, and no reason for a wrong root
    def test_the_radius_rises_up_to_it_and_not_beyond(self, lens):
        end = min(lens.limit, 20.0)
        radius = np.linspace(0.0, end, 4001)[1:-1]
        landed = radial(lens).distort(np.stack([radius, np.zeros_like(radius)], axis=-1))[:, 0]
        assert (np.diff(landed) > -1e-12).all()
        pole = 1.0 + lens.limit**2 * (lens.lens_k4 + lens.limit**2 * (lens.lens_k5 + lens.limit**2 * lens.lens_k6))
        if lens.limit < 20.0 and pole > 1e-3:
            beyond = radial(lens).distort([lens.limit * (1.0 + 1e-4), 0.0])[0]
            assert beyond <= lens.image_limit + 1e-9

    def test_a_perfect_lens_has_none(self):
        assert Lens().limit == Lens().image_limit == math.inf
        assert Lens(model="fisheye").limit == math.pi
        assert Lens(lens_k4=-1.0).limit == pytest.approx(1.0)  # its denominator vanishes there

    def test_where_no_light_comes_from_is_refused(self):
        lens = Lens(lens_k1=-0.3)
        with pytest.raises(InputError, match=r"No light reaches 1 of 2 positions .* up to 0\.7071 .* folds at 0\.7027"):
            lens.undistort([[0.1, 0.2], [0.5, 0.5]])
        with pytest.raises(InputError, match="No light reaches"):
            Lens(model="fisheye", lens_k1=-0.2).rays([2.0, 0.0])
        with pytest.raises(InputError, match=r"1 of 1 positions are 90° or more .* with rays"):
            Lens(model="fisheye").undistort([1.6, 0.0])
        assert np.isnan(lens.project([[0.0, 0.0, -1.0], [2.0, 0.0, 1.0]])).all()

    def test_what_is_no_lens_is_refused(self):
        with pytest.raises(UnknownNameError, match=r"Unknown lens model 'fish'.*fisheye"):
            Lens(model="fish")  # pyright: ignore[reportArgumentType]
        with pytest.raises(InputError, match=r"lens_k1 to lens_k4, and lens_p1 is 0\.1"):
            Lens(model="fisheye", lens_p1=0.1)


class TestView:
    @settings(max_examples=50)
    @given(
        lens=st.one_of(PINHOLES, FISHEYES),
        shift=st.tuples(st.floats(-8, 8), st.floats(-8, 8)),
        stretch=st.floats(0.8, 1.2),
        density=st.floats(0.5, 2.0),
    )
    @pytest.mark.slow
    def test_no_pixel_of_any_colour_is_empty(self, lens, shift, stretch, density):
        target = Intrinsics(
            fx=TARGET.fx, fy=TARGET.fy * stretch, cx=32 + shift[0], cy=24 + shift[1], width=64, height=48
        )
        try:
            view = rendered_view(lens, target, density=density)
        except InputError:  # it folds, or sees too far off the axis
            reject()
        assert (view.cx, view.cy, view.fx) == (view.width / 2, view.height / 2, view.fy)
        remap = Remap.of(lens, view, target)  # refuses a place beyond the view
        ones = remap.apply(np.ones((1, view.height, view.width, 3), dtype=np.float32))
        assert ones.shape == (1, 48, 64, 3)
        assert (ones == 1.0).all()
        # No smaller one would do: with the border of two pixels gone, some pixel looks beyond it.
        small = Intrinsics(
            fx=view.fx, fy=view.fy, cx=view.cx - 2, cy=view.cy - 2, width=view.width - 4, height=view.height - 4
        )
        with pytest.raises(InputError, match="pixels are outside the rendered view"):
            Remap.of(lens, small, target)

    def test_a_perfect_lens_with_no_margin_needs_nothing_but_the_image(self):
        view = rendered_view(Lens(), TARGET, margin=0.0)
        assert view == TARGET
        remap = Remap.of(Lens(), view, TARGET)
        assert remap.is_identity
        image = np.random.default_rng(0).uniform(0, 1, (2, 48, 64, 3)).astype(np.float32)
        assert np.array_equal(remap.apply(image), image)
        assert not Remap.of(Lens(), rendered_view(Lens(), TARGET), TARGET).is_identity

    @pytest.mark.parametrize(
        "lens",
        [
            Lens(lens_k1=-0.3, lens_k2=0.1, lens_p1=0.002, chromatic_red=1.002),
            Lens(lens_k1=-0.187),  # folds at 0.89, and the corner is at 0.84
            Lens(model="fisheye", lens_k1=-0.02, lens_k2=0.01),
        ],
    )
    @pytest.mark.parametrize("side", [48, 240])
    def test_every_pixel_looks_where_the_lens_itself_says(self, lens, side):
        target = Intrinsics.from_fovy(math.radians(55.0), width=side * 4 // 3, height=side + 1)
        view = rendered_view(lens, target)
        remap = Remap.of(lens, view, target)
        for channel, size in enumerate(lens.magnifications):
            seen = (target.pixel_centres() - [target.cx, target.cy]) / target.fx
            places = view.project(lens.rays(seen / size)) - 0.5
            np.testing.assert_allclose(remap.column[channel], places[..., 0], atol=1e-3)
            np.testing.assert_allclose(remap.row[channel], places[..., 1], atol=1e-3)

    def test_what_is_too_wide_for_a_flat_image_has_rays(self):
        target = Intrinsics(fx=20.0, fy=20.0, cx=32.0, cy=24.0, width=64, height=48)
        lens = Lens(model="fisheye", lens_k1=-0.01)
        with pytest.raises(
            InputError, match=r"sees 117\.5° off the axis, but a flat image is rendered up to 80°.*warp"
        ):
            rendered_view(lens, target)
        rays = lens_rays(lens, target)
        assert rays.shape == (48, 64, 3)
        np.testing.assert_allclose(np.linalg.norm(rays, axis=-1), 1.0, atol=1e-12)
        assert rays[..., 2].min() < 0.0  # some look behind the camera
        pixels = lens.project(rays) * 20.0 + [32.0, 24.0]
        np.testing.assert_allclose(pixels, target.pixel_centres(), atol=1e-8)

    def test_of_a_perfect_lens_they_are_the_pinholes(self):
        rays = lens_rays(Lens(), TARGET)
        np.testing.assert_allclose(rays / rays[..., 2:], TARGET.unproject(TARGET.pixel_centres()), atol=1e-12)


def lens_corners():
    """Every camera preset with its lens, and the lenses at the corners of the default ranges."""
    for device in device_presets().values():
        if device.kind == "camera":
            values = {name: rated.value for name, rated in device.values.items()}
            drawn = [name for name, rated in device.values.items() if rated.range and name.startswith("lens_")]
            for ends in product(*(device.values[name].range for name in drawn)):
                yield device.name, make_lens({**values, **dict(zip(drawn, ends, strict=True))}, device.settings)


@pytest.mark.parametrize(("fovy", "width", "height"), [(42.0, 640, 480), (70.0, 640, 480), (70.0, 1280, 720)])
def test_presets_of_cameras_can_be_put_before_any_built_in_camera(fovy, width, height):
    target = Intrinsics.from_fovy(math.radians(fovy), width=width, height=height)
    for name, lens in lens_corners():
        view = rendered_view(lens, target)
        assert width - 16 <= view.width <= 1.7 * width, name


def drawn_line(view, offset, width=4.0):
    """A bright line y = ``offset`` (normalized), whose profile is a Gaussian of ``width`` pixels."""
    y = view.unproject(view.pixel_centres())[..., 1]
    profile = np.exp(-0.5 * ((y - offset) * view.fx / width) ** 2)
    return np.repeat(profile[None, ..., None], 3, axis=-1).astype(np.float32)


@pytest.mark.parametrize(
    "lens",
    [
        Lens(lens_k1=-0.35, lens_k2=0.12, lens_p1=0.002, lens_p2=-0.001),
        Lens(lens_k1=0.2, lens_k2=0.1),
        Lens(model="fisheye", lens_k1=-0.02, lens_k2=0.004),
    ],
)
def test_a_straight_line_is_bent_in_the_image_and_straight_again_undone(lens):
    target = Intrinsics.from_fovy(math.radians(60.0), width=320, height=240)
    view = rendered_view(lens, target, density=2.0)
    offset = 0.4
    light = Remap.of(lens, view, target).apply(drawn_line(view, offset))[0, ..., 0].astype(np.float64)
    (whole,) = np.nonzero((light[[0, -1]] < 1e-6).all(axis=0) & (light.sum(axis=0) > 1.0))
    rows = light[:, whole].T @ (np.arange(240) + 0.5) / light[:, whole].sum(axis=0)
    assert len(whole) > 150
    assert np.ptp(rows) > 2.0  # bent
    seen = (np.stack([whole + 0.5, rows], axis=-1) - [target.cx, target.cy]) / [target.fx, target.fy]
    straight = lens.undistort(seen)
    fit = np.polyfit(straight[:, 0], straight[:, 1], 1)
    residual = straight[:, 1] - np.polyval(fit, straight[:, 0])
    assert np.abs(residual).max() * target.fx < 0.05
    assert fit[1] == pytest.approx(offset, abs=0.05 / target.fx)


def test_colours_part_by_their_magnification():
    """Dots in a distorted image: the red ones are further out by that part of their radius, the blue ones nearer."""
    lens = Lens(lens_k1=-0.1, chromatic_red=1.01, chromatic_blue=0.985)
    target = Intrinsics.from_fovy(math.radians(55.0), width=320, height=240)
    view = rendered_view(lens, target)
    places = np.array([[0.4, 0.1], [-0.3, 0.3], [0.2, -0.35], [-0.5, -0.2]])
    pixel = view.pixel_centres()
    image = np.zeros((1, view.height, view.width, 3), dtype=np.float32)
    for place in places:
        square = ((pixel - (place * view.fx + [view.cx, view.cy])) ** 2).sum(axis=-1)
        image[0] += np.exp(-square / (2 * 2.5**2))[..., None].astype(np.float32)
    seen = Remap.of(lens, view, target).apply(image)[0].astype(np.float64)
    middle = np.array([target.cx, target.cy])
    for place in places:
        true = lens.distort(place) * target.fx + middle
        near = ((target.pixel_centres() - true) ** 2).sum(axis=-1) < 15.0**2
        for channel, size in enumerate((1.01, 1.0, 0.985)):
            weight = seen[..., channel] * near
            centre = (weight[..., None] * target.pixel_centres()).sum(axis=(0, 1)) / weight.sum()
            np.testing.assert_allclose(centre - middle, (true - middle) * size, atol=0.03)
