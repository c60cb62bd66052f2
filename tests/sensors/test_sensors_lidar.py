"""Lidars: beams have the right direction and time, and returns have the documented errors."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.sensors.lidar import Beams, Lidar, LidarSpec, NonRepetitivePattern, SpinningPattern
from twinloop.sensors.lidar.lidar import LEAST_COSINE, find_strongest_echo, split_beams
from twinloop.twin.devices import device_presets
from twinloop.twin.quantities.sensing import RANGING


def pattern_of(device: str):
    settings = {key: setting.value for key, setting in device_presets()[device].settings.items()}
    kind = {"spinning": SpinningPattern, "nonrepetitive": NonRepetitivePattern}[settings["pattern"]]
    return kind(**{field.name: settings[field.name] for field in dataclasses.fields(kind) if field.name in settings})


def ahead(count: int) -> Beams:
    zeros = np.zeros(count)
    return Beams(time=zeros, azimuth=zeros, elevation=zeros, line=zeros.astype(np.int64))


def returns(lidar: Lidar, distance, *, reflectivity=1.0, cosine=1.0, seed=0):
    distance = np.atleast_2d(np.asarray(distance, dtype=float).T).T
    alike = np.ones_like(distance)
    return lidar.receive(
        ahead(len(distance)), distance, reflectivity * alike, cosine * alike, np.random.default_rng(seed)
    )


def test_a_vlp16_fires_its_sixteen_rings_as_its_manual_says() -> None:
    beams = pattern_of("vlp16").beams(0.0, 0.1)
    assert len(beams) == pytest.approx(0.1 * 16 / 55.296e-6, abs=16)
    np.testing.assert_allclose(np.degrees(np.unique(beams.elevation)), np.arange(-15, 16, 2), atol=0.02)
    np.testing.assert_allclose(np.diff(beams.time[:16]), 2.304e-6, rtol=1e-9)
    assert beams.time[16] == pytest.approx(55.296e-6)
    np.testing.assert_array_equal(np.argsort(beams.elevation[:16]), np.argsort(beams.line[:16]))
    first = beams.line == 0
    turned = np.unwrap(beams.azimuth[first])
    assert (np.diff(turned) < 0).all(), "clockwise"
    assert turned[0] - turned[-1] == pytest.approx(2 * math.pi, abs=0.01)
    assert np.degrees(-np.diff(turned)).mean() == pytest.approx(0.2, abs=0.001)  # at 600 rpm


def test_an_rplidar_scans_one_plane_eight_thousand_times_a_second() -> None:
    beams = pattern_of("rplidar_a1").beams(3.0, 4.0)
    assert len(beams) == 8000
    assert not beams.elevation.any()
    assert not beams.directions[:, 2].any()


def test_a_mid360_covers_its_field_of_view_at_its_rate_and_never_the_same_way() -> None:
    pattern = pattern_of("mid360")
    beams = pattern.beams(0.0, 1.0)
    assert len(beams) == 200_000
    assert np.degrees([beams.elevation.min(), beams.elevation.max()]) == pytest.approx([-7, 52], abs=0.1)
    assert set(beams.line) == {0, 1, 2, 3}
    evenly = np.histogram(beams.azimuth, bins=36, range=(0, 2 * math.pi))[0]
    assert evenly.min() > 0.97 * evenly.max()
    for span in (0.1, 0.2, 0.5, 1.0):
        chance = 1 - math.exp(-200_000 * span / CELLS)  # what beams in random directions would see
        assert _coverage(pattern.beams(7.0, 7.0 + span)) > 0.95 * chance
    now, later = pattern.beams(0.0, 0.1), pattern.beams(0.1, 0.2)
    assert np.abs(now.elevation - later.elevation).mean() > 0.1, "a turn is not the one before"


CELLS = 118 * 720  # of half a degree each way


def _coverage(beams: Beams) -> float:
    """Share of the cells that a beam fell into."""
    rows = (2 * np.degrees(beams.elevation + np.radians(7))).astype(int).clip(0, 117)
    return len(np.unique(rows * 720 + (2 * np.degrees(beams.azimuth)).astype(int))) / CELLS


@given(cuts=st.lists(st.floats(0.0, 0.3), min_size=1, max_size=5), device=st.sampled_from(["vlp16", "mid360"]))
def test_beams_are_a_function_of_time_however_it_is_cut(cuts, device) -> None:
    pattern, edges = pattern_of(device), np.unique([0.0, *cuts, 0.3])
    whole = pattern.beams(0.0, 0.3)
    parts = [pattern.beams(begin, end) for begin, end in itertools.pairwise(edges)]
    for name in ("time", "azimuth", "elevation", "line"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))


@pytest.mark.parametrize("count", [1, 4, 5, 9])
def test_the_rays_of_a_beam_have_its_gaussians_moments(count) -> None:
    azimuth, elevation, divergence = np.array([0.3, -2.0]), np.array([0.2, 0.7]), 0.004
    toward, weights = split_beams(azimuth, elevation, divergence, count)
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(np.linalg.norm(toward, axis=2), 1.0)
    middle = toward[:, :1]
    np.testing.assert_allclose(np.einsum("k,nki->ni", weights, toward), middle[:, 0], atol=1e-5)
    off = toward - middle
    if count > 1:  # light is exp(-2 r² / w²) with w half the full width: each axis has the variance w² / 4
        moments = np.einsum("k,nki,nkj->nij", weights, off, off)
        spread = np.linalg.eigvalsh(moments)
        np.testing.assert_allclose(spread[:, 1:], (divergence / 2) ** 2 / 4, rtol=1e-3)
        np.testing.assert_allclose(spread[:, 0], 0.0, atol=1e-9)


@pytest.mark.parametrize("cosine", [1.0, 0.5, 0.2])
def test_range_noise_is_what_was_planted_and_grows_with_range_and_slant(cosine) -> None:
    lidar = Lidar(spec=LidarSpec(), range_noise=0.01, range_noise_slope=0.002, incidence_noise=0.5)
    for distance in (1.0, 5.0, 20.0):
        measured = returns(lidar, np.full(20_000, distance), cosine=cosine).distance
        expected = (0.01 + 0.002 * distance) * (1 + 0.5 * (1 / cosine - 1))
        assert measured.std() == pytest.approx(expected, rel=0.02)
        assert measured.mean() == pytest.approx(distance, abs=4 * expected / math.sqrt(20_000))
    assert cosine >= LEAST_COSINE


def test_scale_bias_steps_and_limits_of_range() -> None:
    spec = LidarSpec(min_range=0.5, max_range=10.0, range_step=0.002)
    lidar = Lidar(spec=spec, scale_error=0.01, range_bias=0.05)
    got = returns(lidar, [0.4, 1.0, 3.0, 9.84, 9.90, np.inf])
    np.testing.assert_array_equal(got.beam, [1, 2, 3])
    np.testing.assert_allclose(got.distance, np.array([1.0, 3.0, 9.84]) * 1.01 + 0.05, atol=0.001 + 1e-9)
    steps = got.distance / 0.002
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-9)
    np.testing.assert_allclose(got.points, got.distance[:, None] * [1.0, 0.0, 0.0])


@given(distance=st.floats(0.2, 50.0), reflectivity=st.floats(0.05, 1.0), cosine=st.floats(0.05, 1.0))
def test_strength_follows_reflectivity_cosine_and_the_inverse_square(distance, reflectivity, cosine) -> None:
    got = returns(Lidar(spec=LidarSpec()), [distance], reflectivity=reflectivity, cosine=cosine)
    assert got.strength[0] == pytest.approx(reflectivity * cosine / distance**2)
    just = Lidar(spec=LidarSpec(), drop_threshold=got.strength[0] * (1 - 1e-9))
    over = Lidar(spec=LidarSpec(), drop_threshold=got.strength[0] * (1 + 1e-9))
    assert len(returns(just, [distance], reflectivity=reflectivity, cosine=cosine)) == 1
    assert len(returns(over, [distance], reflectivity=reflectivity, cosine=cosine)) == 0


def test_the_share_that_is_lost_is_the_drop_rate() -> None:
    kept = len(returns(Lidar(spec=LidarSpec(), drop_rate=0.3), np.full(20_000, 2.0))) / 20_000
    assert kept == pytest.approx(0.7, abs=4 * math.sqrt(0.21 / 20_000))


@given(near=st.floats(0.5, 20.0), gap=st.floats(0.05, 3.0), covered=st.integers(1, 4), dull=st.floats(0.1, 1.0))
def test_mixed_pixels_lie_between_the_surfaces_where_pulses_overlap(near, gap, covered, dull) -> None:
    weights = split_beams(np.zeros(1), np.zeros(1), 0.003, 5)[1]
    distance = np.where(np.arange(5) < covered, near, near + gap)[None]
    bright = np.where(np.arange(5) < covered, dull, 1.0)[None]
    echo = find_strongest_echo(distance, bright, np.ones((1, 5)), weights, pulse_length=1.0)
    if distance.max() - near <= 1.0:
        assert near < echo.distance[0] < near + gap
        light = weights * bright[0] / distance[0] ** 2
        assert echo.distance[0] == pytest.approx((light * distance[0]).sum() / light.sum())
        assert echo.strength[0] == pytest.approx(light.sum())
    else:
        assert min(abs(echo.distance[0] - near), abs(echo.distance[0] - near - gap)) < 1e-9


def test_beams_go_astray_as_far_as_is_said_and_unknown_to_the_device() -> None:
    lidar = Lidar(spec=LidarSpec(), angle_noise=0.002)
    count = 20_000
    beams = Beams(
        time=np.zeros(count), azimuth=np.full(count, 1.0), elevation=np.full(count, 0.6), line=np.zeros(count, np.int64)
    )
    off = lidar.aim(beams, np.random.default_rng(0))[:, 0] - beams.directions
    up, side = np.array([-np.sin(0.6) * np.cos(1), -np.sin(0.6) * np.sin(1), np.cos(0.6)]), [-np.sin(1), np.cos(1), 0]
    assert (off @ up).std() == pytest.approx(0.002, rel=0.03)
    assert (off @ np.array(side)).std() == pytest.approx(0.002, rel=0.03)
    got = lidar.receive(
        beams, np.full((count, 1), 2.0), np.ones((count, 1)), np.ones((count, 1)), np.random.default_rng(0)
    )
    np.testing.assert_allclose(got.points, 2.0 * beams.directions)


def test_the_models_fields_are_the_quantities_and_the_devices_settings_are_known() -> None:
    fields = {field.name for field in dataclasses.fields(Lidar)} - {"spec"}
    assert fields == {quantity.quantity for quantity in RANGING if quantity.device == "lidar"}
    devices = [device for device in device_presets().values() if device.kind == "lidar"]
    assert {device.name for device in devices} >= {"mid360", "vlp16", "rplidar_a1"}
    for device in devices:
        own = {field.name for field in dataclasses.fields(type(pattern_of(device.name)))}
        receiver = {field.name for field in dataclasses.fields(LidarSpec)}
        assert set(device.settings) - {"pattern"} <= own | receiver


def test_patterns_that_fire_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="fires no beams"):
        SpinningPattern(scan_rate=10.0, cycle=0.0)
    with pytest.raises(InputError, match="16 lasers every 0.1 s do not fit cycles of 1 s"):
        SpinningPattern(scan_rate=10.0, cycle=1.0, elevations=(0.0,) * 16, firing_interval=0.1)
    with pytest.raises(InputError, match="no field of view"):
        NonRepetitivePattern(scan_rate=10.0, point_rate=1e3, lines=1, elevation_min=0.1, elevation_max=0.1)
    with pytest.raises(InputError, match="2 rays cannot represent a beam"):
        split_beams(np.zeros(1), np.zeros(1), 0.001, 2)
