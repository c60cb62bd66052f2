"""Precision, recall, density and coverage: a slow reference, the expectation without a gap, planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.stats import precision_recall_density_coverage as prdc


def slow(x, cx, y, cy, k):
    def reach(rows, label):
        return np.array(
            [np.sort(np.linalg.norm(rows[label != label[i]] - rows[i], axis=1))[k - 1] for i in range(len(rows))]
        )

    def episodes(values, label):
        return np.mean([values[label == one].mean() for one in np.unique(label)])

    apart = np.linalg.norm(y[:, None] - x[None], axis=2)
    in_real, in_sim = apart <= reach(x, cx)[None], apart <= reach(y, cy)[:, None]
    return {
        "precision": episodes(in_real.any(axis=1), cy),
        "density": episodes(in_real.sum(axis=1) / k, cy),
        "recall": episodes(in_sim.any(axis=0), cx),
        "coverage": episodes(in_real.any(axis=0), cx),
    }


def test_blocks_equal_the_definition(monkeypatch):
    monkeypatch.setattr("twinloop.stats.neighbours._BLOCK_BYTES", 1000)
    random = np.random.default_rng(0)
    x, cx = random.normal(size=(40, 3)), np.arange(40) % 8
    y, cy = random.normal(size=(36, 3)) + 0.5, np.arange(36) % 6
    found = prdc(x, y, real_clusters=cx, sim_clusters=cy, k=3)
    for name, value in slow(x, cx, y, cy, 3).items():
        assert getattr(found, name).estimate == pytest.approx(value)


def test_without_a_gap_density_is_one_and_coverage_as_published():
    """Naeem et al. 2020, eq. 8 and 9, for independent rows."""
    n, m, k = 60, 80, 5
    density, coverage = [], []
    for seed in range(60):
        random = np.random.default_rng(seed)
        found = prdc(
            random.normal(size=(n, 2)),
            random.normal(size=(m, 2)),
            real_clusters=np.arange(n),
            sim_clusters=np.arange(m),
            k=k,
        )
        density.append(float(found.density.estimate))
        coverage.append(float(found.coverage.estimate))
    expected = 1 - np.prod([(n - i) / (m + n - i) for i in range(1, k + 1)])
    assert np.mean(density) == pytest.approx(1, abs=4 * np.std(density) / np.sqrt(60))
    assert np.mean(coverage) == pytest.approx(expected, abs=4 * np.std(coverage) / np.sqrt(60))


def test_a_lost_mode_costs_recall_and_an_invented_one_precision():
    random = np.random.default_rng(1)
    near, far = random.normal(size=(60, 2)), random.normal(size=(60, 2)) + 12
    every = np.concatenate([near, far])
    clusters = np.arange(120) % 12
    lost = prdc(every, near[:60], real_clusters=clusters, sim_clusters=np.arange(60) % 6, draws=39)
    assert lost.precision.estimate > 0.9
    assert lost.coverage.estimate < 0.6
    assert lost.p_value["coverage"] <= 0.05
    invented = prdc(near, every, real_clusters=np.arange(60) % 6, sim_clusters=clusters)
    assert invented.precision.estimate < 0.6
    assert invented.recall.estimate > 0.9


def test_more_neighbours_than_other_episodes_have_are_refused():
    x = np.zeros((6, 2))
    with pytest.raises(
        InputError, match="Neighbour 5 of every real row is sought in other episodes, which have 3 rows"
    ):
        prdc(x, x, real_clusters=[0, 0, 0, 1, 1, 1], sim_clusters=np.arange(6))
