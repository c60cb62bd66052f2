"""How many pairs the gate takes to promote what is better, and how often it does within a budget."""

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
    """A better candidate, with the trials per arm that a fixed one-sided test of 5 % needs for a power of 80 %."""

    champion: float
    candidate: float
    fixed: int
    before: int | None = None


# Trials per arm of two independent arms: normal approximation with unequal variances, as any table of sample sizes has
# them. ``before``: the median that an earlier simulation of the same e-process with independent trials gave.
_BETTER = (
    _Planted(champion=0.5, candidate=0.6, fixed=305),
    _Planted(champion=0.5, candidate=0.7, fixed=74, before=69),
    _Planted(champion=0.7, candidate=0.8, fixed=231, before=236),
    _Planted(champion=0.7, candidate=0.85, fixed=95, before=94),
    _Planted(champion=0.8, candidate=0.9, fixed=157, before=149),
    _Planted(champion=0.9, candidate=0.95, fixed=343),
)


def _better(repetitions: int, seed: int) -> StudyTable:
    rows, figures = [], []
    for number, case in enumerate(_BETTER):
        cells = [f"{case.champion:g} → {case.candidate:g}", str(case.fixed)]
        entry: dict[str, object] = {"champion": case.champion, "candidate": case.candidate, "fixed": case.fixed}
        for together in (0.0, 0.5, 0.9):
            truth = Truth(name="", candidate=(case.candidate,), champion=(case.champion,), together=together)
            random = np.random.default_rng([seed, 3, number, int(10 * together)])
            mine, theirs = truth.draw(random, repetitions, _MOST)
            at = stopped(mine, theirs, 0.0)
            ended = np.where(at > 0, at, _MOST)
            median, ninth = np.quantile(ended, [0.5, 0.9])
            cells.append(f"{median:.0f}, {ninth:.0f}")
            if together == 0.0:
                within = int(((at > 0) & (at <= case.fixed)).sum())
                once = exactly(mine[:, : case.fixed], theirs[:, : case.fixed])
                entry |= {"before": case.before, "within": within, "once": once, "repetitions": repetitions}
                cells += [share(within, repetitions), share(once, repetitions)]
            entry[f"together {together:g}"] = {"median": float(median), "nine of ten": float(ninth)}
        rows.append(tuple(cells))
        figures.append(entry)
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
        figures=tuple(figures),
    )


def _as_good(repetitions: int, seed: int) -> StudyTable:
    rows, figures = [], []
    for number, p in enumerate((0.5, 0.8, 0.95)):
        for margin in (0.05, 0.1):
            cells = [f"{p:g}", f"{100 * margin:g} points"]
            entry: dict[str, object] = {"rate": p, "margin": margin}
            for together in (0.0, 0.5, 0.9):
                truth = Truth(name="", candidate=(p,), champion=(p,), together=together)
                random = np.random.default_rng([seed, 4, number, int(100 * margin), int(10 * together)])
                at = stopped(*truth.draw(random, repetitions, _MOST), -margin)
                median = float(np.median(np.where(at > 0, at, _MOST)))
                cells.append(f"{median:.0f}" if median < _MOST else f"more than {_MOST}")
                entry[f"together {together:g}"] = {"median": median, "never": int((at == 0).sum())}
            rows.append(tuple(cells))
            figures.append(entry)
    return StudyTable(
        title=f"Candidates that are as good: pairs until `within` passes, median of {repetitions} runs",
        head=("success of both", "margin", "nothing in common", "half in common", "nearly all in common"),
        rows=tuple(rows),
        figures=tuple(figures),
    )


def stopped(mine: Won, theirs: Won, margin: float) -> NDArray[np.intp]:
    """After how many pairs of one slice each run of `looks: any` stops with a yes; 0 for never."""
    looks = np.arange(1, mine.shape[1] + 1)
    return decision_blocks(log_wealth(mine.astype(np.float64) - theirs, margin, looks), alpha=_ALPHA)


def exactly(mine: Won, theirs: Won) -> int:
    """Runs to which `looks: once` says yes after all pairs."""
    slices = [""] * mine.shape[1]
    return sum(
        compare_pairs(a, b, slices, margin=0.0, alpha=_ALPHA, looks="once").answer == "shown"
        for a, b in zip(mine, theirs, strict=True)
    )


TABLES = (
    Study(name="gate_power", page=_PAGE, repetitions=500, run=_better),
    Study(name="gate_as_good", page=_PAGE, repetitions=300, run=_as_good),
)
