"""Measure tests that compare two policies after a fixed number of trials: error rates, power and interval coverage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies import Study, StudyTable, share
from twinloop.stats import (
    ContingencyTable,
    bootstrap_of_means,
    bounded_difference,
    difference_interval,
    equivalent_means,
    permutation_of_means,
    welch_test,
)
from twinloop.stats.equivalence import equivalence_p_values, rejected_tables
from twinloop.stats.two_by_two import exact_p_values, fisher_p_values, table_chances

_PAGE = "evidence/compare_policies.md"
_RATES = (0.05, 0.2, 0.5, 0.9)
_SIZES = ((10, 10), (20, 20), (50, 50), (15, 40))
_PAIRS = ((0.9, 0.5), (0.56, 0.92), (0.3, 0.76), (0.1, 0.02))  # two of them published success rates


def _errors(repetitions: int, seed: int) -> StudyTable:
    """Compute false-positive rates exactly as sums over all outcomes; ``repetitions`` and ``seed`` have no effect."""
    del repetitions, seed
    rows, metrics = [], []
    for n, m in _SIZES:
        tests = {
            "Barnard": rejected_tables(n, m, alpha=0.05),
            "Fisher": fisher_p_values(n, m) <= 0.05,
            "equivalence within 0.2": equivalence_p_values(n, m, margin=0.2) <= 0.05,
        }
        for name, rejected in tests.items():
            shift = 0.2 if name.startswith("equivalence") else 0.0
            chance = [
                float(table_chances(n, m, min(p + shift, 1.0), p)[rejected].sum()) for p in (0.05, 0.2, 0.5, 0.75)
            ]
            worst = max(
                float(table_chances(n, m, p, p - shift)[rejected].sum()) for p in np.linspace(max(shift, 0.0), 1, 101)
            )
            rows.append((name, f"{n}, {m}", *(f"{100 * c:.2f}" for c in chance), f"{100 * worst:.2f}"))
            metrics.append({"test": name, "trials": [n, m], "rates": chance, "worst": worst})
    return StudyTable(
        title="False positives at α = 5 %, in %: with p_b = p_a; for equivalence with p_a = p_b + 0.2",
        head=("test", "trials", "p_b = 0.05", "0.2", "0.5", "0.75", "largest of 101 rates"),
        rows=tuple(rows),
        note="Computed exactly as a sum over all outcomes. None exceeds 5 %.",
        metrics=tuple(metrics),
    )


def _power(repetitions: int, seed: int) -> StudyTable:
    del repetitions, seed
    rows, metrics = [], []
    for p_a, p_b in _PAIRS:
        for n in (10, 20, 30, 50):
            chance = table_chances(n, n, p_a, p_b)
            powers = [
                float(chance[rejected].sum())
                for rejected in (rejected_tables(n, n, alpha=0.05), fisher_p_values(n, n) <= 0.05)
            ]
            rows.append((f"{p_a:g}, {p_b:g}", str(n), *(f"{100 * c:.1f}" for c in powers)))
            metrics.append({"p": [p_a, p_b], "trials": n, "barnard": powers[0], "fisher": powers[1]})
    return StudyTable(
        title="Power at α = 5 %, in %",
        head=("success rates", "trials per policy", "Barnard", "Fisher"),
        rows=tuple(rows),
        note="Exact, by adding up every outcome.",
        metrics=tuple(metrics),
    )


def _coverage(repetitions: int, seed: int) -> StudyTable:
    """Compute the coverage of intervals of a difference of two success rates, exactly except for rounding."""
    del repetitions, seed
    rows, metrics = [], []
    for n in (5, 10, 20, 50):
        for p_a, p_b in ((0.5, 0.5), (0.9, 0.5), (0.05, 0.02), (0.98, 0.9)):
            chance = table_chances(n, n, p_a, p_b)
            counts = [(int(a), int(b)) for a, b in np.argwhere(chance > 1e-6)]
            coverage: dict[str, float] = {}
            for method in ("newcombe", "agresti-caffo", "clopper-pearson"):
                coverage[method] = sum(
                    float(chance[a, b]) for a, b in counts if _interval_covers(n, a, b, p_a - p_b, method)
                )
            accepted = [
                exact_p_values(n, n, difference=p_a - p_b, alternative=side) > 0.025 for side in ("greater", "less")
            ]
            coverage["chan-zhang"] = float(chance[accepted[0] & accepted[1]].sum())
            rows.append((f"{p_a:g}, {p_b:g}", str(n), *(f"{100 * value:.1f}" for value in coverage.values())))
            metrics.append({"p": [p_a, p_b], "trials": n, **coverage})
    return StudyTable(
        title="Coverage of 95 % intervals of p_a − p_b, in %",
        head=("success rates", "trials per policy", "Newcombe", "Agresti–Caffo", "two Clopper–Pearson", "Chan–Zhang"),
        rows=tuple(rows),
        note="Computed exactly as a sum over all outcomes. Intervals of Newcombe and of Agresti and Caffo cover "
        "about 95 % on average and less in some rows; the other two never cover less.",
        metrics=tuple(metrics),
    )


def _interval_covers(n: int, a: int, b: int, truth: float, method: Any) -> bool:
    table = ContingencyTable(successes_a=a, trials_a=n, successes_b=b, trials_b=n)
    return bool(difference_interval(table, method=method).covers(truth))


_DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "even": lambda random, n: random.uniform(size=n),
    "near 1": lambda random, n: random.beta(8, 1, size=n),
    "0 or progress": lambda random, n: np.where(random.random(n) < 0.5, 0.0, random.beta(4, 2, size=n)),
}


def _scores(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    for name, sample in _DISTRIBUTIONS.items():
        for n in (5, 10, 20):
            counts = _score_counts(sample, n, repetitions, np.random.default_rng([seed, n]), seed)
            rows.append((name, str(n), *(share(count, repetitions) for count in counts.values())))
            metrics.append({"scores": name, "trials": n, "repetitions": repetitions, **counts})
    return StudyTable(
        title="Scores of two equal policies: false positives at 5 %, and coverage of 95 % intervals of the difference",
        head=(
            "scores", "trials per policy", "permutation", "Welch's t", "equivalence at the edge of the margin, 0.1",
            "bootstrap covers", "betting covers",
        ),
        rows=tuple(rows),
        note=f"{repetitions} repetitions. The t tests and the bootstrap are approximate for few trials. The "
        "permutation test is exact here. Betting is valid for any number of trials.",
        metrics=tuple(metrics),
    )  # fmt: skip


def _score_counts(
    sample: Callable[[np.random.Generator, int], NDArray[np.float64]],
    n: int,
    repetitions: int,
    random: np.random.Generator,
    seed: int,
) -> dict[str, int]:
    counts: dict[str, int] = dict.fromkeys(("permutation", "welch", "equivalence", "bootstrap", "betting"), 0)
    for number in range(repetitions):
        a, b = sample(random, n), sample(random, n)
        counts["permutation"] += permutation_of_means(a, b, draws=199, seed=seed + number) <= 0.05
        counts["welch"] += bool(welch_test(a, b).p_value <= 0.05)
        counts["equivalence"] += equivalent_means(a + 0.1, b, margin=0.1).p_value <= 0.05
        counts["bootstrap"] += bool(bootstrap_of_means(a, b, draws=399, seed=seed + number).covers(0.0))
        counts["betting"] += bool(bounded_difference(a, b).covers(0.0))
    return counts


TABLES: tuple[Study, ...] = (
    Study(name="comparison-errors", page=_PAGE, repetitions=1, run=_errors),
    Study(name="comparison-power", page=_PAGE, repetitions=1, run=_power),
    Study(name="comparison-coverage", page=_PAGE, repetitions=1, run=_coverage),
    Study(name="comparison-scores", page=_PAGE, repetitions=400, run=_scores),
)
