"""Measure how often a canary that equals the champion is aborted, and how soon a worse canary is."""

from __future__ import annotations

import numpy as np

from benchmarks.error_rates.gate.worlds import rate
from benchmarks.studies import Study, StudyTable
from twinloop.release.plan import CanaryPlan, compute_canary_wealth
from twinloop.stats import decision_blocks

_PAGE = "evidence/release.md"
_CASES = ((0.9, 0.9), (0.8, 0.8), (0.8, 0.6), (0.8, 0.4), (0.9, 0.6), (0.95, 0.5))
_ACTED = 200  # largest number of canary episodes per run


def _canary(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    for number, (champion, canary) in enumerate(_CASES):
        cells, entry = [f"{champion:g}", f"{canary:g}"], {"champion": champion, "canary": canary}
        for share in (0.1, 0.5):
            plan = CanaryPlan(share=share)
            at = _aborted(
                plan, champion, canary, repetitions, np.random.default_rng([seed, 5, number, int(10 * share)])
            )
            soon = int(((at > 0) & (at <= plan.episodes)).sum())
            late = int((at > 0).sum())
            cells += [rate(soon, repetitions), rate(late, repetitions)]
            cells.append(f"{np.median(at[at > 0]):.0f}" if late > repetitions / 2 else "–")
            entry |= {f"share {share:g}": {"within 50": soon, "within 200": late, "repetitions": repetitions}}
        rows.append(tuple(cells))
        metrics.append(entry)
    return StudyTable(
        title=f"Canaries: share that the sequential test aborts within 50 and within {_ACTED} of their episodes, and "
        f"the median episode of the abort, of {repetitions} runs at α = 5 %",
        head=(
            "champion",
            "canary",
            "share 0.1: of 50",
            f"of {_ACTED}",
            "median",
            "share 0.5: of 50",
            f"of {_ACTED}",
            "median",
        ),
        rows=tuple(rows),
        note="The canaries in the first two rows are as good as the champion: these are false alarms. A violation of "
        "a safety limit aborts at once and is not in this table.",
        metrics=tuple(metrics),
    )


def _aborted(
    plan: CanaryPlan, champion: float, canary: float, runs: int, random: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return the number of the canary's episodes after which each run is aborted, ``(runs,)``; 0 if never."""
    canary_size, champion_size = plan.block_sizes
    canary_outcomes = random.random((runs, _ACTED)) < canary
    champion_outcomes = random.random((runs, _ACTED * champion_size // canary_size)) < champion
    return (
        decision_blocks(compute_canary_wealth(plan, canary_outcomes, champion_outcomes), alpha=plan.alpha) * canary_size
    )


TABLES = (Study(name="canary", page=_PAGE, repetitions=4000, run=_canary),)
