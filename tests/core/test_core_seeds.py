"""Seeds: published reference values; a draw depends on its purpose only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from twinloop.core.seeds import MAX_EPISODES, generator, philox4x32, uniforms

# Known answers of Philox4x32-10 published with Random123 (kat_vectors).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_gives_the_published_answers(counter, key, answer):
    assert tuple(int(word) for word in philox4x32(np.array(counter, dtype=np.uint64), key)) == answer


@given(
    seed=st.integers(0, 2**40),
    episodes=st.lists(st.integers(0, 2**31), min_size=1, max_size=20, unique=True),
    size=st.integers(1, 9),
)
def test_a_row_is_the_same_alone_and_in_any_company(seed, episodes, size):
    together = uniforms(seed, "x", episodes, size=size)
    for row, episode in zip(together, episodes, strict=True):
        np.testing.assert_array_equal(row, uniforms(seed, "x", [episode], size=size)[0])
        np.testing.assert_array_equal(row, uniforms(seed, "x", [episode], size=size + 3)[0, :size])
    assert ((together > 0) & (together < 1)).all()


def test_every_part_of_the_seed_path_matters():
    base = {"run_seed": 1, "stream": "a", "episodes": [5], "size": 4}
    rows = [uniforms(**base)]
    rows += [uniforms(**{**base, **change}) for change in ({"run_seed": 2}, {"stream": "b"}, {"episodes": [6]})]
    rows += [uniforms(**base, attempt=1), uniforms(**base, step=1)]
    assert len({row.tobytes() for row in rows}) == len(rows)


def test_every_bit_of_an_episodes_number_matters():
    """No two of the 2**32 episodes have the same draws because a bit of their numbers is dropped."""
    numbers = [0, *(1 << bit for bit in range(32)), MAX_EPISODES - 1]
    for drawn in (
        uniforms(3, "a", numbers, size=2),
        uniforms(3, "a", [7] * len(numbers), attempt=numbers, size=2),
        uniforms(3, "a", [7] * len(numbers), step=numbers, size=2),
        np.array([generator(3, "a", number).random(2) for number in numbers]),
    ):
        assert len(np.unique(drawn, axis=0)) == len(numbers)


def test_numbers_are_uniform_and_streams_are_independent():
    a, b = (uniforms(7, stream, range(20_000))[:, 0] for stream in "ab")
    assert stats.kstest(a, "uniform").pvalue > 1e-3
    assert abs(stats.spearmanr(a, b).statistic) < 0.03
