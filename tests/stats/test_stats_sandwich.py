"""Intervals from few unequal clusters and from blocks of time: identities, slow twins, and coverage by simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.signal import lfilter
from scipy.special import stdtrit

from twinloop.core.errors import InputError
from twinloop.stats import (
    bias_reduced_sandwich,
    block_frames,
    cluster_weights,
    integrated_time,
    score_bootstrap,
    stretched_percentile,
    time_blocks,
)


def ar1(rng, rho, shape):
    white = rng.normal(size=shape)
    white[:, 0] /= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], white, axis=1) * np.sqrt(1 - rho**2)


def regression(rng, *, clusters=10, frames=60, p=4, rho=0.95, uneven=0.6):
    """Slopes and errors of a truth of zeros, both correlated in time, clusters of unequal size."""
    size = np.exp(uneven * rng.normal(size=(clusters, 1, 1)))
    slopes = np.stack([ar1(rng, 0.9, (clusters, frames)) for _ in range(p)], axis=-1) * size
    error = ar1(rng, rho, (clusters, frames)) + rng.normal(size=(clusters, 1)) * np.exp(-np.arange(frames) / 20)
    flat = slopes.reshape(-1, p)
    estimate = np.linalg.lstsq(flat, error.ravel(), rcond=None)[0]
    return slopes, error - slopes @ estimate, estimate


def parts(slopes, residual):
    return np.einsum("cnp,cnq->cpq", slopes, slopes), np.einsum("cnp,cn->cp", slopes, residual)


def halfwidth(sandwich, level):
    """Of two-sided t intervals."""
    return stdtrit(sandwich.df, (1 + level) / 2) * np.sqrt(np.diag(sandwich.covariance))


def slow_cr2(slopes, residual):
    """CR2 and Satterthwaite degrees of freedom as they are defined, on all rows."""
    clusters, frames, p = slopes.shape
    design = slopes.reshape(-1, p)
    inverse = np.linalg.inv(design.T @ design)
    maker = np.eye(len(design)) - design @ inverse @ design.T
    influence, rows = [], []
    for c in range(clusters):
        x = slopes[c]
        adjust = np.real(np.linalg.inv(sqrtm(np.eye(frames) - x @ inverse @ x.T)))
        influence.append(inverse @ x.T @ adjust @ residual[c])
        rows.append(inverse @ x.T @ adjust @ maker[c * frames : (c + 1) * frames])
    df = []
    for k in range(p):
        weights = np.array([row[k] for row in rows])
        omega = weights @ weights.T
        df.append(np.trace(omega) ** 2 / np.sum(omega**2))
    influence = np.array(influence)
    return influence.T @ influence, np.array(df)


def test_the_sandwich_in_parameter_space_is_the_one_on_all_rows():
    slopes, residual, _ = regression(np.random.default_rng(0), clusters=5, frames=30, p=3)
    found = bias_reduced_sandwich(*parts(slopes, residual))
    covariance, df = slow_cr2(slopes, residual)
    assert found.covariance == pytest.approx(covariance, rel=1e-6)
    assert found.df == pytest.approx(df, rel=1e-6)


@given(st.integers(0, 10_000))
def test_units_of_parameters_do_not_matter(seed):
    slopes, residual, _ = regression(np.random.default_rng(seed), clusters=6, frames=20, p=3)
    scale = np.array([1e-3, 1.0, 1e5])
    one, other = (bias_reduced_sandwich(*parts(slopes * s, residual)) for s in (1.0, scale))
    assert other.covariance * np.outer(scale, scale) == pytest.approx(one.covariance, rel=1e-6, abs=1e-18)
    assert other.df == pytest.approx(one.df, rel=1e-6)


def plain_sandwich(curvatures, scores):
    """H⁻¹ [Σ_c s_c s_cᵀ · C/(C−1)] H⁻¹ (Liang & Zeger, Biometrika 73, 1986)."""
    bread, count = np.linalg.inv(curvatures.sum(axis=0)), len(scores)
    return bread @ (scores.T @ scores) @ bread * count / (count - 1)


def test_many_equal_clusters_give_the_plain_sandwich():
    slopes, residual, _ = regression(np.random.default_rng(1), clusters=400, frames=20, p=2, uneven=0.0)
    found, plain = bias_reduced_sandwich(*parts(slopes, residual)), plain_sandwich(*parts(slopes, residual))
    assert found.covariance == pytest.approx(plain, rel=0.03)
    assert found.df.min() > 150
    assert found.rank == 2


def test_the_rank_is_that_of_the_clusters_and_the_bootstraps_is_full():
    slopes, residual, _ = regression(np.random.default_rng(2), clusters=3, frames=60, p=4)
    curvatures, scores = parts(slopes, residual)
    found = bias_reduced_sandwich(curvatures, scores)
    assert found.rank == 2
    draws = score_bootstrap(curvatures, scores, 1e-6 * np.eye(4), np.zeros(4), draws=400)
    assert np.linalg.matrix_rank(np.cov(draws.T)) == 4


def test_a_penalty_narrows_and_what_nothing_determines_is_refused():
    slopes, residual, _ = regression(np.random.default_rng(3), p=3)
    curvatures, scores = parts(slopes, residual)
    free = bias_reduced_sandwich(curvatures, scores)
    firm = bias_reduced_sandwich(curvatures, scores, 1e3 * np.eye(3))
    assert (np.diag(firm.covariance) < np.diag(free.covariance)).all()
    curvatures[:, 0] = curvatures[:, :, 0] = 0.0
    with pytest.raises(InputError, match="neither by the data nor by a prior. Fix one of the parameters"):
        bias_reduced_sandwich(curvatures, scores)
    with pytest.raises(InputError, match="1 cluster does not show how clusters differ"):
        bias_reduced_sandwich(curvatures[:1], scores[:1])
    with pytest.raises(InputError, match="A bootstrap over 1 cluster has no spread"):
        cluster_weights(1, 10)


def test_intervals_cover_with_twice_as_many_clusters_as_parameters():
    """Nominal 90 %; the plain sandwich with t of C - 1, and least squares' own intervals, cover less."""
    rng, hits, plain, naive, boot = np.random.default_rng(4), [], [], [], []
    for _ in range(400):
        slopes, residual, estimate = regression(rng, clusters=8, p=4)
        curvatures, scores = parts(slopes, residual)
        hits.append(np.abs(estimate) <= halfwidth(bias_reduced_sandwich(curvatures, scores), 0.9))
        draws = score_bootstrap(curvatures, scores, 1e-9 * np.eye(4), np.zeros(4), draws=300)
        low, high = stretched_percentile(draws, 8, bias_reduced_sandwich(curvatures, scores).df, level=0.9)
        boot.append((low <= -estimate) & (-estimate <= high))
        inverse = np.linalg.inv(curvatures.sum(axis=0))
        naive.append(np.abs(estimate) <= 1.645 * np.sqrt(np.diag(inverse) * residual.var()))
        plain.append(np.abs(estimate) <= 1.895 * np.sqrt(np.diag(plain_sandwich(*parts(slopes, residual)))))
    assert 0.87 <= np.mean(hits) <= 0.96
    assert 0.87 <= np.mean(boot) <= 0.98
    assert np.mean(plain) < np.mean(hits) - 0.02
    assert np.mean(naive) < 0.6


