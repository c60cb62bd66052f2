"""The encoder's two directions undo each other, and quantizing errs by half a count at most."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from twinloop.sensors import STS3215_RESOLUTION, encoder_command, encoder_reading

POSITIONS = hnp.arrays(np.float64, (3, 4, 6), elements=st.floats(-3.2, 3.2))
OFFSETS = hnp.arrays(np.float64, (3, 6), elements=st.floats(-0.5, 0.5))
SCALES = hnp.arrays(np.float64, (3, 6), elements=st.floats(0.8, 1.2))


@given(command=POSITIONS, offset=OFFSETS, scale=SCALES)
def test_a_servo_at_its_target_reads_its_command(command, offset, scale) -> None:
    reached = encoder_command(command, offset, scale)
    np.testing.assert_allclose(encoder_reading(reached, offset, scale), command, atol=1e-12)
    assert reached.shape == command.shape


@given(position=POSITIONS, offset=OFFSETS, scale=SCALES)
def test_a_batch_is_its_worlds_one_by_one(position, offset, scale) -> None:
    batch = encoder_reading(position, offset, scale)
    for world in range(3):
        for step in range(4):
            alone = (position[world, step] - offset[world]) / scale[world]
            np.testing.assert_array_equal(batch[world, step], alone)


@given(position=POSITIONS, offset=OFFSETS, scale=SCALES)
def test_quantizing_errs_by_half_a_count_at_most_and_only_once(position, offset, scale) -> None:
    ideal = encoder_reading(position, offset, scale)
    counted = encoder_reading(position, offset, scale, resolution=STS3215_RESOLUTION)
    assert np.abs(counted - ideal).max() <= STS3215_RESOLUTION / 2 * (1 + 1e-9)
    counts = counted / STS3215_RESOLUTION
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-9)
    np.testing.assert_array_equal(encoder_reading(counted, 0.0, 1.0, resolution=STS3215_RESOLUTION), counted)


def test_the_sts3215_counts_4096_to_the_turn() -> None:
    turn = np.linspace(0, 2 * np.pi, 100_000, endpoint=False)
    readings = encoder_reading(turn, 0.0, 1.0, resolution=STS3215_RESOLUTION)
    assert len(np.unique(readings[readings < 2 * np.pi - STS3215_RESOLUTION / 2])) == 4096
    assert np.degrees(STS3215_RESOLUTION) == pytest.approx(0.088, abs=5e-4)


def test_a_number_serves_all_joints_and_a_row_all_worlds() -> None:
    position = np.arange(12.0).reshape(2, 2, 3)
    np.testing.assert_array_equal(encoder_reading(position, 1.0, 2.0), (position - 1) / 2)
    row = np.array([0.1, 0.2, 0.3])
    np.testing.assert_array_equal(encoder_reading(position, row, 1.0), position - row)
    np.testing.assert_array_equal(encoder_command(position[:, 0], np.tile(row, (2, 1)), 1.0), position[:, 0] + row)
