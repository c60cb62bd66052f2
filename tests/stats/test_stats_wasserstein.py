"""Wasserstein distances of columns, and adjusting for their number."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from twinloop.core.errors import InputError
from twinloop.stats import wasserstein
from twinloop.stats.two_sample import EpisodeRelabellings


def rows(seed: int, episodes: int, shift=(0.0, 0.0, 0.0), per: int = 6):
    random = np.random.default_rng(seed)
    values = random.normal(size=(episodes, 1, 3)) * 0.7 + random.normal(size=(episodes, per, 3)) * 0.7 + shift
    return values.reshape(-1, 3), np.repeat(np.arange(episodes), per)


def test_it_is_scipys_distance_with_episodes_counting_once():
    random = np.random.default_rng(0)
    sizes = (3, 9, 5)
    x, cx = random.normal(size=(17, 1)), np.repeat(np.arange(3), sizes)
    y, cy = random.normal(size=(12, 1)) + 0.4, np.repeat(np.arange(4), 3)
    found = wasserstein(x, y, real_clusters=cx, sim_clusters=cy, draws=0).distance.estimate[0]
    weights = 1 / np.repeat(sizes, sizes)
    assert found == pytest.approx(wasserstein_distance(x[:, 0], y[:, 0], weights, np.ones(12)))


def test_many_rows_are_read_on_a_grid_that_is_fine_enough():
    random = np.random.default_rng(1)
    x, y = random.normal(size=(2000, 1)), random.normal(size=(2000, 1)) + 0.3
    keys = {"real_clusters": np.arange(2000) // 100, "sim_clusters": np.arange(2000) // 100}
    found = wasserstein(x, y, **keys, draws=0).distance.estimate[0]
    assert found == pytest.approx(wasserstein_distance(x[:, 0], y[:, 0]), rel=0.02)


def test_the_planted_column_is_named_with_its_shift():
    x, cx = rows(0, 12)
    y, cy = rows(1, 12, (0.0, 2.0, 0.0))
    found = wasserstein(x, y, real_clusters=cx, sim_clusters=cy, columns=["a", "b", "c"], draws=999)
    assert (found.p_adjusted <= 0.05).tolist() == [False, True, False]
    assert found.shift[1] == pytest.approx(2, abs=0.9)
    assert found.distance.low[1] > 0
    assert found.distance.low[0] == 0  # what relabelling makes as large is not excluded


def test_the_adjustment_is_that_of_the_largest_statistic_where_all_is_chance():
    random = np.random.default_rng(2)
    alarms = 0
    for _ in range(400):
        table = random.normal(size=(100, 8))
        labels = EpisodeRelabellings(real=np.zeros((99, 2), dtype=bool), exact=False)
        alarms += (labels.adjust_p_values(table[0], table[1:]) <= 0.05).any()
    assert alarms / 400 == pytest.approx(0.05, abs=0.03)


def test_a_constant_column_is_no_difference():
    x, cx = rows(0, 6)
    y, cy = rows(1, 6)
    x[:, 0] = y[:, 0] = 4.2
    found = wasserstein(x, y, real_clusters=cx, sim_clusters=cy, draws=199)
    assert found.distance.estimate[0] == 0
    assert found.p_adjusted[0] == found.p_value[0] == 1
    with pytest.raises(InputError, match="2 names for 3 columns"):
        wasserstein(x, y, real_clusters=cx, sim_clusters=cy, columns=["a", "b"])
