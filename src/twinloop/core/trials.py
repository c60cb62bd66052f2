"""Store scored trials of policies, real or simulated, for comparisons of policies and of simulation with reality."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.plain import JsonRecord
from twinloop.core.records import freeze_array

Domain = Literal["real", "sim"]
Measure = Literal["success", "score"]
DOMAINS: tuple[Domain, ...] = get_args(Domain)
_NAMES = ("policy", "domain", "task", "condition", "pair")


@dataclass(frozen=True, kw_only=True)
class Trials(JsonRecord):
    """Table of n trials of policies, stored as one column per field; the order of the trials has no meaning.

    Attributes:
        policy: Name of the policy.
        domain: ``real`` or ``sim``.
        score: Score in [0, 1], shape ``(n,)``: 0 for failure, 1 for success, or the progress between.
        success: Whether the trial is a success; None if unknown.
        task: Name of the task.
        condition: Setting of the trial within its task, for example lighting or object pose.
        pair: Identifier that a real and a simulated trial with the same policy, task, condition and initial state
            share; "" if the trial has no counterpart.
        origin: File or dataset from which the trials come, for messages.

    Raises:
        InputError: If columns have unequal lengths, a score is outside [0, 1], a domain is neither ``real`` nor
            ``sim``, or a policy has no name.
    """

    json_schema = 1

    policy: tuple[str, ...]
    domain: tuple[Domain, ...]
    score: NDArray[np.float64]
    success: tuple[bool | None, ...] = ()
    task: tuple[str, ...] = ()
    condition: tuple[str, ...] = ()
    pair: tuple[str, ...] = ()
    origin: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", freeze_array(self.score))
        n = len(self.score)
        for name in _NAMES:
            given = tuple(getattr(self, name))
            missing = () if name in ("policy", "domain") else ("",) * n
            object.__setattr__(self, name, given or missing)
        object.__setattr__(self, "success", tuple(self.success) or (None,) * n)
        self._check()

    @classmethod
    def of_counts(
        cls, policy: str, domain: Domain, successes: int, trials: int, *, task: str = "", condition: str = ""
    ) -> Trials:
        """Create trials with the score 1 (success) or 0 from numbers of successes and trials, as in published tables.

        Args:
            policy: Name of the policy.
            domain: ``real`` or ``sim``.
            successes: Number of successful trials.
            trials: Number of all trials.
            task: Name of the task.
            condition: Setting within the task.

        Raises:
            InputError: If there are more successes than trials, or a negative number.
        """
        if not 0 <= successes <= trials:
            raise InputError(f"Policy {policy}, {domain}: {successes} successes of {trials} trials. Check the counts.")
        won = np.arange(trials) < successes
        return cls(
            policy=(policy,) * trials,
            domain=(domain,) * trials,
            score=won.astype(np.float64),
            success=tuple(map(bool, won)),
            task=(task,) * trials,
            condition=(condition,) * trials,
        )

    @classmethod
    def concatenate_trials(cls, parts: Iterable[Trials]) -> Trials:
        """Concatenate several tables of trials."""
        given = list(parts)
        columns = {name: tuple(x for part in given for x in getattr(part, name)) for name in (*_NAMES, "success")}
        scores = np.concatenate([part.score for part in given]) if given else np.empty(0)
        origin = " and ".join(dict.fromkeys(part.origin for part in given if part.origin))
        return cls(**columns, score=scores, origin=origin)

    def __len__(self) -> int:
        return len(self.score)

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the policies, in order of first appearance."""
        return tuple(dict.fromkeys(self.policy))

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks, in order of first appearance."""
        return tuple(dict.fromkeys(self.task))

    @property
    def conditions(self) -> tuple[str, ...]:
        """Names of the conditions, in order of first appearance."""
        return tuple(dict.fromkeys(self.condition))

    @property
    def real(self) -> Trials:
        """Trials on the real robot."""
        return self.where(domain="real")

    @property
    def sim(self) -> Trials:
        """Simulated trials."""
        return self.where(domain="sim")

    def where(
        self,
        *,
        policy: str | None = None,
        domain: Domain | None = None,
        task: str | None = None,
        condition: str | None = None,
    ) -> Trials:
        """Return the trials that match all given values; the result may be empty.

        Args:
            policy: Name of the policy; None for all policies.
            domain: ``real`` or ``sim``; None for both.
            task: Name of the task; None for all tasks.
            condition: Name of the condition; None for all conditions.

        Raises:
            UnknownNameError: If no trial has the given policy, task or condition.
        """
        wanted = {"policy": policy, "task": task, "condition": condition}
        wanted = {name: value for name, value in wanted.items() if value is not None}
        for name, value in wanted.items():
            if value not in getattr(self, name):
                raise UnknownNameError(name, value, dict.fromkeys(getattr(self, name)), where=self.origin)
        keep = np.ones(len(self), dtype=np.bool_)
        for name, value in {**wanted, **({} if domain is None else {"domain": domain})}.items():
            keep &= np.array([entry == value for entry in getattr(self, name)], dtype=np.bool_)
        return self.take(np.flatnonzero(keep))

    def take(self, rows: ArrayLike) -> Trials:
        """Return the trials with the given row numbers, in that order; a row number may repeat."""
        chosen = np.asarray(rows, dtype=np.intp)
        columns = {name: tuple(getattr(self, name)[i] for i in chosen) for name in (*_NAMES, "success")}
        return Trials(**columns, score=self.score[chosen], origin=self.origin)

    def select_measure(self, measure: Measure) -> NDArray[np.float64]:
        """Return the value of each trial (score or success) by which policies are compared, shape ``(n,)``.

        Args:
            measure: ``score`` for the scores, ``success`` for successes as 0 and 1.

        Raises:
            InputError: If ``measure`` is ``success`` and the outcome of a trial is unknown.
        """
        if measure == "score":
            return self.score
        unknown = [number for number, won in enumerate(self.success) if won is None]
        if unknown:
            raise InputError(
                f"{len(unknown)} of {len(self)} trials{self._format_origin()} have no outcome "
                f"(the first: {self._describe_trial(unknown[0])}). Give a success column, or compare scores."
            )
        return np.array(self.success, dtype=np.float64)

    @property
    def has_outcomes(self) -> bool:
        """True if it is known for every trial whether it is a success."""
        return None not in self.success

    def counts(self) -> tuple[int, int]:
        """Return the number of successes and the number of trials.

        Raises:
            InputError: If the outcome of a trial is unknown.
        """
        return int(self.select_measure("success").sum()), len(self)

    def _check(self) -> None:
        for name in (*_NAMES, "success"):
            if len(getattr(self, name)) != len(self):
                raise InputError(
                    f"Trials{self._format_origin()}: {len(getattr(self, name))} entries of {name} for {len(self)} "
                    "scores. "
                    "Give one entry per trial in every column."
                )
        faults: Sequence[tuple[NDArray[np.bool_], str]] = (
            (~((self.score >= 0) & (self.score <= 1)), "has a score outside 0 to 1; divide by the maximum score"),
            (np.array([name not in DOMAINS for name in self.domain], dtype=np.bool_), "is neither real nor sim"),
            (np.array([not name for name in self.policy], dtype=np.bool_), "has no policy name"),
        )
        for wrong, what in faults:
            if wrong.any():
                number = int(np.argmax(wrong))
                raise InputError(
                    f"Trial {self._describe_trial(number)}{self._format_origin()} {what} "
                    f"(score {self.score[number]:g}; {int(wrong.sum())} such trials)."
                )

    def _describe_trial(self, number: int) -> str:
        parts = [self.domain[number], self.policy[number], self.task[number], self.condition[number]]
        return f"{number} ({', '.join(part for part in parts if part)})"

    def _format_origin(self) -> str:
        return f" of {self.origin}" if self.origin else ""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Values of trials that were run both on the real robot and in simulation, from the same initial state.

    If an initial state was tried several times, the values are means over these trials.

    Attributes:
        policy: Name of the policy of each pair.
        real: Real scores or successes, shape ``(npair,)``.
        sim: Simulated scores or successes, shape ``(npair,)``.
    """

    policy: tuple[str, ...]
    real: NDArray[np.float64]
    sim: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.real)


def pair_trials(trials: Trials, measure: Measure = "score") -> Pairs:
    """Pair real and simulated trials with the same policy, task, condition and pair identifier.

    Trials without a counterpart in the other domain are ignored, so the result may be empty.

    Args:
        trials: Trials of both domains.
        measure: Compared value, ``score`` or ``success``.

    Raises:
        InputError: If ``measure`` is ``success`` and the outcome of a trial is unknown.
    """
    values = trials.select_measure(measure)
    values_by_pair: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for number, pair in enumerate(trials.pair):
        if pair:
            key = (trials.policy[number], trials.task[number], trials.condition[number], pair)
            values_by_pair.setdefault(key, {}).setdefault(trials.domain[number], []).append(float(values[number]))
    both = {key: sides for key, sides in values_by_pair.items() if len(sides) == len(DOMAINS)}
    return Pairs(
        policy=tuple(key[0] for key in both),
        real=freeze_array([np.mean(sides["real"]) for sides in both.values()]),
        sim=freeze_array([np.mean(sides["sim"]) for sides in both.values()]),
    )