def test_the_time_over_which_a_series_is_correlated():
    rng = np.random.default_rng(5)
    assert integrated_time([rng.normal(size=(4000, 2))]) == pytest.approx([1.0, 1.0], abs=0.2)
    assert integrated_time(list(ar1(rng, 0.9, (30, 1000)))) == pytest.approx(19.0, rel=0.15)
    level = rng.normal(size=(40, 1)) + 0.3 * rng.normal(size=(40, 50))
    assert integrated_time(list(level)) > 30  # a level of each clip is correlated over all of it
    assert integrated_time([np.zeros(10)]) == 1.0


def test_blocks_grow_with_the_correlation_and_end_where_there_are_too_few():
    assert block_frames(3000, 5.0) == pytest.approx(5.0 * 600 ** (1 / 3))
    assert block_frames(600, 10.0) == pytest.approx(600 / 8)
    assert block_frames(200, 10.0) == pytest.approx(40.0)
    assert block_frames(100, 10.0) is None


def test_blocks_cut_episodes_evenly_and_keep_short_windows_whole():
    long = time_blocks([0.0, 0.0], 100, 0.1, [0, 1], 2.4)
    assert long.shape == (2, 100)
    assert np.bincount(long.ravel()).tolist() == [25] * 8
    begins = [0.0, 0.5, 1.0, 1.5, 0.0, 0.5]
    short = time_blocks(begins, 6, 0.1, [3, 3, 3, 3, 7, 7], 1.0)
    assert (short == short[:, :1]).all()
    assert short[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_blocks_of_a_single_recording_cover():
    rng, hits = np.random.default_rng(6), []
    for _ in range(250):
        slopes, residual, estimate = regression(rng, clusters=1, frames=1200, p=3, rho=0.9, uneven=0.0)
        rows = slopes * residual[..., None]
        tau = integrated_time(list(rows @ np.linalg.inv(parts(slopes, residual)[0][0]))).max()
        labels = time_blocks([0.0], 1200, 1.0, [0], block_frames(1200, tau) or 0.0)[0]
        blocks = range(labels.max() + 1)
        curvatures = np.array([slopes[0, labels == b].T @ slopes[0, labels == b] for b in blocks])
        scores = np.array([rows[0, labels == b].sum(axis=0) for b in blocks])
        hits.append(np.abs(estimate) <= halfwidth(bias_reduced_sandwich(curvatures, scores), 0.9))
    assert 0.85 <= np.mean(hits) <= 0.95
