"""Statistics that merge block by block equal those of everything at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from twinloop.dataset.lerobot.statistics import (
    QUANTILES,
    Moments,
    image_stats,
    merge_moments,
    pixel_histogram,
    sample_indices,
    sorted_quantiles,
)

NUMBERS = st.floats(-1e6, 1e6, width=32)
TABLES = st.integers(1, 40).flatmap(lambda rows: arrays(np.float64, (rows, 3), elements=NUMBERS))


@given(st.lists(TABLES, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_merged_moments_equal_those_of_all_rows(parts):
    whole, merged = np.concatenate(parts), merge_moments([Moments.of(part) for part in parts])
    scale = np.abs(whole).max() + 1e-300
    assert merged.count == len(whole)
    np.testing.assert_array_equal(merged.low, whole.min(axis=0))
    np.testing.assert_array_equal(merged.high, whole.max(axis=0))
    np.testing.assert_allclose(merged.mean, whole.mean(axis=0), rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(merged.std, whole.std(axis=0), rtol=0, atol=1e-7 * scale)


def test_moments_far_from_zero_do_not_cancel():
    values = 1e8 + np.random.default_rng(0).normal(size=(3000, 1))
    merged = merge_moments([Moments.of(part) for part in np.split(values, 30)])
    np.testing.assert_allclose(merged.std, values.std(axis=0), rtol=1e-6)


@given(TABLES)
@settings(max_examples=60, deadline=None)
def test_moments_survive_their_file_form_exactly(values):
    before = Moments.of(values)
    after = Moments.from_json(before.to_json())
    for name in ("low", "high", "mean", "m2"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))


@given(TABLES)
@settings(max_examples=60, deadline=None)
def test_quantiles_are_numpys(values):
    found = sorted_quantiles(np.sort(values, axis=0))
    for name, q in QUANTILES.items():
        np.testing.assert_allclose(found[name], np.quantile(values, q, axis=0), rtol=1e-9, atol=1e-6)


def test_image_statistics_from_a_histogram_equal_those_of_the_pixels():
    frames = np.random.default_rng(1).integers(10, 240, (4, 20, 30, 3), dtype=np.uint8)
    frames[..., 2] //= 3
    stats = image_stats(pixel_histogram(frames), len(frames))
    scaled = frames.reshape(-1, 3) / 255.0
    expected = {"min": scaled.min(0), "max": scaled.max(0), "mean": scaled.mean(0), "std": scaled.std(0)}
    for name, value in expected.items():
        assert np.shape(stats[name]) == (3, 1, 1)
        np.testing.assert_allclose(np.ravel(stats[name]), value, atol=1e-12, err_msg=name)
    for name, q in QUANTILES.items():
        np.testing.assert_allclose(np.ravel(stats[name]), np.quantile(scaled, q, axis=0), atol=1.01 / 255)
    assert stats["count"] == [4]


@pytest.mark.parametrize("length", [1, 2, 5, 12, 13, 400])
def test_sampled_frames_span_the_episode(length):
    chosen = sample_indices(length)
    assert chosen[0] == 0
    assert chosen[-1] == length - 1
    assert len(chosen) == min(12, length)
