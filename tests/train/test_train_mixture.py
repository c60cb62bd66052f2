"""The mixture: exact shares for all weights, every frame before any repeats, nearly nominal worlds first."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.training import frames
from twinloop.core.errors import InputError
from twinloop.train.config import CurriculumConfig
from twinloop.train.mixture import BatchShares, FrameMixture, compute_shares, randomization_strengths

WEIGHTS = st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=6)


@settings(max_examples=40)
@given(WEIGHTS, st.integers(1, 40), st.integers(1, 40))
def test_after_any_batch_a_source_has_had_its_share_to_within_one_sample(weights, batch, batches):
    share = np.array(weights) / np.sum(weights)
    made = BatchShares(share, batch)
    counts = np.array([made.next() for _ in range(batches)])
    assert (counts.sum(axis=1) == batch).all()
    assert (counts >= np.floor(share * batch + 1e-9)).all()
    had = np.cumsum(counts, axis=0)
    due = np.arange(1, batches + 1)[:, None] * batch * share
    assert np.abs(had - due).max() < 1
    first, last = batches // 3, batches
    window = had[last - 1] - (had[first - 1] if first else 0)
    assert np.abs(window - (last - first) * batch * share).max() < 2


def by_frames(data, sim_fraction):
    """Shares of sources of which every frame may be drawn."""
    lengths = data.last - data.first + 1
    return compute_shares(data.sources, sim_fraction, np.bincount(data.source_of, weights=lengths))


def test_shares_that_divide_the_batch_are_the_same_in_every_batch():
    made = BatchShares([0.75, 0.25], 32)
    assert {tuple(made.next().tolist()) for _ in range(50)} == {(24, 8)}


def test_sources_without_weights_count_by_their_frames_and_sim_fraction_divides_within_its_kind():
    data = frames([[10, 10], [5], [15]], real=[True, False, False])
    np.testing.assert_allclose(by_frames(data, None), [0.5, 0.125, 0.375])
    np.testing.assert_allclose(by_frames(data, 0.9), [0.1, 0.225, 0.675])
    weighted = frames([[10], [5], [15]], real=[True, False, False], weights=[1, 3, 1])
    np.testing.assert_allclose(by_frames(weighted, None), [0.2, 0.6, 0.2])
    np.testing.assert_allclose(by_frames(weighted, 0.5), [0.5, 0.375, 0.125])


def test_a_fraction_for_nobody_and_weights_for_some_are_refused():
    with pytest.raises(
        InputError, match=r"sim_fraction 0.5 assigns 50% to real sources, but there are none: s0\. .*kind: sim"
    ):
        by_frames(frames([[4]]), 0.5)
    with pytest.raises(
        InputError, match=r"s1 has no weight, but other sources do\. Give a weight to every source or to none"
    ):
        by_frames(frames([[4], [4]], weights=[1.0, None]), None)


def test_every_frame_of_a_source_comes_before_any_comes_again():
    data = frames([[7, 5], [9]])
    mixture = FrameMixture(data, [2 / 3, 1 / 3], 6, seed=3)
    drawn = np.concatenate([mixture.next() for _ in range(12)])  # 48 of source 0, 24 of source 1
    for low, high, times in ((0, 12, 4), (12, 21, 2)):
        mine = drawn[(drawn >= low) & (drawn < high)]
        counts = np.bincount(mine - low, minlength=high - low)
        assert set(mine[: (high - low)].tolist()) == set(range(low, high))
        assert counts.min() >= times
        assert counts.max() <= times + 1
    assert mixture.drawn.tolist() == [48, 24]


def test_a_mixture_that_is_restored_goes_on_as_if_never_stopped():
    data = frames([[7, 5], [9], [3, 4, 5]])
    strength = np.arange(6) / 6
    curriculum = CurriculumConfig(begin=0.3, until=0.8)

    def new():
        share = [0.5, 0.2, 0.3]
        return FrameMixture(data, share, 7, seed=1, strength=strength, curriculum=curriculum, steps=30)

    whole = new()
    batches = [whole.next() for _ in range(30)]
    for stop in (0, 1, 11, 29):
        first = new()
        for _ in range(stop):
            first.next()
        state = json.loads(json.dumps(first.state()))
        second = new()
        second.restore(state)
        for batch in batches[stop:]:
            np.testing.assert_array_equal(second.next(), batch)
        assert second.drawn.tolist() == whole.drawn.tolist()


def test_a_curriculum_begins_with_the_episodes_nearest_to_nominal_and_ends_with_all():
    data = frames([[4] * 10])
    strength = np.random.default_rng(0).permutation(10) / 10
    mixture = FrameMixture(
        data, [1.0], 8, seed=0, strength=strength, curriculum=CurriculumConfig(begin=0.2, until=0.5), steps=100
    )
    strongest = []
    for _ in range(100):
        episodes = data.episode_of(mixture.next())
        strongest.append(strength[episodes].max())
    assert max(strongest[:5]) <= 0.1  # the two weakest of ten
    assert (np.diff([max(strongest[i : i + 5]) for i in range(0, 50, 5)]) >= 0).all()
    assert max(strongest[20:25]) < 0.9
    assert max(strongest[50:]) == 0.9


def test_strength_is_distance_from_nominal_over_the_parameters_that_vary():
    data = frames([[2] * 5])
    drawn = [0.0, 1.0, 2.0, 3.0, 4.0]  # the twin is unknown, so the median, 2, is taken for nominal
    episodes = [
        dataclasses.replace(one, params={"a": value, "fixed": 7.0}, twin="nobody's")
        for one, value in zip(data.episodes, drawn, strict=True)
    ]
    np.testing.assert_allclose(randomization_strengths(episodes), [1.0, 0.5, 0.0, 0.5, 1.0])
    np.testing.assert_allclose(randomization_strengths(data.episodes), 0.0)


def test_strength_takes_nominal_values_from_the_twin():
    data = frames([[2] * 2])
    name = "joint/elbow_flex/damping"
    from twinloop.twin import load_twin

    nominal = load_twin("so101_tabletop").params[name].nominal
    episodes = [
        dataclasses.replace(one, params={name: nominal * scale}, twin="so101_tabletop")
        for one, scale in zip(data.episodes, (1.1, 0.6), strict=True)
    ]
    np.testing.assert_allclose(randomization_strengths(episodes), [0.25, 1.0])
