"""Compare two policies by their trials: one is better, both are equivalent within a margin, or neither is shown."""

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
    classify_difference,
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
    welch_test,
)

_POWER = 0.8  # power of the proposed number of further trials


def estimate_further_trials(arms: PolicyArms, margin: float | None, alpha: float) -> int | None:
    """Return how many more trials each policy needs for a power of 80 % at the observed success rates.

    Args:
        arms: Trials of the two policies.
        margin: Margin of equivalence in success rate; if given and the rates are close, the trials to show equivalence.
        alpha: Significance level.

    Returns:
        Number of further trials per policy; None for scores, for paired trials, or if there are already enough.
    """
    if arms.measure != "success" or arms.paired:
        return None
    p_a, p_b = float(arms.a.mean()), float(arms.b.mean())
    try:
        if margin is not None and abs(p_a - p_b) < margin / 2:
            wanted = trials_for_equivalence(p_a, p_b, margin=margin, power=_POWER, alpha=alpha)
        else:
            wanted = trials_for_rates(p_a, p_b, power=_POWER, alpha=alpha)
    except InputError:  # equal rates, or more trials than the computation allows
        return None
    more = wanted.trials_a - min(len(arms.a), len(arms.b))
    return more if more > 0 else None


def collect_notes(arms: PolicyArms, alpha: float, *, sequential: bool) -> tuple[str, ...]:
    """Return notes on limits of the trials: equal outcomes, too few trials, unused pairs, or no order.

    Args:
        arms: Trials of the two policies.
        alpha: Significance level.
        sequential: True if the comparison is sequential, so that the order of the trials matters.
    """
    notes = []
    n_a, n_b = len(arms.a), len(arms.b)
    if np.ptp(np.concatenate([arms.a, arms.b])) == 0:
        notes.append(
            f"All trials of both policies have the value {arms.a[0]:g}, so no test can find a difference. "
            "The intervals contain the differences that are still possible."
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
            f"{arms.shared} initial states were tried exactly once by both policies, of {n_a} and {n_b} trials. "
            "Because some trials have no such partner, trials are compared without pairs. A table with only these "
            "initial states is compared in pairs, which finds smaller differences."
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
    """Comparison of two policies, a and b, in one task.

    Attributes:
        arms: The compared trials.
        test: Name of the main test.
        p_value: p-value of the main test, for the hypothesis of no difference.
        adjusted: ``p_value`` adjusted by Holm's method over all tasks.
        p_equivalent: Adjusted p-value of the hypothesis that the difference is as large as the margin or larger; None
            if no margin is given.
        answer: The decision: ``differs``, ``equivalent`` (within the margin) or ``undecided``.
        further: Further trials per policy for a power of 80 % at the observed rates; None if not computable or not
            needed.
        others: p-values of further tests, by name of the test.
        notes: Remarks for the reader.
        value_a: Success rate or mean score of policy a, with its interval.
        value_b: The same for policy b.
        difference: Value of a minus value of b.
        valid: Interval of the difference that is exact or conservative for every number of trials, also small ones.
        strata: Difference within conditions (Mantel and Haenszel); None if there are fewer than two common conditions.
        equivalence: Result of the equivalence test; None if no margin is given.
        sequential: Result of the sequential test; None if the number of trials was fixed in advance.
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
    """Comparison of policy ``a`` with policy ``b`` in every task in which both were tried.

    Attributes:
        a: Name of the first policy.
        b: Name of the second policy.
        domain: Domain of the trials: ``real`` or ``sim``.
        margin: Margin of equivalence; None if equivalence was not tested.
        level: Confidence level of the intervals; tests have the significance level 1 − ``level``.
        tasks: One comparison per task.
    """

    json_names: ClassVar[Mapping[str, str | None]] = {"margin": "within"}

    a: str
    b: str
    domain: Domain
    margin: float | None
    level: float
    tasks: tuple[TaskComparison, ...]

    def headline(self) -> list[HeadlineMetric]:
        """Return the headline metrics for `--fail-if` and the run history."""
        return [metric for task in self.tasks for metric in self._task_metrics(task)]

    def _task_metrics(self, task: TaskComparison) -> list[HeadlineMetric]:
        of = f"/{task.arms.task}" if task.arms.task else ""
        run = task.sequential
        shown = task.difference if run is None else run.test.interval
        p = task.adjusted if run is None else float(run.test.p_value[-1])
        p_equivalent = task.p_equivalent if run is None else run.p_equivalent
        metrics = [
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
            meaning = f"p-value of a difference of {self.margin:g} or more"
            method = "two one-sided tests"
            metrics.append(
                HeadlineMetric(name=f"p_equivalent{of}", estimate=p_equivalent, method=method, meaning=meaning)
            )
        return metrics


def compare_policies(
    trials: Trials,
    a: str,
    b: str,
    *,
    domain: Domain = "real",
    measure: str = "auto",
    margin: float | None = None,
    paired: bool | None = None,
    sequential: bool = False,
    level: float = 0.95,
    seed: int = 0,
) -> PolicyComparison:
    """Compare two policies in every task in which both were tried.

    Args:
        trials: Trials of both policies; trials of all other policies are ignored.
        a: Name of a policy.
        b: Name of another policy.
        domain: ``real`` or ``sim``.
        measure: ``success``, ``score``, or ``auto`` (success if every trial has it, else score).
        margin: Margin of equivalence, in units of the measure. None: equivalence is not tested.
        paired: Whether trials are compared in pairs, see `arms_by_task`.
        sequential: True if trials are added until a decision: the test is then valid after every pair of trials. False
            if the number of trials was fixed in advance.
        level: Confidence level of the intervals; tests are at 1 − ``level``.
        seed: Seed of permutations and bootstrap resamples.

    Raises:
        InputError: If the trials do not fit (see `arms_by_task`), a margin or level is outside (0, 1), or there are too
            few trials with scores.
        UnknownNameError: If there is no such policy.
    """
    if margin is not None:
        check_margin(margin)
    found = [
        _compare_arms(arms, margin, sequential, level, seed)
        for arms in arms_by_task(trials, a, b, domain=domain, measure=measure, paired=paired)
    ]
    return PolicyComparison(
        a=a, b=b, domain=domain, margin=margin, level=level, tasks=_adjust_p_values(found, margin, level)
    )


def _adjust_p_values(found: Sequence[TaskComparison], margin: float | None, level: float) -> tuple[TaskComparison, ...]:
    """Adjust the p-values over all tasks (Holm), and return the comparisons with the resulting decisions."""
    differs = holm([task.p_value for task in found])
    equal = (
        holm([task.equivalence.p_value for task in found if task.equivalence])
        if margin is not None
        else [None] * len(found)
    )
    return tuple(
        replace(
            task,
            adjusted=float(p),
            p_equivalent=None if q is None else float(q),
            answer=task.sequential.answer if task.sequential else classify_difference(float(p), q, alpha=1 - level),
        )
        for task, p, q in zip(found, differs, equal, strict=True)
    )


def _compare_arms(arms: PolicyArms, margin: float | None, sequential: bool, level: float, seed: int) -> TaskComparison:
    made = (
        _compare_success(arms, margin, level)
        if arms.measure == "success"
        else _compare_scores(arms, margin, level, seed)
    )
    run = compare_sequentially(arms, margin=margin, level=level, seed=seed) if sequential else None
    undecided = (
        classify_difference(made.p_value, made.equivalence and made.equivalence.p_value, alpha=1 - level) == "undecided"
    )
    further = estimate_further_trials(arms, margin, 1 - level) if undecided and not sequential else None
    return replace(made, sequential=run, further=further, notes=collect_notes(arms, 1 - level, sequential=sequential))


def _compare_success(arms: PolicyArms, margin: float | None, level: float) -> TaskComparison:
    table = arms.table
    rate_a, rate_b = (clopper_pearson(int(x.sum()), len(x), level=level) for x in (arms.a, arms.b))
    if arms.paired:
        p_value, test, others = mcnemar(arms.pairs), "McNemar, exact", {}
        difference = paired_difference_interval(arms.pairs, level=level)
        valid = bounded_difference(arms.a, arms.b, paired=True, level=level)
        equal = _test_equal_means(arms, margin)
    else:
        p_value, test, others = barnard(table), "Barnard, exact", {"Fisher, exact": fisher(table)}
        difference = difference_interval(table, level=level)
        exact = "chan-zhang" if table.trials_a * table.trials_b <= _EXACT_TABLES else "clopper-pearson"
        valid = difference_interval(table, level=level, method=exact)
        equal = None if margin is None else equivalent_rates(table, margin=margin)
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


def _compare_scores(arms: PolicyArms, margin: float | None, level: float, seed: int) -> TaskComparison:
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
        equivalence=_test_equal_means(arms, margin),
    )


def _test_equal_means(arms: PolicyArms, margin: float | None) -> Equivalence | None:
    return None if margin is None else equivalent_means(arms.a, arms.b, margin=margin, paired=arms.paired)
