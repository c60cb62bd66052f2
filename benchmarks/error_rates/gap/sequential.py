"""Measure tests that are evaluated after every pair of trials: false alarms, and trials until a decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from benchmarks.studies import Study, StudyTable, share
from twinloop.stats import decision_blocks, log_e_rates, log_e_scores

_PAGE = "evidence/compare_policies.md"
_LOOKS = 200


@dataclass(frozen=True, kw_only=True)
class _Published:
    """A comparison with published trial counts of four methods: SAVI, Lai, STEP and the oracle SPRT.

    ``rates`` are the success rates of the baseline and of the better policy. Source: table of results of Snyder et al.,
    "Is your imitation learning policy better than mine? Policy comparison with near-optimal stopping" (arXiv
    2503.10966).
    """

    task: str
    rates: tuple[float, float]
    alpha: float
    most: int
    savi: int
    lai: int
    step: int
    oracle: int


_STEP = (
    _Published(task="FoldRedTowel", rates=(0.56, 0.92), alpha=0.05, most=200, savi=20, lai=20, step=21, oracle=17),
    _Published(task="CleanUpSpill", rates=(0.3, 0.76), alpha=0.05, most=200, savi=22, lai=24, step=22, oracle=17),
    _Published(task="SpoonOnTowel", rates=(0.084, 0.386), alpha=0.01, most=500, savi=33, lai=35, step=33, oracle=26),
    _Published(
        task="EggplantInBasket", rates=(0.4, 0.564), alpha=0.01, most=500, savi=192, lai=123, step=119, oracle=128
    ),
    _Published(task="StackCube", rates=(0.0, 0.03), alpha=0.01, most=500, savi=329, lai=403, step=199, oracle=135),
)


def _peeking(repetitions: int, seed: int) -> StudyTable:
    random = np.random.default_rng([seed, 1])
    rows, metrics = [], []
    for p in (0.05, 0.3, 0.5, 0.9):
        a, b = (random.random((repetitions, _LOOKS)) < p for _ in range(2))
        counts = {
            "e-test": _alarms(log_e_rates(a, b)),
            "e-test, one-sided": _alarms(log_e_rates(a, b, alternative="greater")),
            "betting": _alarms(log_e_scores(a, b)),
            "z test at every look": int(_z_alarms(a, b).sum()),
        }
        rows.append((f"success at {p:g}", *(share(count, repetitions) for count in counts.values())))
        metrics.append({"rate": p, "repetitions": repetitions, **counts})
    samples: dict[str, Callable[[], NDArray[np.float64]]] = {
        "even scores": lambda: random.uniform(size=(repetitions, _LOOKS)),
        "scores near 1": lambda: random.beta(8, 1, size=(repetitions, _LOOKS)),
    }
    for name, sample in samples.items():
        count = _alarms(log_e_scores(sample(), sample()))
        rows.append((name, "–", "–", share(count, repetitions), "–"))
        metrics.append({"scores": name, "repetitions": repetitions, "betting": count})
    return StudyTable(
        title=f"False alarms at α = 5 % if two equal policies are compared after each of {_LOOKS} pairs",
        head=("truth", "e-test", "e-test, one-sided", "betting on differences", "z test at every look"),
        rows=tuple(rows),
        note=f"{repetitions} sequences each. The last column is a test for a single look, repeated at every look.",
        metrics=tuple(metrics),
    )


def _alarms(log_e: NDArray[np.float64]) -> int:
    return int((decision_blocks(log_e) > 0).sum())


def _z_alarms(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether the two-sided z test with pooled variance finds a difference at any look from the fifth on."""
    n = np.arange(1, a.shape[1] + 1)
    p_a, p_b = np.cumsum(a, axis=1) / n, np.cumsum(b, axis=1) / n
    pooled = (p_a + p_b) / 2
    error = np.sqrt(np.maximum(2 * pooled * (1 - pooled) / n, 1e-12))
    return ((2 * ndtr(-np.abs(p_a - p_b) / error) <= 0.05) & (n >= 5)).any(axis=1)


