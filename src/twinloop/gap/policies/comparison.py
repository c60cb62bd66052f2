"""Compare two policies: one is better, both are equivalent within a margin, or the trials do not decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.core.plain import JsonRecord
from twinloop.core.trials import Domain, Trials
from twinloop.gap.policies.comparison_sequential import SequentialComparison, compare_sequentially
from twinloop.gap.policies.paired_trials import PolicyArms, arms_by_task, success_table
from twinloop.stats import (
    Answer,
    Equivalence,
    Interval,
    barnard,
    bootstrap_of_means,
    bootstrap_paired,
    bounded_difference,
    bounded_mean,
    check_margin,
    clopper_pearson,
    difference_interval,
    equivalent_means,
    equivalent_rates,
    fisher,
    holm,
    mantel_haenszel,
    mcnemar,
    paired_difference_interval,
    permutation_of_means,
    stratified_exact,
    trials_for_equivalence,
    trials_for_rates,
    verdict,
    welch_test,
)

_POWER = 0.8  # power of the proposed number of further trials


def estimate_further_trials(arms: PolicyArms, within: float | None, alpha: float) -> int | None:
    """Return the further trials of each for a power of 80 % at the observed rates; None if not computable."""
    if arms.measure != "success" or arms.paired:
        return None
    p_a, p_b = float(arms.a.mean()), float(arms.b.mean())
    try:
        if within is not None and abs(p_a - p_b) < within / 2:
            wanted = trials_for_equivalence(p_a, p_b, margin=within, power=_POWER, alpha=alpha)
        else:
            wanted = trials_for_rates(p_a, p_b, power=_POWER, alpha=alpha)
    except InputError:  # equal rates, or more trials than the computation allows
        return None
    more = wanted.trials_a - min(len(arms.a), len(arms.b))
    return more if more > 0 else None


def collect_notes(arms: PolicyArms, alpha: float, *, sequential: bool) -> tuple[str, ...]:
    """Return notes on the trials: all outcomes equal, too few trials, or no order."""
    notes = []
    n_a, n_b = len(arms.a), len(arms.b)
    if np.ptp(np.concatenate([arms.a, arms.b])) == 0:
        notes.append(
            f"All trials of both ended at {arms.a[0]:g}: no test can find a difference. The intervals contain the "
            "differences that are still possible."
        )
    if arms.measure == "success" and not arms.paired:
        best = barnard(success_table(np.ones(n_a), np.zeros(n_b)))
        if best > alpha:
            notes.append(
                f"{n_a} and {n_b} trials are too few: even {n_a} of {n_a} against 0 of {n_b} has p = {best:.2g}. "
                f"At least {_count_fewest_trials(alpha)} trials of each can reach {alpha:.2g}."
            )
    if arms.shared and not arms.paired:
        notes.append(
            f"Starts that both were tried at once: {arms.shared}, of {n_a} and {n_b} trials. Because these are not "
            "all, trials are compared without pairs. A table of only those starts is compared in pairs, which finds "
            "smaller differences."
        )
    if sequential and arms.has_unknown_order:
        notes.append(
            "Successes come before failures, as in a table of counts, so the trials were put into a random order. For "
            "a sequential test give them in the order in which they were run."
        )
    return tuple(notes)


def _count_fewest_trials(alpha: float) -> int:
    n = 1
    while barnard(success_table(np.ones(n), np.zeros(n))) > alpha:
        n += 1
    return n


_EXACT_TABLES = 12_000  # largest product of trials for which the exact interval takes about a second


@dataclass(frozen=True, kw_only=True)
class TaskComparison(JsonRecord):
    """Comparison of two policies in one task.

    ``difference`` is a's value minus b's. ``p_value`` is that of ``test``; ``adjusted`` is adjusted by Holm's method
    over tasks; ``others`` has further tests. ``valid`` is an interval that is valid for any number of trials.
    ``further`` is the number of further trials of each for a power of 80 % at the observed rates; None if not
    computable or not needed. ``notes`` are remarks for the reader.
    """

    json_names: ClassVar[Mapping[str, str | None]] = {"arms": None}

    arms: PolicyArms
    test: str
    p_value: float
    adjusted: float = np.nan
    p_equivalent: float | None = None
    answer: Answer = "undecided"
    further: int | None = None
    others: Mapping[str, float]
    notes: tuple[str, ...] = ()
    value_a: Interval
    value_b: Interval
    difference: Interval
    valid: Interval
    strata: Interval | None = None
    equivalence: Equivalence | None
    sequential: SequentialComparison | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        arms = self.arms
        tried = {"trials_a": len(arms.a), "trials_b": len(arms.b)}
        return {"task": arms.task, "measure": arms.measure, "paired": arms.paired, **tried, **super().to_json()}


@dataclass(frozen=True, kw_only=True)
class PolicyComparison(JsonRecord):
    """Policy ``a`` against ``b`` in every task that both were tried in."""

    a: str
    b: str
    domain: Domain
    within: float | None
    level: float
    tasks: tuple[TaskComparison, ...]

    def headline(self) -> list[HeadlineMetric]:
        """Return the headline metrics for `--fail-if` and the run history."""
        return [figure for task in self.tasks for figure in self._task_metrics(task)]

    def _task_metrics(self, task: TaskComparison) -> list[HeadlineMetric]:
        of = f"/{task.arms.task}" if task.arms.task else ""
        run = task.sequential
        shown = task.difference if run is None else run.test.interval
        p = task.adjusted if run is None else float(run.test.p_value[-1])
        p_equivalent = task.p_equivalent if run is None else run.p_equivalent
        figures = [
            shown.headline(
                f"difference{of}", better="higher", meaning=f"{task.arms.measure} of {self.a} minus that of {self.b}"
            ),
            HeadlineMetric(
                name=f"p_differs{of}",
                estimate=p,
                method=task.test if run is None else run.test.method,
                meaning="p-value of no difference",
            ),
        ]
        if p_equivalent is not None:
            meaning = f"p-value of a difference of {self.within:g} or more"
            method = "two one-sided tests"
            figures.append(
                HeadlineMetric(name=f"p_equivalent{of}", estimate=p_equivalent, method=method, meaning=meaning)
            )
        return figures


def compare_policies(
    trials: Trials,
    a: str,
    b: str,
    *,
    domain: Domain = "real",
    measure: str = "auto",
    within: float | None = None,
    paired: bool | None = None,
    sequential: bool = False,
    level: float = 0.95,
    seed: int = 0,
) -> PolicyComparison:
    """Compare two policies in every task that both were tried in.

    Args:
        trials: trials of both; those of other policies are ignored.
        a: a policy.
        b: another policy.
        domain: ``real`` or ``sim``.
        measure: ``success``, ``score`` or ``auto``.
        within: margin of equivalence; without one no policies are called equivalent.
        paired: see `arms_by_task`.
        sequential: decide pair by pair, valid at every number of trials; otherwise the number counts as fixed in
            advance.
        level: 1 − α.
        seed: seed of permutations and resamples.

    Raises:
        InputError: see `arms_by_task`; a margin or level outside (0, 1); too few trials of scores.
        UnknownNameError: there is no such policy.
    """
    if within is not None:
        check_margin(within)
    found = [
        _compare_arms(arms, within, sequential, level, seed)
        for arms in arms_by_task(trials, a, b, domain=domain, measure=measure, paired=paired)
    ]
    return PolicyComparison(
        a=a, b=b, domain=domain, within=within, level=level, tasks=_adjust_p_values(found, within, level)
    )


def _adjust_p_values(found: Sequence[TaskComparison], within: float | None, level: float) -> tuple[TaskComparison, ...]:
    """Return the answers with p-values that are valid for all tasks together."""
    differs = holm([task.p_value for task in found])
    equal = (
        holm([task.equivalence.p_value for task in found if task.equivalence])
        if within is not None
        else [None] * len(found)
    )
    return tuple(
        replace(
            task,
            adjusted=float(p),
            p_equivalent=None if q is None else float(q),
            answer=task.sequential.answer if task.sequential else verdict(float(p), q, alpha=1 - level),
        )
        for task, p, q in zip(found, differs, equal, strict=True)
    )


def _compare_arms(arms: PolicyArms, within: float | None, sequential: bool, level: float, seed: int) -> TaskComparison:
    made = (
        _compare_success(arms, within, level)
        if arms.measure == "success"
        else _compare_scores(arms, within, level, seed)
    )
    run = compare_sequentially(arms, within=within, level=level, seed=seed) if sequential else None
    undecided = verdict(made.p_value, made.equivalence and made.equivalence.p_value, alpha=1 - level) == "undecided"
    further = estimate_further_trials(arms, within, 1 - level) if undecided and not sequential else None
    return replace(made, sequential=run, further=further, notes=collect_notes(arms, 1 - level, sequential=sequential))


def _compare_success(arms: PolicyArms, within: float | None, level: float) -> TaskComparison:
    table = arms.table
    rate_a, rate_b = (clopper_pearson(int(x.sum()), len(x), level=level) for x in (arms.a, arms.b))
    if arms.paired:
        p_value, test, others = mcnemar(arms.pairs), "McNemar, exact", {}
        difference = paired_difference_interval(arms.pairs, level=level)
        valid = bounded_difference(arms.a, arms.b, paired=True, level=level)
        equal = _test_equal_means(arms, within)
    else:
        p_value, test, others = barnard(table), "Barnard, exact", {"Fisher, exact": fisher(table)}
        difference = difference_interval(table, level=level)
        exact = "chan-zhang" if table.trials_a * table.trials_b <= _EXACT_TABLES else "clopper-pearson"
        valid = difference_interval(table, level=level, method=exact)
        equal = None if within is None else equivalent_rates(table, margin=within)
    if arms.strata:
        others = {**others, "stratified by condition, exact": stratified_exact(arms.tables)}
    return TaskComparison(
        arms=arms,
        value_a=rate_a,
        value_b=rate_b,
        difference=difference,
        valid=valid,
        test=test,
        p_value=p_value,
        others=others,
        strata=mantel_haenszel(arms.tables, level=level) if arms.strata else None,
        equivalence=equal,
    )


def _compare_scores(arms: PolicyArms, within: float | None, level: float, seed: int) -> TaskComparison:
    p_value = permutation_of_means(arms.a, arms.b, paired=arms.paired, seed=seed)
    others: dict[str, float] = {}
    if arms.paired:
        difference = bootstrap_paired(arms.b, arms.a, level=level, seed=seed)
    else:
        difference = bootstrap_of_means(arms.a, arms.b, level=level, seed=seed)
        others["Welch's t"] = float(welch_test(arms.a, arms.b, level=level).p_value)
    return TaskComparison(
        arms=arms,
        value_a=bounded_mean(arms.a, level=level),
        value_b=bounded_mean(arms.b, level=level),
        difference=difference,
        valid=bounded_difference(arms.a, arms.b, paired=arms.paired, level=level),
        test="sign permutations of pairs" if arms.paired else "permutation of Welch's t",
        p_value=p_value,
        others=others,
        equivalence=_test_equal_means(arms, within),
    )


def _test_equal_means(arms: PolicyArms, within: float | None) -> Equivalence | None:
    return None if within is None else equivalent_means(arms.a, arms.b, margin=within, paired=arms.paired)
