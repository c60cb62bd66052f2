"""Shares of a whole: ratios of sums, intervals that hold, further uncertainty, and what may be claimed."""

import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.stats.shares import ShapleyShares, ShareDeviations, compute_shares, ratios, shares_without_intervals


def clusters(rng, count, share=0.3):
    """Parts and wholes of unequal clusters whose parts are a share of the whole on average."""
    whole = np.exp(0.5 * rng.standard_normal((count, 1)))
    parts = whole * (share + 0.2 * rng.standard_normal((count, 1)))
    return np.stack([parts, whole - parts]), whole


def test_shares_are_ratios_of_sums_and_may_be_mixed():
    parts, whole = np.array([[[1.0, 2.0], [3.0, 0.0]]]), np.array([[4.0, 4.0], [4.0, 0.0]])
    assert ratios(parts, whole) == pytest.approx(np.array([[0.5, 0.5]]))
    assert ratios(parts, whole, [[1.0, 0.5], [0.0, 0.5]]) == pytest.approx(np.array([[0.5, 0.5]]))
    none = ratios(parts, whole * [1.0, 0.0], [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    assert none[0, 0] == pytest.approx(0.5)
    assert np.isnan(none[0, 1])


def test_intervals_hold_as_often_as_they_say():
    rng, held, count = np.random.default_rng(0), 0, 300
    for run in range(count):
        parts, whole = clusters(rng, 12)
        found = compute_shares(parts, whole, draws=300, seed=run)
        assert found.interval.estimate.sum() == pytest.approx(1.0)
        held += bool(found.interval.covers(np.array([[0.3], [0.7]]))[0, 0])
    assert 0.9 < held / count < 0.98


def test_draws_of_what_shares_rest_on_widen_them_and_cancel_in_sums():
    parts, whole = clusters(np.random.default_rng(1), 20)
    drawn = np.random.default_rng(2).standard_normal((50, 1, 1)) * np.array([[[0.5], [-0.5]]])
    further = ShareDeviations.of_draws(drawn)
    assert np.sum(further.values**2, axis=0) == pytest.approx(drawn.var(axis=0, ddof=1))
    assert further.df == pytest.approx(49)
    assert ShareDeviations.of_draws(drawn, df=49).df == pytest.approx(24.5)
    assert np.sum(ShareDeviations.of_mean(drawn).values ** 2) == pytest.approx(np.sum(further.values**2) / 50)
    narrow, wide = compute_shares(parts, whole), compute_shares(parts, whole, deviations=further)
    spread = np.sqrt(np.var(narrow.replicates, axis=0) + np.sum(further.values**2, axis=0))
    assert wide.replicates.std(axis=0) == pytest.approx(spread, rel=0.1)
    assert wide.correlation(0)[0, 1] == pytest.approx(-1.0, abs=0.01)
    together = compute_shares(
        parts.sum(axis=0, keepdims=True), whole, deviations=further.sum_groups([[1.0, 1.0]]).column(0)
    )
    assert together.interval.high - together.interval.low == pytest.approx(np.zeros((1, 1)), abs=1e-12)
    both = further + ShareDeviations.of_mean(drawn)
    assert both.values.shape == (100, 2, 1)


def test_what_is_claimed_is_judged_together():
    parts, whole = clusters(np.random.default_rng(3), 30)
    found = compute_shares(parts, whole)
    assert found.significant_mask().all()
    weak = np.array([[0.02], [0.04], [0.03]])
    one = ShapleyShares(interval=found.interval, p_values=weak[:2], replicates=found.replicates)
    assert one.significant_mask().all()  # Holm: 0.04, 0.04
    wider = compute_shares(np.concatenate([parts, parts[:1]]), whole)
    assert (
        not ShapleyShares(interval=wider.interval, p_values=weak, replicates=wider.replicates).significant_mask().any()
    )


def test_nothing_that_never_varies_is_sure_and_zero_is_zero():
    whole = np.ones((8, 1))
    found = compute_shares(np.stack([0.25 * whole, 0.0 * whole]), whole)
    assert found.p_values[:, 0].tolist() == [0.0, 1.0]
    assert found.significant_mask()[:, 0].tolist() == [True, False]


def test_one_cluster_has_shares_without_intervals():
    with pytest.raises(InputError, match="Intervals of shares need at least 2 episodes, not 1"):
        compute_shares(np.ones((1, 1, 1)), np.ones((1, 1)))
    found = shares_without_intervals(
        np.ones((1, 1, 1)), 2 * np.ones((1, 1)), level=0.95, reason="one episode, no interval"
    )
    assert found.interval.estimate[0, 0] == 0.5
    assert np.isnan(found.interval.low).all()
    assert not found.significant_mask().any()
