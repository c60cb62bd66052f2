"""The vision gap: none between seeds, larger with a larger error, and the regions with the difference."""

import numpy as np
import pytest

from benchmarks.error_rates.gap.vision_scenes import camera_images
from twinloop.core.errors import InputError
from twinloop.dataset.media.images import images_from_arrays
from twinloop.encoders.images import open_encoder
from twinloop.gap.vision.develop import CameraResponse
from twinloop.gap.vision.image_summary import GRID, classify_regions, region_features, summarize_images
from twinloop.gap.vision.measure import measure_vision
from twinloop.sensors.camera import CameraModel
from twinloop.stats import mmd

BASE = {"noise_scale": 0.5, "full_well": 6000.0}
CLASSICAL = open_encoder("classical")


def _side(name, images, seed=0):
    return summarize_images(images_from_arrays(name, images), CLASSICAL, frames=3, seed=seed)


@pytest.fixture(scope="module")
def sim():
    return _side("sim", camera_images(6, **BASE))


def test_another_seed_has_no_gap_within_the_interval(sim):
    real = _side("real", camera_images(6, first=50, **BASE), seed=1)
    gap = measure_vision(real, sim, CLASSICAL, camera=CameraResponse(model=CameraModel(**BASE), blur=0.6), draws=199)
    assert gap.mmd.distance.low <= 0.0 <= gap.mmd.distance.high
    assert gap.kid.distance.low <= 0.0 <= gap.kid.distance.high
    assert gap.mmd.p_value > 0.05
    assert not any(row.p_value <= 0.05 for row in gap.differences)
    assert gap.remedies == ()
    assert np.isnan(gap.remaining)
    assert gap.regions_left is None
    names = [metric.name for metric in gap.headline()]
    assert names[:8] == ["mmd", "kid", "auc", "accuracy", "precision", "recall", "density", "coverage"]
    assert "difference/edge_width" in names


def test_the_gap_grows_with_the_planted_error(sim):
    rows = []
    for stops in (0.0, 0.3, 0.8):
        side = _side("real", camera_images(6, first=50, exposure_compensation=stops, **BASE), seed=1)
        clusters = {"real_clusters": side.embedding.clusters, "sim_clusters": sim.embedding.clusters}
        rows.append(float(mmd(side.embedding.values, sim.embedding.values, **clusters, draws=0).distance.estimate))
    assert np.all(np.diff(rows) > 0.0)


@pytest.mark.slow
def test_a_planted_change_is_first_and_closes_the_embeddings_gap(sim):
    real = _side("real", camera_images(6, first=50, white_balance_red=1.25, **BASE), seed=1)
    look = CameraResponse(model=CameraModel(**BASE), blur=0.6)
    gap = measure_vision(real, sim, CLASSICAL, camera=look, sensor="front", draws=999)
    assert gap.classifier.p_value <= 0.05
    first = gap.remedies[0]
    assert first.parameter == "sensor/front/white_balance_red"
    assert first.low <= 1.25 <= first.high
    assert first.share > 0.7
    assert {"red", "red to green"} <= set(first.closes)
    assert gap.remaining < 0.3
    assert np.median(gap.regions.auc) > 0.75 > 0.65 > np.median(gap.regions_left.auc)


def test_the_region_that_was_painted_tells():
    one, two = camera_images(8, **BASE), camera_images(8, first=50, **BASE)
    for images in two:
        images[:, :16, :16] = np.minimum(images[:, :16, :16] + 40, 255)
    rows = [np.concatenate([region_features(p) for p in side]).astype(float) for side in (one, two)]
    clusters = np.repeat(np.arange(8), 3)
    regions = classify_regions(*rows, clusters, clusters, draws=0)
    assert regions.auc.shape == GRID
    assert np.unravel_index(np.argmax(regions.separation), GRID) == (0, 0)
    assert regions.auc[0, 0] > 0.95
    assert np.median(regions.auc) < 0.75


def test_features_of_regions_are_those_of_their_pixels():
    image = np.zeros((1, 96, 128, 3), dtype=np.uint8)
    image[0, 16:32, 16:32] = 255
    lightness = region_features(image)[0, :, 0].reshape(GRID)
    assert lightness[1, 1] == pytest.approx(100.0, abs=0.01)
    assert np.delete(lightness.ravel(), GRID[1] + 1) == pytest.approx(0.0, abs=1e-3)


def test_black_images_are_left_out_and_a_black_camera_is_named():
    images = camera_images(5, frames=2, **BASE)
    images[2][:] = 0
    side = summarize_images(images_from_arrays("dark", images), CLASSICAL, frames=2)
    assert side.plain == 2
    assert len(side.names) == 4
    black = [np.full((2, 96, 128, 3), level, dtype=np.uint8) for level in (0, 0, 7, 255)]
    with pytest.raises(InputError, match=r"8 of the images .* a single colour, and 0 episodes remain.* lens cap"):
        summarize_images(images_from_arrays("black", black), CLASSICAL, frames=2)


def test_other_sizes_are_answered(sim):
    larger = summarize_images(
        images_from_arrays("large", camera_images(4, frames=1)), CLASSICAL, frames=1, size=(192, 256)
    )
    with pytest.raises(InputError, match=r"256x192 .* 128x96 .* --size 256x192\), or scale both with --size 128x96"):
        measure_vision(larger, sim, CLASSICAL)


def test_too_few_episodes_say_how_many():
    with pytest.raises(InputError, match=r"images of 3 episodes .* at least 4 on each side"):
        summarize_images(images_from_arrays("few", camera_images(3, frames=1)), CLASSICAL, frames=1)
