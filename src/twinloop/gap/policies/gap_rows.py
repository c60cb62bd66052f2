"""Compare real with simulated trials of one group, such as a policy or a condition: difference, interval and test."""

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
    """All trials of one policy in one task and condition, real and simulated.

    Attributes:
        policy: Name of the policy.
        task: Name of the task; may be empty.
        condition: Name of the condition; may be empty.
        real: Values of the real trials, shape ``(nreal,)``.
        sim: Values of the simulated trials, shape ``(nsim,)``.
        pairs: Real and simulated values in the same order of initial states if every trial has a partner; otherwise
            None.
    """

    policy: str
    task: str
    condition: str
    real: NDArray[np.float64]
    sim: NDArray[np.float64]
    pairs: tuple[NDArray[np.float64], NDArray[np.float64]] | None

    @property
    def condition_name(self) -> str:
        """Task and condition as one text, ``TASK/CONDITION``; ``all`` if both are empty."""
        return "/".join(part for part in (self.task, self.condition) if part) or "all"


@dataclass(frozen=True, kw_only=True)
class GapRow(JsonRecord):
    """Comparison of the simulated with the real trials of one group: one row of the report.

    Attributes:
        group: Kind of the group; ``cell`` is one policy in one task and condition.
        name: Name of the group.
        real: Mean over all real trials.
        sim: Mean over all simulated trials.
        trials_real: Number of real trials.
        trials_sim: Number of simulated trials.
        difference: Simulated minus real, computed within conditions.
        p_value: p-value of no difference.
        test: Name of the test.
        p_holm: p-value adjusted by Holm's method over the rows of the same kind.
        contribution: Part of the overall difference that a condition adds (the parts sum to it); NaN for other groups.
        note: Remark on a limit of the data, such as equal outcomes of all trials; may be empty.
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
    """Group trials by policy, task and condition.

    Returns:
        The groups that were tried in both domains, and the names of the groups that were tried in one domain only.

    Raises:
        InputError: If the measure is success, and a trial has no success value.
    """
    values = trials.select_measure(measure)
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
    """Compare the simulated with the real trials of one row of the report.

    Several cells are compared one by one and then combined, so that different proportions of conditions in simulation
    and in reality have no effect.

    Args:
        cells: Trials of the row, one cell per policy, task and condition.
        measure: The compared measure.
        group: Kind of the row.
        name: Name of the row.
        level: Confidence level of the interval.
        seed: Seed of the permutations.
    """
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
    """Return a note if all outcomes are equal, which does not prove that there is no gap; otherwise an empty text."""
    values = np.concatenate([np.concatenate([cell.real, cell.sim]) for cell in cells])
    if values.all():
        return (
            "every trial succeeded in simulation and in reality, so no difference was observed; test harder conditions"
        )
    if not values.any():
        return "every trial failed in simulation and in reality, so no difference was observed; test easier conditions"
    return ""
