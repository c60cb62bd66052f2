"""Select the trials of two policies for a comparison: of one domain and task, in pairs if initial states are shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.trials import Domain, Measure, Trials
from twinloop.stats import ContingencyTable, PairedCounts

Array = NDArray[np.float64]
_LISTED = 5  # least trials of each with which an order of all successes first is unlikely by chance


@dataclass(frozen=True, kw_only=True)
class PolicyArms:
    """Values of the trials of two policies, a and b, in one task.

    Attributes:
        task: Name of the task.
        measure: The compared measure.
        a: Values of policy a, in the order of its trials.
        b: Values of policy b, in the order of its trials.
        paired: True if entry i of ``a`` and entry i of ``b`` have the same initial state.
        strata: Values of both policies within each common condition; empty if paired or if there are fewer than two.
        shared: Number of initial states ("starts") from which each policy was tried exactly once.
    """

    task: str
    measure: Measure
    a: Array
    b: Array
    paired: bool
    strata: tuple[tuple[Array, Array], ...] = ()
    shared: int = 0

    @property
    def table(self) -> ContingencyTable:
        """Numbers of successes and trials of both policies."""
        return success_table(self.a, self.b)

    @property
    def tables(self) -> tuple[ContingencyTable, ...]:
        """Numbers of successes and trials of both policies within each condition."""
        return tuple(success_table(a, b) for a, b in self.strata)

    @property
    def has_unknown_order(self) -> bool:
        """True if all successes come before all failures for both policies, so the true order of the trials is unknown.

        This happens if trials were entered as a table of counts.
        """
        enough = min(len(self.a), len(self.b)) >= _LISTED and not self.paired and self.measure == "success"
        falls = all(bool(np.all(np.diff(x) <= 0)) for x in (self.a, self.b))
        return enough and falls and bool(np.ptp(self.a) + np.ptp(self.b) > 0)

    @property
    def pairs(self) -> PairedCounts:
        """Numbers of pairs in which both, only a, only b or neither policy succeeded."""
        return count_pairs(self.a == 1, self.b == 1)


def resolve_measure(trials: Trials, measure: str) -> Measure:
    """Return the measure to use; ``auto`` becomes success if every trial has a success value, else score."""
    if measure == "auto":
        return "success" if trials.has_outcomes else "score"
    return "score" if measure == "score" else "success"


def arms_by_task(
    trials: Trials, a: str, b: str, *, domain: Domain, measure: str = "auto", paired: bool | None = None
) -> tuple[PolicyArms, ...]:
    """Return the values of the two policies in each task in which both were tried.

    Args:
        trials: Trials of both policies; trials of all other policies are ignored.
        a: Name of a policy.
        b: Name of another policy.
        domain: ``real`` or ``sim``.
        measure: ``success``, ``score``, or ``auto`` (success if every trial has it, else score).
        paired: True: compare pairs with the same initial state; False: ignore pairs; None: compare pairs in a task if
            each of its trials has a partner, according to the pair names.

    Raises:
        UnknownNameError: If there is no such policy.
        InputError: If both names are equal, a policy has no trial in the domain, there is no common task, or ``paired``
            is True and a trial has no partner.
    """
    if a == b:
        raise InputError(f"Policy {a} cannot be compared with itself. Give two names of: {', '.join(trials.policies)}.")
    both = [trials.where(policy=name).where(domain=domain) for name in (a, b)]
    for name, part in zip((a, b), both, strict=True):
        if not len(part):
            other = "sim" if domain == "real" else "real"
            count = len(trials.where(policy=name, domain=other))
            raise InputError(
                f"Policy {name} has no {domain} trials in {trials.origin or 'these trials'}. It has {count} of domain "
                f"{other}: use --domain {other} to compare those."
            )
    chosen = resolve_measure(Trials.concatenate_trials(both), measure)
    tasks = [task for task in both[0].tasks if task in both[1].tasks]
    if not tasks:
        raise InputError(
            f"Policy {a} was tried in {', '.join(both[0].tasks)} and policy {b} in {', '.join(both[1].tasks)}, so "
            "there is no common task. Compare policies that were tried in the same task."
        )
    return tuple(
        _build_arms(both[0].where(task=task), both[1].where(task=task), (a, b), chosen, paired) for task in tasks
    )


def _build_arms(
    first: Trials, second: Trials, names: tuple[str, str], measure: Measure, paired: bool | None
) -> PolicyArms:
    starts = [_values_by_start(part, measure) for part in (first, second)]
    shared = [key for key in starts[0] if key in starts[1]]
    alone = [len(part) - len(shared) for part in (first, second)]
    task = first.task[0]
    if paired and (any(alone) or not shared):
        where = f" in {task}" if task else ""
        raise InputError(
            f"A paired test needs common starts, but{where} {alone[0]} of {len(first)} trials of {names[0]} and "
            f"{alone[1]} of {len(second)} of {names[1]} have none. Name common starts in the column pair, "
            "once for each policy, or compare without --paired."
        )
    if paired or (paired is None and shared and not any(alone)):
        a, b = (np.array([side[key] for key in shared]) for side in starts)
        return PolicyArms(task=task, measure=measure, a=a, b=b, paired=True, shared=len(shared))
    common = [name for name in first.conditions if name in second.conditions]
    strata = [
        (first.where(condition=n).select_measure(measure), second.where(condition=n).select_measure(measure))
        for n in common
    ]
    return PolicyArms(
        task=task,
        measure=measure,
        a=first.select_measure(measure),
        b=second.select_measure(measure),
        paired=False,
        strata=tuple(strata) if len(strata) > 1 else (),
        shared=len(shared),
    )


def _values_by_start(trials: Trials, measure: Measure) -> dict[tuple[str, str], float]:
    """Return the value of the measure for each initial state from which the policy has exactly one trial.

    The keys are the condition and the pair identifier, which trials with the same initial state share. Trials without a
    pair identifier are left out.
    """
    keys = [(trials.condition[i], trials.pair[i]) for i in range(len(trials))]
    values = trials.select_measure(measure)
    return {key: float(values[i]) for i, key in enumerate(keys) if key[1] and keys.count(key) == 1}


def success_table(a: NDArray[Any], b: NDArray[Any]) -> ContingencyTable:
    """Return the contingency table of two groups of trials, a and b, whose values are 0 (failure) or 1 (success)."""
    return ContingencyTable(successes_a=int(a.sum()), trials_a=len(a), successes_b=int(b.sum()), trials_b=len(b))


def count_pairs(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> PairedCounts:
    """Count pairs of trials by outcome, from the successes of both sides in the same order."""
    both, only_a, only_b, neither = (int(x.sum()) for x in (a & b, a & ~b, ~a & b, ~a & ~b))
    return PairedCounts(both=both, only_a=only_a, only_b=only_b, neither=neither)
