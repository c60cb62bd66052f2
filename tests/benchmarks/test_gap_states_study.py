"""The simulated rates of the tests, in small: relabelling frames errs, relabelling episodes does not."""

from __future__ import annotations

import pytest

from benchmarks.error_rates.gap.distances import TABLES


@pytest.mark.slow
def test_frames_that_are_relabelled_see_a_difference_where_there_is_none():
    false_alarms = next(study for study in TABLES if study.name == "distances_false_alarms")
    table = false_alarms.run(8, 0)
    alike = [row for row in table.metrics if row["alike"] == 0.9]
    for row in alike:
        *right, wrong = row["alarms"].values()
        assert wrong >= 7
        assert max(right) <= 4


@pytest.mark.slow
def test_power_grows_with_episodes_and_intervals_hold_the_truth():
    power, coverage = TABLES[1].run(6, 0), TABLES[2].run(6, 0)
    strong = [row["seen"]["MMD"] for row in power.metrics if row["planted"].endswith("+ 1 sd")]
    assert strong[0] <= strong[1]
    assert strong[1] >= 4
    assert min(min(row["held"]) for row in coverage.metrics) >= 3
