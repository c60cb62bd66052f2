"""Quantiles from two passes are those of all values sorted, and a block's statistics those of each episode alone."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from support.dataset_writer import SPEC, planted
from twinloop.core.errors import DatasetError
from twinloop.dataset.lerobot.statistics import (
    Moments,
    column_stats,
    sorted_quantiles,
    stream_quantiles,
    take_columns,
)
from twinloop.dataset.lerobot.tables import IndexedEpisode, episodes_table, frame_matrix, stat_columns

VALUES = st.one_of(
    arrays(np.float32, st.tuples(st.integers(1, 60), st.integers(1, 3)), elements=st.floats(-1e9, 1e9, width=32)),
    arrays(np.float32, st.tuples(st.integers(1, 60), st.just(1)), elements=st.sampled_from([-0.0, 0.0, 1e-40, -1.5])),
    arrays(np.int64, st.tuples(st.integers(1, 60), st.just(1)), elements=st.integers(0, 2**32 - 1)),
    arrays(np.bool_, st.tuples(st.integers(1, 60), st.just(1))),
)


@settings(max_examples=60, deadline=None)
@given(values=VALUES, cut=st.integers(1, 59))
def test_streamed_quantiles_are_those_of_sorted_values(values, cut):
    found = stream_quantiles(lambda: iter([{"x": values[:cut]}, {"x": values[cut:]}]), len(values))["x"]
    expected = sorted_quantiles(np.sort(values.astype(np.float64), axis=0))
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_memory_does_not_grow_with_the_rows():
    """The same bytes for ten times the rows, where holding the rows would take ten times as many."""

    def chunks(count):
        for seed in range(count):
            yield {"x": np.random.default_rng(seed).normal(size=(20_000, 4)).astype(np.float32)}

    peaks = []
    for count in (5, 50):
        tracemalloc.start()
        stream_quantiles(lambda count=count: chunks(count), 20_000 * count)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_numbers_that_have_no_key_are_refused():
    with pytest.raises(DatasetError, match=r"whole numbers from 0 to 2\^32"):
        stream_quantiles(lambda: iter([{"x": np.array([[2**32]])}]), 1)


def test_statistics_of_a_block_are_those_of_each_episode_alone():
    """Episodes of equal and of different lengths, in any company."""
    numbers = [3, 1, 3, 8, 1]
    placed = [
        IndexedEpisode(
            episode=planted(n), provenance=planted(n).provenance, episode_index=i, from_index=i, task_index=0
        )
        for i, n in enumerate(numbers)
    ]
    matrices = [frame_matrix(SPEC, item) for item in placed]
    table = episodes_table(SPEC, 0, placed, matrices, videos={}, params=tuple(placed[0].provenance.params))
    for i, matrix in enumerate(matrices):
        moments, quantiles = Moments.of(matrix), sorted_quantiles(np.sort(matrix, axis=0))
        for feature, where in stat_columns(SPEC).items():
            of_feature = {q: value[where] for q, value in quantiles.items()}
            for key, value in column_stats(take_columns(moments, where), of_feature).items():
                assert table[f"stats/{feature}/{key}"][i].as_py() == value, (i, feature, key)
