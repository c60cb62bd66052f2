"""How often the gate says yes where it should not: equal policies, looked at all the time, and rules at their edge."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom

from twinloop.loop.gap_study.study import Study, StudyTable
from twinloop.loop.gate_study.worlds import Truth, Won, rate
from twinloop.stats import decision_blocks, log_e_mean, paired_p_values

_PAGE = "release.md"
_PAIRS, _ALPHA = 300, 0.05
_EQUAL = (
    Truth(name="0.5", candidate=(0.5,), champion=(0.5,)),
    Truth(name="0.8", candidate=(0.8,), champion=(0.8,)),
    Truth(name="0.95", candidate=(0.95,), champion=(0.95,)),
    Truth(name="0.8, nothing in common", candidate=(0.8,), champion=(0.8,), together=0.0),
    Truth(name="0.8, nearly all in common", candidate=(0.8,), champion=(0.8,), together=0.95),
    Truth(name="four slices, 0.3 to 0.95", candidate=(0.3, 0.6, 0.8, 0.95), champion=(0.3, 0.6, 0.8, 0.95)),
    Truth(name="four slices, two better, two as much worse", candidate=(0.9, 0.9, 0.5, 0.5), champion=(0.7,) * 4),
)
_MARGIN = 0.1
_EDGES = (
    Truth(name="0.5 against 0.6", candidate=(0.5,), champion=(0.6,)),
    Truth(name="0.7 against 0.8", candidate=(0.7,), champion=(0.8,)),
    Truth(name="0.85 against 0.95", candidate=(0.85,), champion=(0.95,)),
    Truth(name="four slices, one worse by 0.4", candidate=(0.9, 0.9, 0.9, 0.5), champion=(0.9,) * 4),
)


def _equal(repetitions: int, seed: int) -> StudyTable:
    rows, figures = [], []
    for number, truth in enumerate(_EQUAL):
        mine, theirs = truth.draw(np.random.default_rng([seed, 1, number]), repetitions, _PAIRS)
        counts = {
            "e-process, every look": promoted(mine, theirs, 0.0, slices=len(truth.candidate)),
            "exact, one look": exactly(mine, theirs, 0.0),
            "z test, every look": int((_z(mine, theirs)[:, 4:] <= _ALPHA).any(axis=1).sum()),
        }
        rows.append((truth.name, *(rate(count, repetitions) for count in counts.values())))
        figures.append({"truth": truth.name, "repetitions": repetitions, "pairs": _PAIRS, **counts})
    return StudyTable(
        title=f"Equal policies (A/A): how often the gate calls the candidate better, of {repetitions} runs of {_PAIRS} "
        f"pairs at α = {_ALPHA:.0%}",
        head=("success of both", "`looks: any`, stopped at the first yes", "`looks: once`", "z test at every look"),
        rows=tuple(rows),
        note="In brackets the exact interval of 95 %. The last column is what a test that was made for one look does "
        "when it is looked at after every pair.",
        figures=tuple(figures),
    )


def _edges(repetitions: int, seed: int) -> StudyTable:
    rows, figures = [], []
    for number, truth in enumerate(_EDGES):
        random = np.random.default_rng([seed, 2, number])
        mine, theirs = truth.draw(random, repetitions, _PAIRS)
        slices = len(truth.candidate)
        counts = {
            "e-process, every look": promoted(mine, theirs, -_MARGIN, slices=slices),
            "exact, one look": exactly(mine, theirs, -_MARGIN),
            "all slices": every_slice(mine, theirs, slices),
        }
        rows.append((truth.name, *(rate(count, repetitions) for count in counts.values())))
        figures.append({"truth": truth.name, "repetitions": repetitions, "pairs": _PAIRS, **counts})
    return StudyTable(
        title=f"Candidates that are worse by exactly the margin of {100 * _MARGIN:g} points on average: how often the "
        f"gate calls them not worse, of {repetitions} runs of {_PAIRS} pairs",
        head=("success, candidate against champion", "`looks: any`", "`looks: once`", "and in every slice as well"),
        rows=tuple(rows),
        note="The last column adds `slices: 0.1`, which a candidate must pass besides, slice by slice, each at the "
        "whole of α: what is asked of more slices errs less.",
        figures=tuple(figures),
    )


def promoted(mine: Won, theirs: Won, margin: float, *, slices: int) -> int:
    """Runs in which the e-process says yes at any look; there is one whenever all slices have had a turn."""
    return int((stopped(mine, theirs, margin, slices=slices) > 0).sum())


def stopped(mine: Won, theirs: Won, margin: float, *, slices: int = 1, alpha: float = _ALPHA) -> NDArray[np.intp]:
    """After how many pairs each run stops with a yes; 0 for never."""
    off = mine.astype(np.float64) - theirs
    log_e = log_e_mean(off, margin, low=-1.0, high=1.0, alternative="greater", bets="even")
    return decision_blocks(log_e[:, slices - 1 :: slices], alpha=alpha) * slices


def exactly(mine: Won, theirs: Won, margin: float) -> int:
    """Runs in which the exact test of all pairs says yes."""
    only_a, only_b = (mine & ~theirs).sum(axis=1), (theirs & ~mine).sum(axis=1)
    if margin == 0:  # McNemar's, as the gate does
        p_value = binom.sf(only_a - 1, only_a + only_b, 0.5)
    else:
        p_value = paired_p_values(mine.shape[1], difference=margin)[only_a, only_b]
    return int((p_value <= _ALPHA).sum())


def every_slice(mine: Won, theirs: Won, slices: int) -> int:
    """Runs in which all pairs together, and each slice by itself, are shown not to be worse by the margin."""
    passed = stopped(mine, theirs, -_MARGIN, slices=slices) > 0
    for one in range(slices):
        passed &= stopped(mine[:, one::slices], theirs[:, one::slices], -_MARGIN) > 0
    return int(passed.sum())


def _z(a: Won, b: Won) -> NDArray[np.float64]:
    """The one-sided p-value of the pooled z test after each trial."""
    n = np.arange(1, a.shape[1] + 1)
    p_a, p_b = np.cumsum(a, axis=1) / n, np.cumsum(b, axis=1) / n
    pooled = (p_a + p_b) / 2
    return ndtr(-(p_a - p_b) / np.sqrt(np.maximum(2 * pooled * (1 - pooled) / n, 1e-12)))


TABLES = (
    Study(name="gate_equal", page=_PAGE, repetitions=4000, run=_equal),
    Study(name="gate_margin", page=_PAGE, repetitions=4000, run=_edges),
)
