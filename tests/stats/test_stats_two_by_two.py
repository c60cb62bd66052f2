"""Exact tests and intervals of two success rates: against scipy, published examples, and enumeration."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import barnard_exact, binom, fisher_exact

from twinloop.core.errors import InputError
from twinloop.stats import (
    ContingencyTable,
    PairedCounts,
    barnard,
    difference_interval,
    exact_p_value,
    fisher,
    mantel_haenszel,
    mcnemar,
    paired_difference_interval,
    stratified_exact,
)
from twinloop.stats.interval import benjamini_hochberg
from twinloop.stats.two_by_two import constrained_rates, exact_p_values, fisher_p_values, table_chances


def table(won_a, tried_a, won_b, tried_b):
    return ContingencyTable(successes_a=won_a, trials_a=tried_a, successes_b=won_b, trials_b=tried_b)


def test_mcpilco_against_sac_lqr_ten_of_ten_against_four_of_ten():
    counts = table(10, 10, 4, 10)
    assert barnard(counts) == pytest.approx(0.0035166, abs=1e-6)
    assert fisher(counts) == pytest.approx(0.0108359, abs=1e-6)
    assert float(difference_interval(counts, method="chan-zhang").low) > 0.2


@pytest.mark.parametrize("counts", [(10, 10, 4, 10), (8, 10, 4, 10), (3, 7, 9, 12), (0, 5, 5, 5), (1, 6, 2, 9)])
@pytest.mark.parametrize("side", ["two-sided", "greater", "less"])
def test_barnard_is_scipys_which_drops_some_ties(counts, side):
    t = table(*counts)
    columns = [[t.successes_a, t.successes_b], [t.trials_a - t.successes_a, t.trials_b - t.successes_b]]
    theirs = barnard_exact(columns, alternative=side, n=512).pvalue
    ours = barnard(t, alternative=side)
    assert ours == pytest.approx(theirs, rel=0.012)
    assert ours >= theirs * (1 - 1e-6)
    assert exact_p_values(t.trials_a, t.trials_b, alternative=side)[t.successes_a, t.successes_b] == pytest.approx(
        ours, rel=2e-3
    )


def test_barnard_counts_every_tie_as_exact_arithmetic_does():
    def squared(a, b):
        off, pooled = Fraction(a - b, 10), Fraction(a + b, 20)
        variance = pooled * (1 - pooled) / 5
        return (off * abs(off) / variance) if variance else Fraction(0)

    p, least = np.linspace(0, 1, 4001), squared(8, 4)
    tail = sum(
        binom.pmf(a, 10, p) * binom.pmf(b, 10, p) for a in range(11) for b in range(11) if squared(a, b) >= least
    )
    assert barnard(table(8, 10, 4, 10), alternative="greater") == pytest.approx(tail.max(), rel=1e-5)


def test_fisher_of_all_tables_is_scipys():
    ours = fisher_p_values(6, 9)
    for a in range(7):
        for b in range(10):
            assert ours[a, b] == pytest.approx(fisher_exact([[a, 6 - a], [b, 9 - b]]).pvalue)


@given(st.floats(0.02, 0.98), st.floats(0.02, 0.98), st.floats(-0.9, 0.9), st.integers(1, 50), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_constrained_rates_are_the_likeliest(p_a, p_b, shift, n, m):
    x, y = constrained_rates(p_a, p_b, shift, weight_a=n, weight_b=m)
    assert x - y == pytest.approx(shift, abs=1e-9)

    def loss(a):
        b = a - shift
        return -n * (p_a * np.log(a) + (1 - p_a) * np.log1p(-a)) - m * (p_b * np.log(b) + (1 - p_b) * np.log1p(-b))

    low, high = max(0, shift), min(1, 1 + shift)
    slow = minimize_scalar(loss, bounds=(low + 1e-12, high - 1e-12), method="bounded", options={"xatol": 1e-10})
    assert loss(float(x)) <= slow.fun + 1e-6


@pytest.mark.parametrize("shift", [0.0, 0.2, -0.35])
@pytest.mark.parametrize("sizes", [(7, 11), (12, 12)])
def test_exact_tests_keep_their_level_at_every_rate(shift, sizes):
    for side in ("two-sided", "greater", "less"):
        refused = exact_p_values(*sizes, difference=shift, alternative=side) <= 0.05
        rates = np.linspace(max(0, shift), min(1, 1 + shift), 101)
        worst = max(table_chances(*sizes, p, p - shift)[refused].sum() for p in rates)
        assert worst <= 0.05 + 1e-4


def test_published_intervals_come_out():
    newcombe = difference_interval(table(56, 70, 48, 80))  # Newcombe, Statistics in Medicine 17 (1998), table II
    assert (float(newcombe.low), float(newcombe.high)) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    tango = paired_difference_interval(PairedCounts(both=1, only_a=1, only_b=7, neither=12))
    # Fagerland, Lydersen & Laake, Statistics in Medicine 33 (2014), airway hyper-responsiveness
    assert (float(tango.low), float(tango.high)) == pytest.approx((-0.517, -0.026), abs=5e-4)
    assert mcnemar(PairedCounts(both=1, only_a=1, only_b=7, neither=12)) == pytest.approx(0.0703, abs=1e-4)


def test_the_exact_interval_holds_what_the_exact_test_keeps():
    for counts in ((9, 10, 3, 10), (2, 8, 3, 6), (6, 6, 6, 6)):
        t = table(*counts)
        found = difference_interval(t, method="chan-zhang")
        for end, side in ((float(found.low), "greater"), (float(found.high), "less")):
            if abs(end) < 1:
                assert exact_p_value(t, difference=end, alternative=side) == pytest.approx(0.025, abs=2e-3)


def test_intervals_cover():
    n, p_a, p_b = 8, 0.8, 0.45
    chance = table_chances(n, n, p_a, p_b)
    for method, least in (("clopper-pearson", 0.95), ("newcombe", 0.93), ("agresti-caffo", 0.93)):
        held = sum(
            chance[a, b]
            for a in range(n + 1)
            for b in range(n + 1)
            if bool(difference_interval(table(a, n, b, n), method=method).covers(p_a - p_b))
        )
        assert held >= least


def test_swapping_arms_swaps_signs():
    t = table(7, 9, 2, 11)
    for method in ("newcombe", "agresti-caffo", "clopper-pearson", "chan-zhang"):
        there, back = difference_interval(t, method=method), difference_interval(t.swap_arms(), method=method)
        assert (float(there.low), float(there.high)) == pytest.approx((-float(back.high), -float(back.low)), abs=1e-4)


@pytest.mark.parametrize("won", [0, 6])
def test_tables_of_one_outcome_say_nothing_about_a_difference(won):
    t = table(won, 6, won, 6)
    assert barnard(t) == fisher(t) == 1.0
    for method in ("newcombe", "agresti-caffo", "clopper-pearson", "chan-zhang"):
        found = difference_interval(t, method=method)
        assert float(found.low) < -0.3
        assert float(found.high) > 0.3


def test_strata_are_not_fooled_by_unequal_conditions():
    easy, hard = table(9, 10, 36, 40), table(12, 40, 3, 10)  # equal within both, a tried the hard one more often
    assert barnard(table(21, 50, 39, 50)) < 0.01
    assert stratified_exact([easy, hard]) == pytest.approx(1.0)
    assert float(mantel_haenszel([easy, hard]).estimate) == pytest.approx(0.0, abs=1e-12)
    assert stratified_exact([table(10, 10, 4, 10)]) == pytest.approx(fisher(table(10, 10, 4, 10)))


@pytest.mark.parametrize("strata", [[(10, 10)] * 6, [(2, 3)] * 40])
def test_mantel_haenszel_covers_for_few_large_and_many_small_strata(strata):
    random, held = np.random.default_rng(0), 0
    for _ in range(400):
        base = random.uniform(0.2, 0.7, len(strata))
        tables = [
            table(int(random.binomial(n, p + 0.15)), n, int(random.binomial(m, p)), m)
            for (n, m), p in zip(strata, base, strict=True)
        ]
        held += bool(mantel_haenszel(tables).covers(0.15))
    assert 0.915 <= held / 400 <= 0.98


def test_strata_that_all_end_alike_have_no_interval_and_say_so():
    found = mantel_haenszel([table(5, 5, 5, 5)])
    assert np.isnan(found.low)
    assert "same outcome" in found.method


def test_benjamini_hochberg_is_between_the_raw_values_and_holms():
    p = np.array([0.001, 0.012, 0.03, 0.2])
    np.testing.assert_allclose(benjamini_hochberg(p), [0.004, 0.024, 0.04, 0.2])
    with pytest.raises(InputError, match="P-values are a list"):
        benjamini_hochberg([0.1, 1.2])


def test_bad_counts_and_differences_are_named():
    with pytest.raises(InputError, match="11 successes of 10 trials in arm a"):
        table(11, 10, 4, 10)
    with pytest.raises(InputError, match="0 trials in arm b"):
        table(1, 10, 0, 0)
    with pytest.raises(InputError, match="Write 10 points as 0.1"):
        exact_p_value(table(1, 10, 2, 10), difference=10)
    with pytest.raises(InputError, match="contain no pairs"):
        PairedCounts(both=0, only_a=0, only_b=0, neither=0)
    with pytest.raises(InputError, match="No condition has trials of both"):
        mantel_haenszel([])
