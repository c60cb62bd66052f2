"""Laws of multiplicity, of paired comparisons and of conformal thresholds, by simulation and by closed form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.stats import conformal_band, conformal_threshold, holm, min_clip_count, paired_test

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_holm_by_hand():
    p = [0.01, 0.04, 0.03, 0.005]
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(P_VALUES)
def test_adjusted_values_keep_the_order_and_never_shrink(p):
    adjusted = holm(p)
    assert (np.asarray(p) <= adjusted + 1e-12).all()
    assert (adjusted <= 1).all()
    order = np.argsort(p, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()


def test_holm_keeps_the_chance_of_any_false_alarm():
    rng = np.random.default_rng(0)
    alarms = np.mean([(holm(rng.uniform(size=8)) <= 0.1).any() for _ in range(4000)])
    assert 0.08 < alarms < 0.115


def test_no_probability_is_refused():
    with pytest.raises(InputError, match="P-values are a list of numbers from 0 to 1"):
        holm([0.1, 1.2])


@pytest.mark.parametrize("skewed", [False, True])
def test_the_paired_test_holds_its_level(skewed):
    rng = np.random.default_rng(1)
    p = []
    for number in range(400):
        draws = rng.exponential(size=20) - 1.0 if skewed else rng.normal(size=20)
        p.append(paired_test(draws, draws=299, seed=number).p_value)
    # Three standard errors of a rate of 5 % in 400 are 3.3 %; skewed differences cost a little more.
    assert np.mean(np.array(p) <= 0.05) < 0.085


def test_a_clear_improvement_is_found_and_nothing_is_not():
    rng = np.random.default_rng(2)
    found = paired_test(0.5 + 0.3 * rng.normal(size=15))
    assert found.p_value < 0.001
    assert found.mean.low > 0.2
    assert paired_test(np.zeros(10)).p_value == 1.0
    assert paired_test([0.5, 0.51, 0.52]).p_value == 1 / 8  # three clips cannot show more
    with pytest.raises(InputError, match="1 episode does not show"):
        paired_test([0.3])


def test_nine_clips_are_the_fewest_for_ninety_per_cent():
    assert [min_clip_count(level) for level in (0.5, 0.8, 0.9, 0.95)] == [1, 4, 9, 19]
    assert conformal_threshold(np.arange(9.0), 0.9) == 8.0
    assert conformal_threshold(np.arange(8.0), 0.9) == np.inf
    with pytest.raises(InputError, match="A calibration score is NaN"):
        conformal_threshold([0.1, np.nan], 0.5)


@pytest.mark.parametrize(("count", "level"), [(9, 0.9), (19, 0.9), (30, 0.8)])
def test_a_threshold_covers_a_new_clip_at_its_rate_whatever_the_scores(count, level):
    rng = np.random.default_rng(3)
    scores = rng.pareto(1.1, size=(6_000, count + 1))
    thresholds = np.array([conformal_threshold(row[:-1], level) for row in scores])
    rate = np.mean(scores[:, -1] <= thresholds)
    margin = 3 * np.sqrt(0.25 / 6_000)
    assert level - margin <= rate <= level + 1 / (count + 1) + margin


def test_the_band_holds_what_test_clips_then_show():
    rng = np.random.default_rng(4)
    low, high = conformal_band(np.array([0.8, 0.99]), 12, 10)
    inside = []
    for _ in range(4000):
        threshold = conformal_threshold(rng.normal(size=12), 0.8)
        inside.append(low[0] <= np.mean(rng.normal(size=10) <= threshold) <= high[0])
    assert np.mean(inside) >= 0.94
    assert (low[1], high[1]) == (1.0, 1.0)
