"""What a gate decided about a candidate: every rule with its verdict, its reason and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from twinloop.core.errors import InputError
from twinloop.core.files import sha256_json
from twinloop.core.plain import JsonRecord

Verdict = Literal["yes", "no", "missing", "waived", "none"]


@dataclass(frozen=True, kw_only=True)
class RuleVerdict(JsonRecord):
    """What one rule said.

    ``verdict`` is ``yes``, ``no``, ``missing`` where the evidence does not suffice to say (which refuses like a no),
    ``waived`` where a person took the rule away, or ``none`` where there is nothing that the rule is about (no
    champion yet, no trials on a robot). ``asked`` says what would have been enough, ``reason`` what was found, a
    sentence each; ``evidence`` holds the figures.
    """

    rule: str
    verdict: Verdict
    asked: str
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def passed(self) -> bool:
        """Whether the rule stands in no candidate's way."""
        return self.verdict in ("yes", "waived", "none")

    def line(self) -> str:
        """For a person."""
        return f"{self.verdict:7} {self.rule}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class GateDecision(JsonRecord):
    """Whether a candidate may be released in the place of a champion.

    ``candidate`` and ``champion`` are names, ``candidate_hash`` and ``champion_hash`` of weights and settings; the
    champion is empty where there is none yet. ``evidence`` are the hashes of the evaluations that were read.
    ``alpha`` is the chance of saying yes to a candidate that breaks a tested rule; ``looks`` says whether it holds
    however often one looks (``any``) or for this one look (``once``). ``robot_trials`` are the candidate's trials on a
    robot: 0 where the decision rests on simulated trials alone, None in decisions from before they were counted.
    ``plan`` is what later stages ask for.
    """

    json_schema = 1
    json_also = ("passed",)

    candidate: str
    candidate_hash: str
    champion: str = ""
    champion_hash: str = ""
    alpha: float
    looks: Literal["any", "once"]
    rules: tuple[RuleVerdict, ...]
    evidence: tuple[str, ...] = ()
    robot_trials: int | None = None
    plan: Mapping[str, Any] = field(default_factory=dict[str, Any])
    made: str = ""

    @property
    def passed(self) -> bool:
        """Whether no rule refused, and one at least said yes."""
        return all(rule.passed for rule in self.rules) and any(rule.verdict == "yes" for rule in self.rules)

    @property
    def looked(self) -> bool:
        """Whether any rule was asked of the trials, or they were refused before."""
        return any(rule.rule != "evidence" for rule in self.rules)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why not: a line for each rule that did not say yes."""
        return tuple(f"{rule.rule}: {rule.reason}" for rule in self.rules if not rule.passed)

    @property
    def hash(self) -> str:
        """SHA-256 of all of it."""
        return sha256_json(self.to_json())

    def rule(self, name: str) -> RuleVerdict:
        """The verdict of one rule.

        Raises:
            KeyError: none of that name was asked.
        """
        return {rule.rule: rule for rule in self.rules}[name]

    def lines(self) -> list[str]:
        """For a person: the answer, then a line for each rule."""
        against = f" against {self.champion}" if self.champion else ""
        alone = ", on simulated trials alone" if self.looked and self.robot_trials == 0 else ""
        first = f"{'YES' if self.passed else 'NO'}: {self.candidate}{against}{alone}"
        return [first, *(rule.line() for rule in self.rules)]

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 1)."""
        value = super().to_json()
        if self.robot_trials is None:
            del value["robot_trials"]  # an old decision keeps its hash
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GateDecision:
        """The inverse of `to_json`.

        Raises:
            InputError: it is not what `to_json` wrote.
        """
        if value.get("schema") != 1 or "rules" not in value:
            raise InputError("This is no decision of a gate. Give the decision.json that `twinloop gate` wrote.")
        rest: dict[str, Any] = {key: item for key, item in value.items() if key in cls.__dataclass_fields__}
        rest["rules"] = tuple(RuleVerdict(**rule) for rule in value["rules"])
        rest["evidence"] = tuple(value["evidence"])
        return cls(**rest)
