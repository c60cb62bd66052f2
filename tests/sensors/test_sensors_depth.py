"""Depth cameras have the errors of their physics: the quadratic law, steps, shadows, bands, and losses by angle."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from twinloop.core.errors import InputError
from twinloop.core.imaging import Intrinsics
from twinloop.sensors.depth import (
    DepthFrames,
    StereoDepth,
    StereoSpec,
    StructuredLightDepth,
    StructuredLightSpec,
    TimeOfFlightDepth,
    TimeOfFlightSpec,
)
from twinloop.sensors.depth.frames import GRAZING_POWER, ReturnLosses, normal_field
from twinloop.sensors.depth.triangulation import compute_agreeing_share, fatten_edges, find_hidden
from twinloop.twin.devices import device_presets
from twinloop.twin.quantities.sensing import RANGING

PINHOLE = Intrinsics(fx=426.0, fy=426.0, cx=160.0, cy=60.0, width=320, height=120)
BASELINE = 0.05
FINE = 1e-5  # m, a unit that does not round the tested values


def wall(depth: float, count: int = 1) -> np.ndarray:
    return np.full((count, PINHOLE.height, PINHOLE.width), depth)


def facing(shape: tuple[int, ...], tilt: float = 0.0) -> np.ndarray:
    """Normals of a surface turned about the vertical by ``tilt`` rad from facing the camera."""
    return np.broadcast_to([np.sin(tilt), 0.0, -np.cos(tilt)], (*shape, 3))


def luck(*seeds: int) -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in seeds or (0,)]


def step_edge(near: float, far: float, column: int = 200) -> np.ndarray:
    """A near surface to the right of ``column``."""
    depth = wall(far)
    depth[..., column:] = near
    return depth


def seen(depth: np.ndarray, **more: np.ndarray) -> DepthFrames:
    return DepthFrames(depth=depth, intrinsics=PINHOLE, **more)


def test_an_ideal_stereo_camera_tells_the_truth_to_half_a_count() -> None:
    depth = np.random.default_rng(3).uniform(0.7, 0.71, wall(1.0).shape)
    reading = StereoDepth(spec=StereoSpec(baseline=BASELINE)).read(seen(depth), luck())
    known = reading.counts > 0
    assert known[..., 32:].all()
    assert np.abs(reading.metres - depth)[known].max() <= 0.0005 * (1 + 1e-9)
    assert reading.counts.dtype == np.uint16


def test_a_stereo_cameras_error_grows_with_the_square_of_distance() -> None:
    noise, distances = 0.08, np.array([0.4, 0.6, 0.9, 1.4, 2.0, 3.0])
    model = StereoDepth(spec=StereoSpec(baseline=BASELINE, unit=1e-4), disparity_noise=noise)
    readings = [model.read(seen(wall(distance)), luck(seed)) for seed, distance in enumerate(distances)]
    deviations = np.array([np.nanstd(reading.metres) for reading in readings])
    fit, covariance = np.polyfit(np.log(distances), np.log(deviations), 1, cov=True)
    assert fit[0] == pytest.approx(2.0, abs=max(3 * covariance[0, 0] ** 0.5, 0.01))
    np.testing.assert_allclose(deviations, distances**2 * noise / (PINHOLE.fx * BASELINE), rtol=0.03)


def test_stereo_errors_are_alike_over_the_correlation_length_and_no_weaker() -> None:
    field = normal_field(luck(*range(8)), (256, 256), correlation=4.0)
    assert field.std() == pytest.approx(1.0, abs=0.02)
    for lag in (2, 4, 6):
        alike = (field * np.roll(field, lag, axis=2)).mean()
        assert alike == pytest.approx(np.exp(-(lag**2) / 4.0**2), abs=0.02)
    white = normal_field(luck(1), (256, 256))[0]
    assert (white * np.roll(white, 1, axis=1)).mean() == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(("levels", "distance"), [(32, 1.5), (8, 1.5), (8, 3.0)])
def test_subpixel_steps_are_steps_of_depth(levels: int, distance: float) -> None:
    focal_baseline = PINHOLE.fx * BASELINE
    slope = np.linspace(distance * 0.96, distance * 1.04, PINHOLE.width)
    depth = np.broadcast_to(slope, wall(1.0).shape)
    model = StereoDepth(spec=StereoSpec(baseline=BASELINE, unit=1e-4, subpixel=levels))
    values = np.unique(model.read(seen(depth), luck()).metres[..., 60:])
    steps = np.diff(values)
    assert len(steps) >= 2
    expected = values[1:] * values[:-1] / (focal_baseline * levels)  # of 1/z in steps of 1 / (f B levels)
    np.testing.assert_allclose(steps, expected, atol=1.01e-4)


@pytest.mark.parametrize(("near", "far"), [(0.5, 1.0), (0.8, 2.0), (0.4, 3.0)])
def test_an_edge_casts_a_shadow_as_wide_as_the_baseline_says(near: float, far: float) -> None:
    reading = StereoDepth(spec=StereoSpec(baseline=BASELINE)).read(seen(step_edge(near, far)), luck())
    lost = (reading.counts == 0)[0]
    width = PINHOLE.fx * BASELINE * (1 / near - 1 / far)
    assert np.abs(lost[:, 100:].sum(axis=1) - width).max() <= 1.0
    assert lost[:, 199].all(), "the shadow touches the edge"
    assert not lost[:, 200:].any(), "the near surface is seen by both"


@pytest.mark.parametrize("distance", [0.4, 1.0, 3.0])
def test_no_other_view_sees_the_left_border(distance: float) -> None:
    reading = StereoDepth(spec=StereoSpec(baseline=BASELINE)).read(seen(wall(distance)), luck())
    lost = (reading.counts == 0).sum(axis=2)
    assert np.abs(lost - PINHOLE.fx * BASELINE / distance).max() <= 1.0


def test_something_thin_hides_no_more_than_its_own_width() -> None:
    depth = wall(3.0)
    depth[..., 200:203] = 0.5
    lost = find_hidden(PINHOLE.fx * BASELINE / depth)[0, 0, 60:]
    assert 2 <= lost.sum() <= 5


@pytest.mark.parametrize("searched", [30.0, 60.0])
def test_nothing_is_seen_nearer_than_the_search_range(searched: float) -> None:
    nearest = PINHOLE.fx * BASELINE / searched
    model = StereoDepth(spec=StereoSpec(baseline=BASELINE, max_disparity=searched, max_depth=2.0))
    for distance, known in ((nearest * 0.98, False), (nearest * 1.02, True), (1.99, True), (2.01, False)):
        reading = model.read(seen(wall(distance)), luck())
        assert (reading.counts[..., 100:] > 0).all() == known
        assert (reading.counts[..., 100:] > 0).any() == known


def test_near_things_grow_by_the_fattening_and_slopes_do_not() -> None:
    edge = PINHOLE.fx * BASELINE / step_edge(0.5, 2.0)
    grown = fatten_edges(edge, 2)
    assert (grown[0, :, 198:200] == edge[0, 0, 200]).all()
    np.testing.assert_array_equal(grown[..., :198], edge[..., :198])
    slope = np.broadcast_to(np.linspace(10.0, 20.0, PINHOLE.width), edge.shape)
    np.testing.assert_array_equal(fatten_edges(slope, 2), slope)


def test_edges_waver_sideways_and_by_as_much_as_is_said() -> None:
    model = StereoDepth(spec=StereoSpec(baseline=1e-6, unit=0.001), edge_noise=1.5)
    reading = model.read(seen(step_edge(0.5, 2.0)), luck())
    near = reading.counts[0] == 500
    inside, outside = near[:, 198], near[:, 196]  # centres are 2 and 4 px from the first near pixel
    assert inside.mean() == pytest.approx(1 - ndtr(1.5 / 1.5), abs=0.1)
    assert outside.mean() == pytest.approx(1 - ndtr(3.5 / 1.5), abs=0.05)
    assert not near[:, :188].any()


def test_losses_grow_with_the_angle_of_incidence_and_end_in_nothing() -> None:
    angles = np.radians([0, 20, 40, 55, 65, 75, 82])
    losses = ReturnLosses(grazing_limit=np.radians(80), grazing_dropout=0.6)
    model = TimeOfFlightDepth(
        spec=TimeOfFlightSpec(), grazing_limit=losses.grazing_limit, grazing_dropout=losses.grazing_dropout
    )
    narrow = dataclasses.replace(PINHOLE, fx=42600.0, fy=42600.0)  # so that all rays are equal
    lost = []
    for angle in angles:
        normals = facing(wall(1.0).shape, angle)
        frames = DepthFrames(depth=wall(1.0), intrinsics=narrow, normals=normals)
        lost.append((model.read(frames, luck(7)).counts == 0).mean())
    assert (np.diff(lost) > 0).all()
    assert lost[0] == pytest.approx(0.0, abs=1e-3)
    assert lost[-1] == 1.0
    share = (1 - np.cos(angles[:-1])) / (1 - np.cos(losses.grazing_limit))
    np.testing.assert_allclose(lost[:-1], 0.6 * share**GRAZING_POWER, atol=0.01)


def test_stereo_loses_what_either_view_sees_at_a_grazing_angle() -> None:
    frames = seen(wall(0.5), normals=facing(wall(0.5).shape, np.radians(70)))
    left, right = frames.cosine(), frames.cosine(BASELINE)
    assert left is not None
    assert right is not None
    aside = 0.5 / PINHOLE.fx  # the middle is between four pixels
    expected = (np.cos(np.radians(70)) - aside * np.sin(np.radians(70))) / np.sqrt(1 + 2 * aside**2)
    assert left[0, 60, 160] == pytest.approx(expected, abs=1e-12)
    assert (right != left).all()
    model = StereoDepth(spec=StereoSpec(baseline=BASELINE), grazing_limit=np.radians(75))
    lost = model.read(frames, luck()).counts[0, :, 60:] == 0
    np.testing.assert_array_equal(lost, np.minimum(left, right)[0, :, 60:] <= np.cos(np.radians(75)))


@given(brightness=st.floats(0.0, 1.0), limit=st.floats(0.01, 1.0), shine=st.floats(0.0, 1.0))
def test_what_is_dark_or_a_mirror_is_lost_by_its_share(brightness: float, limit: float, shine: float) -> None:
    shape = wall(1.0).shape
    frames = seen(wall(1.0), brightness=np.full(shape, brightness), shine=np.full(shape, shine))
    kept = ReturnLosses(dark_limit=limit, specular_dropout=0.8).survival(frames, None)
    np.testing.assert_allclose(kept, min(brightness / limit, 1.0) * (1 - 0.8 * shine))


def test_a_kinects_window_loses_edges_and_keeps_slopes() -> None:
    edge = step_edge(1.0, 2.0)
    frames, spec = seen(edge), StructuredLightSpec(baseline=0.075, window=9, inlier_share=1 / 1.2, unit=FINE * 10)
    reading = StructuredLightDepth(spec=spec).read(frames, luck())
    lost = (reading.counts == 0)[0, 60]
    assert lost[199]
    assert lost[201], "windows straddle an edge on its near side too"
    assert not lost[210:300].any()
    gentle, steep = (np.broadcast_to(np.arange(320) * rate, edge.shape) + 50.0 for rate in (0.09, 0.5))
    lit = np.ones(edge.shape, dtype=bool)
    assert compute_agreeing_share(gentle, lit, 9, 0.1)[..., 8:-8].min() == 1.0
    assert compute_agreeing_share(steep, lit, 9, 0.1).max() < 1 / 1.2


def test_a_kinects_depth_comes_in_the_steps_that_were_measured_of_it() -> None:
    # Khoshelham and Elberink (Sensors 2012): 2.85e-5 z² cm a step, which is 2.85 mm at 1 m.
    pinhole = dataclasses.replace(PINHOLE, fx=585.6, fy=585.6)
    depth = np.broadcast_to(np.linspace(0.99, 1.01, 320), wall(1.0).shape)
    model = StructuredLightDepth(spec=StructuredLightSpec(baseline=0.075, unit=FINE * 2, subpixel=8))
    values = np.unique(model.read(DepthFrames(depth=depth, intrinsics=pinhole), luck()).metres[..., 60:])
    assert np.diff(values).mean() == pytest.approx(2.85e-3, rel=0.02)


def test_time_of_flight_errs_linearly_with_distance() -> None:
    distances, narrow = np.array([0.3, 0.5, 1.0, 2.0, 3.5]), dataclasses.replace(PINHOLE, fx=42600.0, fy=42600.0)
    model = TimeOfFlightDepth(spec=TimeOfFlightSpec(unit=1e-4), range_noise=0.0005, range_noise_slope=0.001)
    deviations = []
    for seed, distance in enumerate(distances):
        reading = model.read(DepthFrames(depth=wall(distance), intrinsics=narrow), luck(seed))
        deviations.append(np.nanstd(reading.metres))
    np.testing.assert_allclose(deviations, 0.0005 + 0.001 * np.maximum(distances - 0.5, 0.0), rtol=0.03)


def test_a_bias_is_of_the_distance_along_the_ray_and_not_of_the_depth() -> None:
    frames = seen(wall(1.0))
    reading = TimeOfFlightDepth(spec=TimeOfFlightSpec(unit=FINE * 2), range_bias=0.02).read(frames, luck())
    np.testing.assert_allclose(reading.metres[0] - 1.0, 0.02 / frames.distance_ratio, atol=1.1e-5)


def test_the_wiggle_has_four_periods_to_the_unambiguous_range() -> None:
    distance = np.linspace(1.0, 1.0 + 299_792_458.0 / (2 * 1e8), 320)  # one unambiguous range
    narrow = dataclasses.replace(PINHOLE, fx=4e6, fy=4e6)
    frames = DepthFrames(depth=np.broadcast_to(distance, wall(1.0).shape), intrinsics=narrow)
    spec = TimeOfFlightSpec(unit=1e-4, modulation=1e8)
    error = TimeOfFlightDepth(spec=spec, wiggle_amplitude=0.01).read(frames, luck()).metres[0, 0] - distance
    assert np.abs(np.fft.rfft(error[:-1])).argmax() == 4
    assert error.max() == pytest.approx(0.01, abs=2e-4)


def test_flying_pixels_lie_between_the_surfaces_and_at_the_edge_only() -> None:
    frames = seen(step_edge(1.0, 1.5))
    sharp = TimeOfFlightDepth(spec=TimeOfFlightSpec(unit=1e-4)).read(frames, luck()).metres
    mixed = TimeOfFlightDepth(spec=TimeOfFlightSpec(unit=1e-4, footprint=0.5)).read(frames, luck()).metres
    flying = np.abs(mixed - sharp) > 0.01
    assert flying[..., 199].all()
    assert np.flatnonzero(flying.any(axis=(0, 1))).tolist() == [199, 200]
    assert ((mixed > 0.999) & (mixed < 1.501)).all()
    limited = TimeOfFlightDepth(spec=TimeOfFlightSpec(footprint=0.5, edge_limit=0.3)).read(frames, luck())
    assert np.flatnonzero((limited.counts == 0).any(axis=(0, 1))).tolist() == [199, 200]


def test_what_gives_back_too_little_light_is_lost() -> None:
    shape = wall(1.0).shape
    model = TimeOfFlightDepth(spec=TimeOfFlightSpec(), amplitude_limit=0.15 / 3.86**2)
    for distance, known in ((3.8, True), (3.95, False)):
        frames = seen(wall(distance), brightness=np.full(shape, 0.15), normals=facing(shape))
        assert (model.read(frames, luck()).counts[0, 60, 160] > 0) == known


MODELS = [
    StereoDepth(spec=StereoSpec(baseline=BASELINE, correlation=3.0, subpixel=32), disparity_noise=0.1, edge_noise=0.5),
    StructuredLightDepth(spec=StructuredLightSpec(baseline=0.075, window=5, inlier_share=0.8), disparity_noise=0.02),
    TimeOfFlightDepth(spec=TimeOfFlightSpec(footprint=0.5), range_noise=0.001, grazing_dropout=0.5),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_a_frame_is_the_same_alone_and_in_company(model) -> None:
    depth = np.concatenate([step_edge(0.6, 1.4), wall(1.1), step_edge(0.9, 2.0, 80)])
    together = model.read(seen(depth, normals=facing(depth.shape, 0.5)), luck(1, 2, 3)).counts
    for frame, seed in enumerate((1, 2, 3)):
        alone = model.read(seen(depth[[frame]], normals=facing((1, *depth.shape[1:]), 0.5)), luck(seed)).counts
        np.testing.assert_array_equal(alone[0], together[frame])


def test_frames_of_many_worlds_have_each_their_own_values() -> None:
    model = StereoDepth(spec=StereoSpec(baseline=BASELINE, unit=1e-4), disparity_noise=np.array([0.0, 0.05, 0.2]))
    deviations = np.nanstd(model.read(seen(wall(1.0, 3)), luck(1, 2, 3)).metres, axis=(1, 2))
    assert deviations[0] == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(deviations[1:], np.array([0.05, 0.2]) / (PINHOLE.fx * BASELINE), rtol=0.05)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_where_there_is_nothing_nothing_is_reported(model) -> None:
    assert not model.read(seen(wall(np.inf)), luck()).counts.any()


def test_the_models_fields_are_the_quantities() -> None:
    fields = {
        field.name
        for model in (StereoDepth, StructuredLightDepth, TimeOfFlightDepth)
        for field in dataclasses.fields(model)
    }
    assert fields - {"spec"} == {quantity.quantity for quantity in RANGING if quantity.device == "depth"}


def test_every_devices_settings_are_known_to_its_model() -> None:
    specs = {"stereo": StereoSpec, "structured_light": StructuredLightSpec, "time_of_flight": TimeOfFlightSpec}
    devices = [device for device in device_presets().values() if device.kind == "depth"]
    assert {"d435", "d435i", "azure_kinect", "kinect_v1"} <= {device.name for device in devices}
    for device in devices:
        spec = specs[str(device.settings["model"].value)]
        known = {field.name for field in dataclasses.fields(spec)}
        assert set(device.settings) - {"model", "width", "height"} <= known


def test_images_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"Depth of shape \(1, 4, 4\) for a camera of 320×120"):
        seen(np.ones((1, 4, 4)))
    with pytest.raises(InputError, match=r"normals of shape \(1, 4, 4\) do not fit depth"):
        seen(wall(1.0), normals=np.ones((1, 4, 4)))
