"""Store scored trials of policies, real or simulated: the input of every comparison of policies and domains."""

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
    """Trials in parallel columns, one entry each; the order has no meaning except as the order of appearance.

    ``score`` ``(n,)`` is in [0, 1]: 0 or 1 for failure and success, or progress between. ``success`` is whether a trial
    counts as a success, None if unknown. ``condition`` is the setting of a trial within its task (lighting, an object's
    pose). ``pair`` identifies a real and a simulated trial of one policy, task and condition with the same initial
    state; "" without one. ``origin`` is the source of the trials.

    Raises:
        InputError: columns of unequal length, a score outside [0, 1], a domain that is neither ``real`` nor ``sim``, a
            policy without a name; names the trial.
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
        """Return the trials of a table row that gives a number of successes.

        Raises:
            InputError: more successes than trials, or a negative number.
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
        """Concatenate the trials of several records."""
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
        """Return the trials that match all given names; the result may be empty.

        Raises:
            UnknownNameError: a policy, task or condition without a trial in either domain.
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
        """Return the trials at these row numbers, in that order; a number may repeat."""
        chosen = np.asarray(rows, dtype=np.intp)
        columns = {name: tuple(getattr(self, name)[i] for i in chosen) for name in (*_NAMES, "success")}
        return Trials(**columns, score=self.score[chosen], origin=self.origin)

    def values(self, measure: Measure) -> NDArray[np.float64]:
        """Return the scores, or successes as 0 and 1, ``(n,)``.

        Raises:
            InputError: ``measure`` is successes, and a trial has no outcome.
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
        """True if every trial has an outcome."""
        return None not in self.success

    def counts(self) -> tuple[int, int]:
        """Return the numbers of successes and trials.

        Raises:
            InputError: a trial has no outcome.
        """
        return int(self.values("success").sum()), len(self)

    def _check(self) -> None:
        for name in (*_NAMES, "success"):
            if len(getattr(self, name)) != len(self):
                raise InputError(
                    f"Trials{self._format_origin()}: {len(getattr(self, name))} entries of {name} for {len(self)} "
                    "scores. "
                    "Every trial has one of each."
                )
        faults: Sequence[tuple[NDArray[np.bool_], str]] = (
            (~((self.score >= 0) & (self.score <= 1)), "has a score outside 0 to 1; divide by the maximum score"),
            (np.array([name not in DOMAINS for name in self.domain], dtype=np.bool_), "is neither real nor sim"),
            (np.array([not name for name in self.policy], dtype=np.bool_), "names no policy"),
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
    """Real and simulated values of the same initial states: ``real`` and ``sim`` ``(n,)``, and the policy of each.

    If an initial state was tried more than once, its values are means over the repeats.
    """

    policy: tuple[str, ...]
    real: NDArray[np.float64]
    sim: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.real)


def pair_trials(trials: Trials, measure: Measure = "score") -> Pairs:
    """Pair the trials whose pair was tried in both domains, by policy, task and condition; the result may be empty.

    Raises:
        InputError: ``measure`` is successes, and a trial has no outcome.
    """
    values = trials.values(measure)
    seen: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for number, pair in enumerate(trials.pair):
        if pair:
            key = (trials.policy[number], trials.task[number], trials.condition[number], pair)
            seen.setdefault(key, {}).setdefault(trials.domain[number], []).append(float(values[number]))
    both = {key: sides for key, sides in seen.items() if len(sides) == len(DOMAINS)}
    return Pairs(
        policy=tuple(key[0] for key in both),
        real=freeze_array([np.mean(sides["real"]) for sides in both.values()]),
        sim=freeze_array([np.mean(sides["sim"]) for sides in both.values()]),
    )
