"""Measure the policy gap: how success and score of the same policies differ between simulation and reality."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.core.plain import JsonRecord
from twinloop.core.trials import Measure, Trials
from twinloop.gap.policies.gap_rows import GapRow, Group, TrialCell, compare_cells, group_trials
from twinloop.stats import ContingencyTable, exact_p_value, holm, trials_for_rates

ALPHA = 0.05
_SOUGHT = 0.2  # a little more than the largest bias of SIMPLER's nine published tasks, 0.17
_POWER = 0.8  # Cohen, "Statistical power analysis for the behavioral sciences" (1988): the customary power


@dataclass(frozen=True, kw_only=True)
class MeasureGap(JsonRecord):
    """Gap in one measure, ``success`` or ``score``: simulated minus real.

    Attributes:
        measure: The measure.
        overall: All trials together.
        policies: One row per policy.
        conditions: One row per task and condition.
        cells: One row per policy, task and condition.
        notes: Remarks: groups too small for any result, the number of trials that would suffice, and conditions that
            were tried in different proportions in simulation and reality.

    The p-values of the rows in one tuple are adjusted together (Holm).
    """

    measure: Measure
    overall: GapRow
    policies: tuple[GapRow, ...]
    conditions: tuple[GapRow, ...]
    cells: tuple[GapRow, ...]
    notes: tuple[str, ...]

    @property
    def significant_conditions(self) -> tuple[GapRow, ...]:
        """Conditions with a significant difference, the largest contribution to the overall difference first."""
        shown = [row for row in self.conditions if row.p_holm <= ALPHA]
        return tuple(sorted(shown, key=lambda row: -abs(row.contribution)))

    def headlines(self) -> list[HeadlineMetric]:
        """Return the headline metrics for `--fail-if` and the run history; differences are simulated minus real.

        There is one overall difference, one per policy and one per condition. Two more metrics are the largest absolute
        difference of any condition and the share of conditions that differ significantly.
        """
        unit, of = f"{self.measure}_gap", "success rate" if self.measure == "success" else "score"
        meaning = f"simulated − real {of}: positive if the simulation is optimistic"
        rows = [("", self.overall), *((f"/{row.name}", row) for row in (*self.policies, *self.conditions))]
        named = {f"{unit}{name}": row for name, row in rows}
        largest = max((abs(float(row.difference.estimate)) for row in self.conditions), default=np.nan)
        return [
            *(row.difference.headline(name, meaning=meaning) for name, row in named.items()),
            HeadlineMetric(
                name=f"{self.measure}_largest",
                estimate=largest,
                method="no interval of a largest value; see the interval of each condition",
                meaning=f"largest difference in {of} of any condition, without its sign",
            ),
            HeadlineMetric(
                name=f"{self.measure}_conditions_differ",
                estimate=len(self.significant_conditions) / len(self.conditions),
                method=f"Holm's test of all {len(self.conditions)} at {ALPHA:.0%}",
                meaning="share of conditions that differ significantly",
            ),
        ]


def measure_policies(trials: Trials, measure: Measure, *, level: float = 0.95, seed: int = 0) -> MeasureGap:
    """Compare simulated with real trials of the same policies, tasks and conditions.

    Methods for success rates: Newcombe's interval and Barnard's exact test for one condition of one policy; the Mantel
    and Haenszel difference and an exact stratified test for several; Tango's interval and McNemar's test if every trial
    has a partner. Methods for scores: Welch's interval and permutations within conditions; Student's interval and sign
    flips if every trial has a partner.

    Args:
        trials: Trials of both domains.
        measure: The compared measure.
        level: Confidence level of the intervals.
        seed: Seed of the permutations.

    Raises:
        InputError: If no policy was tried in both domains under the same task and condition.
    """
    cells, alone = group_trials(trials, measure)
    if not cells:
        raise InputError(
            f"No policy was tried in both domains under the same task and condition: {_format_names(alone)} are in "
            "one domain "
            "only. Use the same names in both, or leave condition out to compare a task as a whole."
        )
    given = {"measure": measure, "level": level, "seed": seed}
    overall = compare_cells(cells, group="overall", name="overall", **given)
    by_policy = _compare_groups(cells, "policy", [cell.policy for cell in cells], given)
    by_condition = _compare_groups(cells, "condition", [cell.condition_name for cell in cells], given)
    each = _compare_groups(cells, "cell", [f"{cell.policy}, {cell.condition_name}" for cell in cells], given)
    shares = _compute_contributions(cells, [row.name for row in by_condition])
    return MeasureGap(
        measure=measure,
        overall=replace(overall, p_holm=overall.p_value),
        policies=by_policy,
        conditions=tuple(replace(row, contribution=shares[row.name]) for row in by_condition),
        cells=each,
        notes=(*_note_left_out(alone), *_note_mixture(overall), *_note_too_few_trials(measure, overall, by_condition)),
    )


def _compare_groups(
    cells: Sequence[TrialCell], group: Group, names: Sequence[str], given: dict[str, Any]
) -> tuple[GapRow, ...]:
    parts: dict[str, list[TrialCell]] = {}
    for cell, name in zip(cells, names, strict=True):
        parts.setdefault(name, []).append(cell)
    rows = [compare_cells(part, group=group, name=name, **given) for name, part in parts.items()]
    adjusted = holm([row.p_value for row in rows])
    return tuple(replace(row, p_holm=float(p)) for row, p in zip(rows, adjusted, strict=True))


def _compute_contributions(cells: Sequence[TrialCell], names: Sequence[str]) -> dict[str, float]:
    """Return the part of the overall difference that each condition adds; the parts sum to the overall difference.

    Args:
        cells: All cells (real and simulated trials of one policy in one task and condition); each is weighted by its
            numbers of trials (Mantel and Haenszel).
        names: Names of the conditions.
    """
    weight = np.array([len(cell.real) * len(cell.sim) / (len(cell.real) + len(cell.sim)) for cell in cells])
    part = weight / weight.sum() * np.array([cell.sim.mean() - cell.real.mean() for cell in cells])
    return {
        name: float(sum(x for x, cell in zip(part, cells, strict=True) if cell.condition_name == name))
        for name in names
    }


def _note_left_out(alone: Sequence[str]) -> list[str]:
    return [f"Tried in one domain only, and left out: {_format_names(alone)}."] if alone else []


def _note_mixture(overall: GapRow) -> list[str]:
    naive, within = overall.sim - overall.real, float(overall.difference.estimate)
    if abs(naive - within) < 0.05:  # five points, a relevant difference
        return []
    note = (
        f"All trials together differ by {naive:+.3f}, within conditions by {within:+.3f}: the proportions of "
        "conditions differ between simulation and reality. The second number is the gap."
    )
    return [note]


def _note_too_few_trials(measure: Measure, overall: GapRow, conditions: Sequence[GapRow]) -> list[str]:
    """Return notes on conditions with too few trials for a significant result, and on the number of trials needed."""
    if measure != "success":
        return []
    notes = []
    alpha = ALPHA / len(conditions)  # level of the first of Holm's steps
    hopeless = [row for row in conditions if _smallest_p_value(row.trials_real, row.trials_sim) > alpha]
    if hopeless:
        least = next(n for n in range(2, 1000) if _smallest_p_value(n, n) <= alpha)
        notes.append(
            f"Too few trials to show any difference, even if all real ones failed and all simulated ones succeeded: "
            f"{_format_names([row.name for row in hopeless])}. With {len(conditions)} conditions tested together, "
            "each needs "
            f"at least {least} real and {least} simulated trials."
        )
    if overall.p_value > ALPHA:
        other = overall.real + _SOUGHT if overall.real <= 0.5 else overall.real - _SOUGHT
        need = trials_for_rates(other, overall.real, power=_POWER, alpha=ALPHA)
        notes.append(
            f"The overall difference is not significant, which does not show equality. A difference of {_SOUGHT:g} "
            f"from a real rate of {overall.real:.2f} is found in {_POWER:.0%} of cases with {need.trials_b} real and "
            f"{need.trials_a} simulated trials; 'twinloop gap compare' tests whether rates are equal within a margin."
        )
    return notes


def _smallest_p_value(real: int, sim: int) -> float:
    """Return the smallest p-value that the exact test of two success rates can give with these numbers of trials."""
    if min(real, sim) > 20:  # p is far below any usual level
        return 0.0
    a, b = min(sim, 50), min(real, 50)  # more trials of one arm change p little
    return exact_p_value(ContingencyTable(successes_a=a, trials_a=a, successes_b=0, trials_b=b))


def _format_names(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


_WIDTH = 110


def format_policies(gap: MeasureGap) -> str:
    """Format the report for a terminal: tables overall, by policy and by condition, then sentences.

    The sentences name the conditions in which simulated and real results differ significantly, and give the notes.
    """
    word = "Success" if gap.measure == "success" else "Score (progress)"
    level = f"{gap.overall.difference.level:.0%}"
    lines = [f"{word}, simulated against real; differences within conditions with {level} intervals", _HEAD]
    lines.append(_format_row(gap.overall))
    for rows, what in ((gap.policies, "by policy"), (gap.conditions, "by condition")):
        if len(rows) > 1:
            lines += ["", f"{what} (p adjusted for {len(rows)} tests)", *map(_format_row, rows)]
    lines += ["", *(textwrap.fill(text, _WIDTH) for text in (format_drivers(gap), *_format_row_notes(gap), *gap.notes))]
    return "\n".join(lines)


def format_drivers(gap: MeasureGap) -> str:
    """Return a sentence on the conditions that differ significantly and their parts of the overall difference."""
    if len(gap.conditions) < 2:
        return _format_overall(gap.overall)
    if not gap.significant_conditions:
        return f"No condition differs significantly (Holm's test of {len(gap.conditions)} at {ALPHA:.0%})."
    parts = [f"{row.name} adds {row.contribution:+.3f}" for row in gap.significant_conditions[:5]]
    more = f", and {len(gap.significant_conditions) - 5} more" if len(gap.significant_conditions) > 5 else ""
    overall = float(gap.overall.difference.estimate)
    many = f"{len(gap.significant_conditions)} of {len(gap.conditions)} conditions"
    return f"The overall difference is {overall:+.3f}: {many} differ significantly: {', '.join(parts)}{more}."


def _format_overall(row: GapRow) -> str:
    if row.p_value <= ALPHA:
        side = "is easier than reality" if float(row.difference.estimate) > 0 else "is harder than reality"
        return f"The simulation {side}: p = {row.p_value:.3g} ({row.test})."
    return f"The difference is not significant: p = {row.p_value:.3g} ({row.test})."


def _format_row_notes(gap: MeasureGap) -> list[str]:
    rows: Sequence[GapRow] = gap.conditions if len(gap.conditions) > 1 else (gap.overall,)
    return [f"{row.name}: {row.note}." for row in rows if row.note]


_HEAD = f"{'':<30}{'real':>8}{'trials':>8}{'sim':>8}{'trials':>8}{'sim − real':>12}{'interval':>20}{'p':>9}"


def _format_row(row: GapRow) -> str:
    d = row.difference
    ends = "–" if np.isnan(d.low) else f"[{d.low:+.3f}, {d.high:+.3f}]"
    return (
        f"{row.name[:29]:<30}{row.real:>8.3f}{row.trials_real:>8}{row.sim:>8.3f}{row.trials_sim:>8}"
        f"{float(d.estimate):>+12.3f}{ends:>20}{row.p_holm:>9.3g}"
    )
