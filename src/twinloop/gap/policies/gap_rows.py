"""Compare real with simulated trials of one group: difference, interval and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.plain import JsonRecord
from twinloop.core.trials import Measure, Trials, pair_trials
from twinloop.gap.policies.paired_trials import count_pairs, success_table
from twinloop.stats import (
    Interval,
    difference_interval,
    exact_p_value,
    fisher,
    mantel_haenszel,
    mcnemar,
    paired_difference_interval,
    stratified_exact,
)
from twinloop.stats.matched_trials import paired_scores, stratified_difference, stratified_permutation

Group = Literal["overall", "policy", "condition", "cell"]
_MOST_TABLES = 40_000  # product of two sample sizes for which Barnard's test takes a tenth of a second


@dataclass(frozen=True, kw_only=True)
class TrialCell:
    """The trials of one policy, task and condition in both domains: values ``real`` ``(n,)`` and ``sim`` ``(m,)``."""

    policy: str
    task: str
    condition: str
    real: NDArray[np.float64]
    sim: NDArray[np.float64]
    pairs: tuple[NDArray[np.float64], NDArray[np.float64]] | None

    @property
    def condition_name(self) -> str:
        """Task and condition as one text; ``all`` if neither has a name."""
        return "/".join(part for part in (self.task, self.condition) if part) or "all"


@dataclass(frozen=True, kw_only=True)
class GapRow(JsonRecord):
    """Simulated − real of one group of trials: means over all trials, and the difference within conditions.

    ``p_holm`` is adjusted over the rows of its kind. ``contribution`` is the part of the overall difference that a
    condition adds (they sum to it); NaN for other groups. ``note`` is a limit of the table.
    """

    group: Group
    name: str
    real: float
    sim: float
    trials_real: int
    trials_sim: int
    difference: Interval
    p_value: float
    test: str
    p_holm: float = np.nan
    contribution: float = np.nan
    note: str = ""


def group_trials(trials: Trials, measure: Measure) -> tuple[tuple[TrialCell, ...], tuple[str, ...]]:
    """Return the groups that were tried in both domains, and the names of the others.

    Raises:
        InputError: the measure is success, and a trial has no success value.
    """
    values = trials.values(measure)
    rows: dict[tuple[str, str, str], list[int]] = {}
    for number, key in enumerate(zip(trials.policy, trials.task, trials.condition, strict=True)):
        rows.setdefault(key, []).append(number)
    cells, alone = [], []
    for key, chosen in rows.items():
        part = trials.take(chosen)
        real = np.array([domain == "real" for domain in part.domain])
        if real.all() or not real.any():
            alone.append(" ".join(word for word in key if word))
            continue
        both = pair_trials(part, measure)
        whole = len(both) == int(real.sum()) == int((~real).sum())
        cells.append(
            TrialCell(
                policy=key[0],
                task=key[1],
                condition=key[2],
                real=values[chosen][real],
                sim=values[chosen][~real],
                pairs=(both.real, both.sim) if whole else None,
            )
        )
    return tuple(cells), tuple(alone)


def compare_cells(
    cells: Sequence[TrialCell], measure: Measure, *, group: Group, name: str, level: float, seed: int
) -> GapRow:
    """Compare the cells of one row; several are compared separately and summed, so that their proportions cancel."""
    find = _compare_success if measure == "success" else _compare_scores
    difference, p_value, test, note = find(cells, level, seed)
    real, sim = (np.concatenate([getattr(cell, side) for cell in cells]) for side in ("real", "sim"))
    return GapRow(
        group=group,
        name=name,
        real=float(real.mean()),
        sim=float(sim.mean()),
        trials_real=len(real),
        trials_sim=len(sim),
        difference=difference,
        p_value=p_value,
        test=test,
        note=note,
    )


def _compare_success(cells: Sequence[TrialCell], level: float, seed: int) -> tuple[Interval, float, str, str]:  # noqa: ARG001
    pairs = [cell.pairs for cell in cells if cell.pairs is not None]
    if len(pairs) == len(cells):
        real, sim = (np.concatenate(values) > 0.5 for values in zip(*pairs, strict=True))
        counts = count_pairs(sim, real)
        return (
            paired_difference_interval(counts, level=level),
            mcnemar(counts),
            "McNemar, pairs",
            _note_equal_outcomes(cells),
        )
    tables = [success_table(cell.sim, cell.real) for cell in cells]
    if len(tables) > 1:
        interval = mantel_haenszel(tables, level=level)
        return interval, stratified_exact(tables), "exact, within conditions", _note_equal_outcomes(cells)
    table = tables[0]
    small = table.trials_a * table.trials_b <= _MOST_TABLES
    p_value, test = (exact_p_value(table), "Barnard") if small else (fisher(table), "Fisher")
    return difference_interval(table, level=level), p_value, test, _note_equal_outcomes(cells)


def _compare_scores(cells: Sequence[TrialCell], level: float, seed: int) -> tuple[Interval, float, str, str]:
    pairs = [cell.pairs for cell in cells if cell.pairs is not None]
    if len(pairs) == len(cells):
        differences = np.concatenate([sim - real for real, sim in pairs])
        interval, p_value = paired_scores(differences, level=level, seed=seed)
        return interval, p_value, "sign flips of pairs", ""
    strata = [(cell.sim, cell.real) for cell in cells]
    return (
        stratified_difference(strata, level=level),
        stratified_permutation(strata, seed=seed),
        "permutation within conditions",
        "",
    )


def _note_equal_outcomes(cells: Sequence[TrialCell]) -> str:
    """Return a note if all outcomes are equal: this does not show that there is no gap."""
    values = np.concatenate([np.concatenate([cell.real, cell.sim]) for cell in cells])
    if values.all():
        return "every trial succeeded in both, so no difference was observed; test harder conditions"
    if not values.any():
        return "every trial failed in both, so no difference was observed; test easier conditions"
    return ""
