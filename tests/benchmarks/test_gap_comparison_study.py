"""The comparison studies at small size: errors within α, penalty for repeated looks, promised coverage."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.error_rates.gap import comparison, estimate, sequential

DOCS = Path(__file__).parents[2] / "docs"


def run(tables, name, repetitions):
    return next(study for study in tables if study.name == name).run(repetitions, 0).metrics


def test_no_exact_test_exceeds_alpha():
    for row in run(comparison.TABLES, "comparison-errors", 1):
        assert max(row["worst"], *row["rates"]) <= 0.05 + 1e-4


def test_exact_intervals_cover_everywhere():
    for row in run(comparison.TABLES, "comparison-coverage", 1):
        assert min(row["clopper-pearson"], row["chan-zhang"]) >= 0.95 - 1e-3
        assert min(row["newcombe"], row["agresti-caffo"]) >= 0.93


def test_peeking_costs_the_z_test_its_level_and_not_the_e_test():
    for row in run(sequential.TABLES, "sequential-peeking", 300):
        for name in ("e-test", "e-test, one-sided", "betting"):
            assert row.get(name, 0) <= 0.05 * 300
        assert row.get("z test at every look", 300) > 0.15 * 300
    for row in run(sequential.TABLES, "sequential-coverage", 200):
        assert min(row["rates"], row["betting"]) >= 0.95 * 200


def test_decisions_fall_near_published_ones():
    found = {row["task"]: row["γ = 1/2"] for row in run(sequential.TABLES, "sequential-decisions", 200)}
    assert 18 <= found["FoldRedTowel"]["median"] <= 26  # SAVI: 20 pairs
    assert 280 <= found["StackCube"]["median"] <= 345  # SAVI: 329


@pytest.mark.slow
def test_finite_sample_intervals_cover_and_asymptotic_ones_do_not():
    for row in run(estimate.TABLES, "estimate-coverage", 60):
        assert row["covered"]["exact"] >= 0.88 * 60
        assert row["covered"]["betting"] >= 0.88 * 60
        if row["case"][0] > 0.9 and row["pairs"] <= 10:
            assert row["covered"]["ppi++"] < 0.6 * 60


@pytest.mark.parametrize("area", [comparison, sequential, estimate])
def test_every_table_stands_in_its_page(area):
    for study in area.TABLES:
        text = (DOCS / study.page).read_text()
        _, begin, rest = text.partition(f"<!-- benchmarks gap {study.name}: begin -->")
        assert begin
        assert rest.partition("<!-- benchmarks gap")[0].count("|") > 20
