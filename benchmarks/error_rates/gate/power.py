"""Measure how many pairs of trials the gate needs to promote a better candidate, and how often it succeeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.error_rates.gate.worlds import Truth, Won
from benchmarks.studies import Study, StudyTable, share
from twinloop.release.rules_effect import compare_pairs, log_wealth
from twinloop.stats import decision_blocks

_PAGE = "evidence/release.md"
_ALPHA = 0.05
_MOST = 1500  # pairs at which a run gives up


@dataclass(frozen=True, kw_only=True)
class _Planted:
    """A better candidate and its champion.

    ``fixed`` is the number of trials per arm that a one-sided 5 % test of fixed size needs for a power of 80 %.
    """

    champion: float
    candidate: float
    fixed: int
    before: int | None = None


# ``fixed``: trials per arm of two independent arms, by the normal approximation with unequal variances, as in standard
# tables of sample sizes. ``before``: median of an earlier simulation of the same e-process with independent trials.
_BETTER = (
    _Planted(champion=0.5, candidate=0.6, fixed=305),
    _Planted(champion=0.5, candidate=0.7, fixed=74, before=69),
    _Planted(champion=0.7, candidate=0.8, fixed=231, before=236),
    _Planted(champion=0.7, candidate=0.85, fixed=95, before=94),
    _Planted(champion=0.8, candidate=0.9, fixed=157, before=149),
    _Planted(champion=0.9, candidate=0.95, fixed=343),
)


def _better(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    for number, case in enumerate(_BETTER):
        cells = [f"{case.champion:g} → {case.candidate:g}", str(case.fixed)]
        entry: dict[str, object] = {"champion": case.champion, "candidate": case.candidate, "fixed": case.fixed}
        for together in (0.0, 0.5, 0.9):
            truth = Truth(name="", candidate=(case.candidate,), champion=(case.champion,), together=together)
            random = np.random.default_rng([seed, 3, number, int(10 * together)])
            candidate_outcomes, champion_outcomes = truth.draw(random, repetitions, _MOST)
            at = stopping_pairs(candidate_outcomes, champion_outcomes, 0.0)
            ended = np.where(at > 0, at, _MOST)
            median, ninth = np.quantile(ended, [0.5, 0.9])
            cells.append(f"{median:.0f}, {ninth:.0f}")
            if together == 0.0:
                within = int(((at > 0) & (at <= case.fixed)).sum())
                once = count_fixed_passes(candidate_outcomes[:, : case.fixed], champion_outcomes[:, : case.fixed])
                entry |= {"before": case.before, "within": within, "once": once, "repetitions": repetitions}
                cells += [share(within, repetitions), share(once, repetitions)]
            entry[f"together {together:g}"] = {"median": float(median), "nine of ten": float(ninth)}
        rows.append(tuple(cells))
        metrics.append(entry)
    return StudyTable(
        title=f"Better candidates: pairs until `better: 0` passes, median and 90 % quantile of {repetitions} runs",
        head=(
            "champion → candidate",
            "trials per arm for 80 %, fixed, unpaired",
            "nothing in common",
            "passes within that many pairs",
            "passes with `looks: once` at that number",
            "half in common",
            "nearly all in common",
        ),
        rows=tuple(rows),
        note="An earlier simulation of this e-process with independent trials had medians of 69 (0.5 → 0.7), 236 "
        "(0.7 → 0.8), 94 (0.7 → 0.85), 149 (0.8 → 0.9). Shared seeds correlate the two trials of a pair, which saves "
        "trials.",
        metrics=tuple(metrics),
    )


def _as_good(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    for number, p in enumerate((0.5, 0.8, 0.95)):
        for margin in (0.05, 0.1):
            cells = [f"{p:g}", f"{100 * margin:g} points"]
            entry: dict[str, object] = {"rate": p, "margin": margin}
            for together in (0.0, 0.5, 0.9):
                truth = Truth(name="", candidate=(p,), champion=(p,), together=together)
                random = np.random.default_rng([seed, 4, number, int(100 * margin), int(10 * together)])
                at = stopping_pairs(*truth.draw(random, repetitions, _MOST), -margin)
                median = float(np.median(np.where(at > 0, at, _MOST)))
                cells.append(f"{median:.0f}" if median < _MOST else f"more than {_MOST}")
                entry[f"together {together:g}"] = {"median": median, "never": int((at == 0).sum())}
            rows.append(tuple(cells))
            metrics.append(entry)
    return StudyTable(
        title=f"Candidates that are as good: pairs until `within` passes, median of {repetitions} runs",
        head=("success of both", "margin", "nothing in common", "half in common", "nearly all in common"),
        rows=tuple(rows),
        metrics=tuple(metrics),
    )


def stopping_pairs(candidate_outcomes: Won, champion_outcomes: Won, margin: float) -> NDArray[np.intp]:
    """Return the number of pairs after which each run of ``looks: any`` passes (one slice), ``(runs,)``; 0 if never."""
    looks = np.arange(1, candidate_outcomes.shape[1] + 1)
    return decision_blocks(
        log_wealth(candidate_outcomes.astype(np.float64) - champion_outcomes, margin, looks), alpha=_ALPHA
    )


def count_fixed_passes(candidate_outcomes: Won, champion_outcomes: Won) -> int:
    """Count the runs that pass with ``looks: once`` after all pairs."""
    slices = [""] * candidate_outcomes.shape[1]
    return sum(
        compare_pairs(a, b, slices, margin=0.0, alpha=_ALPHA, looks="once").answer == "shown"
        for a, b in zip(candidate_outcomes, champion_outcomes, strict=True)
    )


TABLES = (
    Study(name="gate_power", page=_PAGE, repetitions=500, run=_better),
    Study(name="gate_as_good", page=_PAGE, repetitions=300, run=_as_good),
)