def _decisions(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    for number, case in enumerate(_STEP):
        random = np.random.default_rng([seed, 2, number])
        worse, better = (random.random((repetitions, case.most)) < p for p in case.rates)
        cells: list[str] = []
        entry: dict[str, object] = {"task": case.task, "repetitions": repetitions}
        for name, log_e in (
            ("γ = 1/2", log_e_rates(better, worse, alternative="greater")),
            ("γ = 1", log_e_rates(better, worse, alternative="greater", gamma=1.0)),
            ("betting", log_e_scores(better, worse, alternative="greater")),
        ):
            at = decision_blocks(log_e, alpha=case.alpha)
            ended = np.where(at > 0, at, case.most)
            low, middle, high = np.quantile(ended, [0.1, 0.5, 0.9])
            late = float((at == 0).mean())
            cells.append(
                f"{ended.mean():.0f}, {middle:.0f} ({low:.0f}–{high:.0f})" + (f", {100 * late:.1f} % not" * (late > 0))
            )
            entry[name] = {"mean": float(ended.mean()), "median": float(middle), "undecided": late}
        published = (case.savi, case.lai, case.step, case.oracle)
        rates = f"{case.rates[0]:g} → {case.rates[1]:g}"
        rows.append((case.task, rates, f"{case.alpha:g}, {case.most}", *cells, *map(str, published)))
        metrics.append(entry)
    return StudyTable(
        title="Pairs of trials until one-sided tests decide, on sequences simulated at published success rates",
        head=(
            "task", "rates", "α, largest number", "e-test, γ = 1/2", "e-test, γ = 1", "betting on differences",
            "SAVI", "Lai", "STEP", "oracle SPRT",
        ),
        rows=tuple(rows),
        note=f"Our columns have mean and median (10 %–90 % quantiles) of {repetitions} sequences; a sequence without "
        "a decision counts with the largest number. The last four columns are published in STEP's own table (arXiv "
        "2503.10966). Its rows of real robots (FoldRedTowel, CleanUpSpill) are of the recorded sequences and may be "
        "anywhere within our range. The e-test is the method of the column SAVI. STEP and the oracle need the "
        "largest number of trials in advance, the oracle also both rates.",
        metrics=tuple(metrics),
    )  # fmt: skip


def _simultaneous_coverage(repetitions: int, seed: int) -> StudyTable:
    """Measure the simultaneous coverage of confidence sequences at all looks.

    A sequence covers the true difference at all looks exactly if the e-process for that difference never rejects it.
    """
    random = np.random.default_rng([seed, 3])
    rows, metrics = [], []
    for p_a, p_b in ((0.5, 0.5), (0.9, 0.4), (0.08, 0.03), (0.97, 0.9)):
        a, b = (random.random((repetitions, _LOOKS)) < p for p in (p_a, p_b))
        covered = [repetitions - _alarms(log_e(a, b, difference=p_a - p_b)) for log_e in (log_e_rates, log_e_scores)]
        rows.append((f"{p_a:g}, {p_b:g}", *(share(count, repetitions) for count in covered)))
        metrics.append({"p": [p_a, p_b], "repetitions": repetitions, "rates": covered[0], "betting": covered[1]})
    return StudyTable(
        title=f"95 % confidence sequences of p_a − p_b that cover it at each of {_LOOKS} looks",
        head=("success rates", "e-test", "betting on differences"),
        rows=tuple(rows),
        note=f"{repetitions} sequences each.",
        metrics=tuple(metrics),
    )


TABLES: tuple[Study, ...] = (
    Study(name="sequential-peeking", page=_PAGE, repetitions=4000, run=_peeking),
    Study(name="sequential-coverage", page=_PAGE, repetitions=3000, run=_simultaneous_coverage),
    Study(name="sequential-decisions", page=_PAGE, repetitions=2000, run=_decisions),
)
