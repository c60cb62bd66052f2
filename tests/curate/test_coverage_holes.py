"""Planted holes are found and ranked; equal sides have none; whitening and maps are as documented."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.curate.coverage import (
    ClipRows,
    compute_own_distances,
    find_holes,
    find_nearest_rows,
    measure_real_coverage,
)
from twinloop.curate.projection import fit_whitening, project


def side(rows: np.ndarray, per: int = 2, success: np.ndarray | None = None) -> ClipRows:
    episode = np.arange(len(rows)) // per
    count = int(episode.max()) + 1
    outcome = np.full(count, np.nan) if success is None else success
    return ClipRows(rows=rows, episode=episode, first=np.arange(len(rows)) % per * 10, success=outcome)


def square(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(size=(count, 2))


def without(points: np.ndarray, low: float, high: float) -> np.ndarray:
    return points[~((points[:, 0] > low) & (points[:, 0] < high) & (points[:, 1] > low) & (points[:, 1] < high))]


def test_a_planted_hole_is_one_hole_and_ranked_first():
    real, sim = side(square(300, 0)), side(without(square(500, 1), 0.55, 0.95))
    measured = measure_real_coverage(real, sim, floor=False)
    holes = find_holes(real, measured)
    inside = ((real.rows > 0.55) & (real.rows < 0.95)).all(axis=1)
    assert inside[holes[0].clips].mean() > 0.9
    assert len(holes[0].clips) > 0.3 * inside.sum()
    assert holes[0].mass > 3 * max((hole.mass for hole in holes[1:]), default=0.0)


def test_sides_that_are_alike_leave_no_hole_of_note():
    real, sim = side(square(300, 2)), side(square(500, 3))
    measured = measure_real_coverage(real, sim, floor=False)
    assert float(measured.metrics.coverage.estimate) > 0.97
    assert all(hole.mass < 0.02 for hole in find_holes(real, measured))


def test_failures_lift_a_hole_above_a_heavier_one():
    points = square(400, 4)
    sim = without(without(square(600, 5), 0.02, 0.38), 0.62, 0.94)
    upper = ((points > 0.62) & (points < 0.94)).all(axis=1)
    success = np.where(upper, 0.0, 1.0)
    real = side(points, per=1, success=success)
    measured = measure_real_coverage(real, side(sim, per=1), floor=False)
    plain, weighed = find_holes(real, measured, failure_weight=0.0), find_holes(real, measured, failure_weight=1.0)
    assert plain[0].failure == 0.0
    assert weighed[0].failure > 0.8
    assert weighed[0].weight == pytest.approx((1.0 + weighed[0].failure) * weighed[0].mass)
    assert weighed[0].mass < plain[0].mass
    with pytest.raises(InputError, match="--failure-weight -1: it must be at least 0"):
        find_holes(real, measured, failure_weight=-1.0)


def test_an_episode_weighs_the_same_however_many_clips_it_has():
    rows = ClipRows(
        rows=np.zeros((5, 1)),
        episode=np.array([0, 0, 0, 2, 2]),
        first=np.zeros(5, dtype=np.int64),
        success=np.full(3, np.nan),
    )
    np.testing.assert_allclose(rows.weight, [1 / 6, 1 / 6, 1 / 6, 1 / 4, 1 / 4])


def test_distances_are_those_of_the_definition():
    real, sim = side(square(40, 6)), square(30, 7)
    distance, which = find_nearest_rows(real.rows, sim)
    every = np.linalg.norm(real.rows[:, None] - sim, axis=2)
    np.testing.assert_allclose(distance, every.min(axis=1), atol=1e-12)
    np.testing.assert_array_equal(which, every.argmin(axis=1))
    apart = np.linalg.norm(real.rows[:, None] - real.rows, axis=2)
    apart[real.episode[:, None] == real.episode] = np.inf
    np.testing.assert_allclose(compute_own_distances(real, 3), np.sort(apart, axis=1)[:, 2], atol=1e-12)


def test_too_few_clips_are_refused():
    with pytest.raises(InputError, match="Every real clip needs 5 neighbours in other episodes, but .* only 2"):
        compute_own_distances(side(square(4, 0)), 5)


def test_whitened_rows_have_unit_variance_and_no_correlation():
    chance = np.random.default_rng(8)
    rows = chance.normal(size=(500, 4)) @ chance.normal(size=(4, 6)) * [1, 10, 0.1, 1, 1, 1] + 3
    rows = np.column_stack([rows, np.full(500, 7.0)])
    white = fit_whitening(rows, fitted="all", share=1.0)
    made = white(rows)
    assert made.shape == (500, 4)
    np.testing.assert_allclose(made.T @ made / 500, np.eye(4), atol=1e-8)
    assert fit_whitening(rows, fitted="real").hash != fit_whitening(rows, fitted="union").hash
    assert fit_whitening(rows, fitted="all", share=1.0).hash == white.hash


def test_a_column_of_noise_is_not_made_as_large_as_the_rest():
    chance = np.random.default_rng(11)
    rows = np.column_stack([chance.normal(size=200), 1e-3 * chance.normal(size=(200, 5))])
    assert fit_whitening(rows, fitted="all").axes.shape[1] > 4
    assert fit_whitening(rows, fitted="all", resolution=np.full(6, 0.02)).axes.shape[1] == 1


def test_what_cannot_be_whitened_is_refused():
    with pytest.raises(InputError, match="All 5 clips of the log are identical"):
        fit_whitening(np.ones((5, 3)), fitted="the log")
    with pytest.raises(InputError, match="1 clips of the log are too few"):
        fit_whitening(np.ones((1, 3)), fitted="the log")


def test_a_map_is_the_first_two_components_or_neighbours():
    rows = np.random.default_rng(9).normal(size=(50, 3))
    np.testing.assert_array_equal(project(rows, "pca").points, rows[:, :2])
    assert project(rows[:, :1], "pca").points.shape == (50, 2)


@pytest.mark.slow
def test_umap_keeps_groups_apart():
    pytest.importorskip("umap")
    chance = np.random.default_rng(10)
    rows = np.concatenate([chance.normal(size=(60, 5)), chance.normal(size=(60, 5)) + 20.0])
    points = project(rows, "umap").points
    gap = np.linalg.norm(points[:60].mean(axis=0) - points[60:].mean(axis=0))
    assert gap > 2 * points[:60].std(axis=0).max()
