"""Power by adding up outcomes: against simulation, scipy's published example, and its own definition."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.stats import (
    PairedCounts,
    mcnemar,
    power_of_equivalence,
    power_of_pairs,
    power_of_rates,
    sequential_power,
    trials_for_equivalence,
    trials_for_pairs,
    trials_for_rates,
)
from twinloop.stats.equivalence import equivalence_p_values, rejected_tables
from twinloop.stats.two_by_two import exact_p_values, table_chances


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("sizes", [(9, 9), (6, 13)])
def test_the_halved_critical_value_refuses_what_p_values_do(alpha, sizes):
    for side in ("two-sided", "greater", "less"):
        assert np.array_equal(
            rejected_tables(*sizes, alpha=alpha, alternative=side), exact_p_values(*sizes, alternative=side) <= alpha
        )


def test_power_is_the_chance_of_refusing():
    random = np.random.default_rng(0)
    a, b = random.binomial(20, 0.9, 40_000), random.binomial(20, 0.5, 40_000)
    simulated = (exact_p_values(20, 20)[a, b] <= 0.05).mean()
    assert power_of_rates(0.9, 0.5, 20, 20) == pytest.approx(simulated, abs=0.01)
    assert power_of_rates(0.5, 0.5, 20, 20) <= 0.05
    assert power_of_rates(0.9, 0.5, 20, 20) > power_of_rates(0.9, 0.5, 20, 20, test="fisher")


def test_the_trials_needed_reach_the_power_and_fewer_do_not():
    found = trials_for_rates(0.56, 0.92)
    assert found.trials_a == 29
    for more in range(5):
        assert power_of_rates(0.56, 0.92, 29 + more, 29 + more) >= 0.9
    assert power_of_rates(0.56, 0.92, 28, 28) < 0.9
    unequal = trials_for_rates(0.56, 0.92, ratio=2)
    assert unequal.trials_b == 2 * unequal.trials_a
    assert unequal.trials_a < 29 < unequal.trials_a + unequal.trials_b


def test_pairs_that_differ_are_added_up():
    random = np.random.default_rng(1)
    hits = 0
    for both, only_a, only_b, neither in random.multinomial(40, [0.4, 0.3, 0.1, 0.2], 600):
        hits += mcnemar(PairedCounts(both=both, only_a=only_a, only_b=only_b, neither=neither)) <= 0.05
    assert power_of_pairs(0.3, 0.1, 40) == pytest.approx(hits / 600, abs=0.06)
    found = trials_for_pairs(0.3, 0.05)
    assert power_of_pairs(0.3, 0.05, found.trials_a) >= 0.9 > power_of_pairs(0.3, 0.05, found.trials_a - 1)


def test_equivalence_needs_trials_too():
    passed = equivalence_p_values(25, 25, margin=0.3) <= 0.05
    assert power_of_equivalence(0.8, 0.8, 25, 25, margin=0.3) == pytest.approx(
        table_chances(25, 25, 0.8, 0.8)[passed].sum(), abs=1e-9
    )
    found = trials_for_equivalence(0.9, 0.9, margin=0.25)
    assert found.power >= 0.9
    assert found.trials_a > 20


def test_the_sequential_test_is_timed():
    found = sequential_power(0.56, 0.92, most=200, alternative="less")
    assert found.decided == 1.0
    assert found.mean == pytest.approx(25.1, abs=1.0)
    assert found.quantile(0.5) <= found.quantile(0.9)


def test_impossible_wishes_are_named():
    with pytest.raises(InputError, match="do not differ, so no number of trials shows a difference"):
        trials_for_rates(0.5, 0.5)
    with pytest.raises(InputError, match=r"About 4\d\d trials of each would be needed"):
        trials_for_rates(0.6, 0.7)
    with pytest.raises(InputError, match=r"differ by 0\.1 or more"):
        trials_for_equivalence(0.5, 0.8, margin=0.1)
    with pytest.raises(InputError, match="Write 60 % as 0.6"):
        trials_for_rates(60, 92)
    with pytest.raises(InputError, match="two-sided only"):
        power_of_rates(0.5, 0.8, 10, 10, test="fisher", alternative="greater")
    with pytest.raises(InputError, match="must add up"):
        power_of_pairs(0.7, 0.5, 10)
