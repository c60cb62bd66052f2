"""Equivalence has to be shown: levels at the edge of the margin, and no verdict from silence."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.stats import (
    ContingencyTable,
    bootstrap_of_means,
    bounded_difference,
    classify_difference,
    equivalent_means,
    equivalent_rates,
    permutation_of_means,
)
from twinloop.stats.equivalence import equivalence_p_values
from twinloop.stats.two_by_two import table_chances


@pytest.mark.parametrize("p", [0.2, 0.35, 0.5, 0.7, 0.8])
def test_rates_at_the_edge_of_the_margin_pass_at_most_at_alpha(p):
    passed = equivalence_p_values(30, 25, margin=0.2) <= 0.05
    assert table_chances(30, 25, p + 0.2, p)[passed].sum() <= 0.05
    assert table_chances(30, 25, p - 0.2, p)[passed].sum() <= 0.05


def test_few_alike_trials_are_undecided_and_many_are_equivalent():
    few = ContingencyTable(successes_a=8, trials_a=10, successes_b=8, trials_b=10)
    many = ContingencyTable(successes_a=160, trials_a=200, successes_b=160, trials_b=200)
    assert classify_difference(1.0, equivalent_rates(few, margin=0.15).p_value) == "undecided"
    assert classify_difference(1.0, equivalent_rates(many, margin=0.15).p_value) == "equivalent"
    assert classify_difference(0.001, 0.4) == "differs"
    assert classify_difference(0.6, None) == "undecided"


def test_means_at_the_edge_of_the_margin_pass_at_most_at_alpha():
    random = np.random.default_rng(1)
    passed = sum(
        equivalent_means(random.beta(4, 4, 30) + 0.1, random.beta(4, 4, 30), margin=0.1).p_value <= 0.05
        for _ in range(200)
    )
    assert passed / 200 <= 0.05 + 0.035
    a = random.beta(4, 4, 40)
    assert equivalent_means(a, a + random.normal(0, 0.02, 40), margin=0.1, paired=True).p_value < 1e-6


def test_a_permutation_test_keeps_its_level_and_sees_a_difference():
    random = np.random.default_rng(2)
    p = [permutation_of_means(random.beta(2, 2, 7), random.beta(2, 2, 9), draws=199, seed=i) for i in range(150)]
    assert np.mean(np.array(p) <= 0.1) <= 0.1 + 0.06
    assert permutation_of_means(random.beta(8, 2, 15), random.beta(2, 8, 15), draws=999) <= 0.002
    assert permutation_of_means([1.0, 1.0], [1.0, 1.0, 1.0]) == 1.0
    assert permutation_of_means([0.1, 0.2, 0.4], [0.1, 0.2, 0.4], paired=True) == 1.0
    # every sign of five pairs that agree: 2 of 32
    assert permutation_of_means(np.arange(5) / 10 + 0.3, np.arange(5) / 10, paired=True) == pytest.approx(2 / 32)


def test_intervals_of_means_hold_the_planted_difference():
    random = np.random.default_rng(3)
    a, b = random.beta(6, 4, 60), random.beta(4, 6, 60)
    for found in (bounded_difference(a, b), bounded_difference(a, b, paired=True), bootstrap_of_means(a, b)):
        assert bool(found.covers(0.2))
    none = bootstrap_of_means([1.0, 1.0], [1.0, 1.0])
    assert np.isnan(none.low)
    assert "same outcome" in none.method


def test_bad_margins_and_pairs_are_named():
    counts = ContingencyTable(successes_a=8, trials_a=10, successes_b=8, trials_b=10)
    for margin in (0.0, -0.1, 1.0):
        with pytest.raises(InputError, match="margin of equivalence must be between 0 and 1"):
            equivalent_rates(counts, margin=margin)
    with pytest.raises(InputError, match="3 values cannot be paired with 2"):
        equivalent_means([0.1, 0.2, 0.3], [0.1, 0.2], margin=0.1, paired=True)
    with pytest.raises(InputError, match="needs at least 2 of each"):
        permutation_of_means([0.4], [0.1, 0.2])
    assert equivalent_means([1.0, 1.0], [1.0, 1.0], margin=0.1).p_value == 1.0  # no spread seen is no proof
