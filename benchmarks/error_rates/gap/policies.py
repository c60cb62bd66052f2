"""Measure false alarms, coverage and power of the tests of the policies gap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies import Study, StudyTable, share
from twinloop.core.seeds import generator
from twinloop.stats import ContingencyTable, difference_interval, holm, mantel_haenszel
from twinloop.stats.matched_trials import stratified_difference, stratified_permutation
from twinloop.stats.two_by_two import exact_p_values

Array = NDArray[np.float64]
CONDITIONS, ALPHA, TRIALS = 5, 0.05, (10, 25, 60)
_MOST = 600  # largest number of repetitions of permutation tests
_PERMUTATIONS = 199  # permutations in the study: enough for a level of 1 %


def _alarms(repetitions: int, seed: int) -> StudyTable:
    """Measure how often any of five conditions is named although none differs, and the coverage of intervals."""
    rng = generator(seed, "study/policies/alarms")
    rows, metrics = [], []
    for rate in (0.6, 0.9):
        for trials in TRIALS:
            counts = rng.binomial(trials, rate, size=(repetitions, CONDITIONS, 2))
            alarms = int(np.sum(_rejections(counts, trials).any(axis=1)))
            newcombe, pooled = _count_covered(counts, trials, 0.0)
            few = min(repetitions, _MOST)
            scores = sum(_score_alarm(rate, trials, rng) for _ in range(few))
            cells = (share(alarms, repetitions), share(newcombe, repetitions), share(pooled, repetitions))
            rows.append((f"{rate:g}", str(trials), *cells, share(scores, few)))
            metrics.append({"rate": rate, "trials": trials, "any_alarm": alarms / repetitions})
    return StudyTable(
        title=f"Success: probability of a false alarm among {CONDITIONS} conditions at 5 %, coverage of 95 % intervals",
        head=("rate", "trials", "any alarm", "Newcombe, one condition", "Mantel–Haenszel, all", "any alarm, scores"),
        rows=tuple(rows),
        note=f"{repetitions} repetitions; scores (Beta-distributed progress, permutations): {min(repetitions, _MOST)}.",
        metrics=tuple(metrics),
    )


def _power(repetitions: int, seed: int) -> StudyTable:
    """Measure how often the only different condition of five is named, and how often another one."""
    rng = generator(seed, "study/policies/power")
    rows, metrics = [], []
    for gap in (0.2, 0.4):
        for trials in TRIALS:
            rates = np.full((CONDITIONS, 2), 0.5)
            rates[0, 0] += gap
            counts = rng.binomial(trials, rates, size=(repetitions, CONDITIONS, 2))
            rejected = _rejections(counts, trials)
            named, wrong = int(rejected[:, 0].sum()), int(rejected[:, 1:].any(axis=1).sum())
            rows.append((f"{gap:g}", str(trials), share(named, repetitions), share(wrong, repetitions)))
            metrics.append({"gap": gap, "trials": trials, "named": named / repetitions, "wrong": wrong / repetitions})
    return StudyTable(
        title=f"Success: probability that the only one of {CONDITIONS} conditions with a difference is named",
        head=("planted difference", "trials per condition and domain", "named", "another is named"),
        rows=tuple(rows),
        note=f"Real rate 0.5 in every condition; {repetitions} repetitions; Barnard's test with Holm's adjustment.",
        metrics=tuple(metrics),
    )


def _rejections(counts: NDArray[np.int64], trials: int) -> NDArray[np.bool_]:
    """Return which conditions Holm's step-down test names, ``(repetitions, conditions)``."""
    p_values = exact_p_values(trials, trials)[counts[..., 0], counts[..., 1]]
    return np.array([holm(row) for row in p_values]) <= ALPHA


def _count_covered(counts: NDArray[np.int64], trials: int, truth: float) -> tuple[int, int]:
    newcombe = pooled = 0
    for row in counts:
        tables = [
            ContingencyTable(successes_a=int(a), trials_a=trials, successes_b=int(b), trials_b=trials) for a, b in row
        ]
        newcombe += bool(difference_interval(tables[0]).covers(truth))
        pooled += bool(mantel_haenszel(tables).covers(truth))
    return newcombe, pooled


def _score_alarm(rate: float, trials: int, rng: np.random.Generator) -> bool:
    scores = rng.beta(2 * rate, 2 * (1 - rate), size=(CONDITIONS, 2, trials))
    p_values = [
        stratified_permutation([(pair[0], pair[1])], draws=_PERMUTATIONS, seed=int(rng.integers(1 << 31)))
        for pair in scores
    ]
    return bool((holm(p_values) <= ALPHA).any())


def _scores(repetitions: int, seed: int) -> StudyTable:
    """Measure the coverage of the interval of a difference of scores, within conditions of different difficulty."""
    rng = generator(seed, "study/policies/scores")
    rows = []
    for shape, word in ((2.0, "spread"), (0.4, "mostly 0 or 1")):
        for trials in (3, *TRIALS):
            covered = np.zeros(2, dtype=np.int64)
            for _ in range(repetitions):
                means = rng.uniform(0.2, 0.8, size=CONDITIONS)
                strata = [tuple(rng.beta(shape * m, shape * (1 - m), size=(2, trials))) for m in means]
                covered += [bool(stratified_difference(part).covers(0.0)) for part in ([strata[0]], strata)]
            rows.append((word, str(trials), share(int(covered[0]), repetitions), share(int(covered[1]), repetitions)))
    return StudyTable(
        title="Scores: coverage of the 95 % interval of a difference",
        head=("scores", "trials", "one condition (Welch)", f"{CONDITIONS} conditions"),
        rows=tuple(rows),
        note=f"Beta-distributed scores without a gap, {repetitions} repetitions.",
    )


PAGE = "evidence/compare_policies.md"
TABLES: tuple[Study, ...] = (
    Study(name="policies_alarms", page=PAGE, repetitions=2000, run=_alarms),
    Study(name="policies_power", page=PAGE, repetitions=2000, run=_power),
    Study(name="policies_scores", page=PAGE, repetitions=1000, run=_scores),
)
