"""The classifier two-sample test: its power, its exactness, and its report on columns."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import mannwhitneyu

from twinloop.core.errors import InputError
from twinloop.stats import classifier_test
from twinloop.stats.classifier import weighted_auc


def rows(seed: int, episodes: int, shift=0.0, spread: float = 1.0, columns: int = 4, per: int = 5, alike: float = 0.3):
    random = np.random.default_rng(seed)
    level = np.sqrt(alike) * random.normal(size=(episodes, 1, columns))
    values = level + np.sqrt(1 - alike) * random.normal(size=(episodes, per, columns))
    values[..., 0] *= spread
    values[..., 1] += shift
    return values.reshape(-1, columns), np.repeat(np.arange(episodes), per)


def both(seed: int, count: int = 12, **planted):
    x, cx = rows(2 * seed, count)
    y, cy = rows(2 * seed + 1, count, **planted)
    return (x, y), {"real_clusters": cx, "sim_clusters": cy}


def test_the_area_under_the_curve_is_mann_and_whitneys_with_ties():
    random = np.random.default_rng(0)
    scores = np.round(random.normal(size=(30, 2)), 1)
    real = np.zeros((30, 2))
    real[:12] = 1
    found = weighted_auc(scores, real, 1 - real)
    for column in range(2):
        expected = mannwhitneyu(scores[:12, column], scores[12:, column]).statistic / (12 * 18)
        assert found[column] == pytest.approx(expected)
    twice = np.concatenate([scores, scores[:3]])  # a weight of two is a row twice
    weight = real.copy()
    weight[:3] = 2
    doubled = weighted_auc(twice, np.concatenate([real, real[:3]]), np.concatenate([1 - real, 1 - real[:3]]))
    assert weighted_auc(scores, weight, 1 - real) == pytest.approx(doubled)


def test_with_many_episodes_it_reaches_what_can_be_reached():
    (x, y), keys = both(1, count=150, shift=1.2)
    found = classifier_test(x, y, **keys, draws=0)
    assert float(found.auc.estimate) == pytest.approx(ndtr(1.2 / np.sqrt(2)), abs=0.03)
    assert float(found.accuracy.estimate) == pytest.approx(ndtr(0.6), abs=0.03)
    assert found.auc.low < ndtr(1.2 / np.sqrt(2)) < found.auc.high


def test_contributions_name_the_column_and_add_up_to_the_distance_of_the_scores():
    (x, y), keys = both(2, count=30, shift=1.5)
    found = classifier_test(x, y, **keys, columns=["a", "b", "c", "d"], draws=199)
    assert found.p_value <= 0.01
    parts = found.contributions.estimate
    assert np.argmax(parts) == 1
    assert parts[1] > 0.8 * parts.sum()
    assert found.contributions.low[1] > 0
    scores = found.scores
    assert parts.sum() == pytest.approx(scores[: len(x)].mean() - scores[len(x) :].mean(), rel=1e-9)


def test_a_spread_that_differs_is_seen_by_the_squares_alone():
    (x, y), keys = both(3, count=40, spread=2.5)
    assert classifier_test(x, y, **keys, draws=199).p_value <= 0.01
    assert classifier_test(x, y, **keys, quadratic=False, draws=199).p_value > 0.05


def test_scores_are_in_the_order_of_the_rows_and_the_fit_scores_others():
    (x, y), keys = both(4, count=20, shift=3.0)
    order = np.random.default_rng(0).permutation(len(x))
    mixed = {"real_clusters": keys["real_clusters"][order], "sim_clusters": keys["sim_clusters"]}
    plain, shuffled = classifier_test(x, y, **keys, draws=0), classifier_test(x[order], y, **mixed, draws=0)
    np.testing.assert_allclose(shuffled.scores[: len(x)], plain.scores[: len(x)][order])
    other = rows(99, 10)[0]
    assert (plain.classifier.score(other) > 0).mean() > 0.8
    assert (plain.classifier.score(other + np.array([0, 3.0, 0, 0])) > 0).mean() < 0.2


def test_equal_rows_and_perfect_replays_cannot_be_told_apart():
    x, clusters = rows(5, 10)
    found = classifier_test(x, x.copy(), real_clusters=clusters, sim_clusters=clusters, paired=True, draws=199)
    assert found.p_value == 1
    assert found.auc.estimate == 0.5
    flat = np.ones((50, 2))
    none = classifier_test(flat, flat, real_clusters=clusters, sim_clusters=clusters, draws=199)
    assert none.auc.estimate == 0.5
    assert none.p_value == 1


def test_false_alarms_keep_their_rate_where_frames_resemble_each_other():
    p = []
    for seed in range(150):
        (x, y), keys = both(seed + 50, count=6)
        p.append(classifier_test(x, y, **keys, draws=59, resamples=20).p_value)
    assert np.mean(np.array(p) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 150)
    assert np.mean(np.array(p) <= 0.5) == pytest.approx(0.5, abs=0.12)


def test_too_few_episodes_say_how_many_are_needed():
    (x, y), keys = both(0, count=4)
    with pytest.raises(InputError, match=r"4 real and 4 simulated episodes are too few .* it needs 5 of each"):
        classifier_test(x, y, **keys)
    (x, y), keys = both(0, count=5)
    assert 0 < classifier_test(x, y, **keys, draws=199).p_value <= 1
    assert np.isnan(classifier_test(*both(0, count=4)[0], **both(0, count=4)[1], draws=0).p_value)
