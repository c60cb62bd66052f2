"""Define the decision of a gate about a candidate: every rule with its verdict, reason and evidence."""

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
    """The verdict of one rule.

    ``verdict`` is ``yes``, ``no``, ``missing`` (the evidence does not suffice; it refuses like ``no``), ``waived``
    (a person removed the rule), or ``none`` (the rule does not apply: no champion yet, no trials on a robot). ``asked``
    is a sentence on the required evidence, ``reason`` a sentence on the evidence found, and ``evidence`` holds the
    metrics.
    """

    rule: str
    verdict: Verdict
    asked: str
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def passed(self) -> bool:
        """True if the rule lets the candidate pass."""
        return self.verdict in ("yes", "waived", "none")

    def format_line(self) -> str:
        """Return one line of text for the console."""
        return f"{self.verdict:7} {self.rule}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class GateDecision(JsonRecord):
    """Decision whether a candidate may replace a champion.

    ``candidate`` and ``champion`` are names, ``candidate_hash`` and ``champion_hash`` hashes of weights and settings;
    the champion is empty if there is none yet. ``evidence`` are the hashes of the evaluations used. ``alpha`` is the
    probability of passing a candidate that breaks a tested rule; ``looks`` states whether this holds for any number of
    looks at the data (``any``) or for one look (``once``). ``robot_trials`` is the number of the candidate's trials on
    a robot: 0 if the decision uses simulated trials only, None in decisions made before they were counted. ``plan``
    holds the requirements of later stages.
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
        """True if no rule refused and at least one has the verdict ``yes``."""
        return all(rule.passed for rule in self.rules) and any(rule.verdict == "yes" for rule in self.rules)

    @property
    def is_tested(self) -> bool:
        """True if any rule was tested on the trials; False if the evidence was refused before."""
        return any(rule.rule != "evidence" for rule in self.rules)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons for a refusal: one line for each rule that did not pass."""
        return tuple(f"{rule.rule}: {rule.reason}" for rule in self.rules if not rule.passed)

    @property
    def hash(self) -> str:
        """SHA-256 of the JSON form."""
        return sha256_json(self.to_json())

    def rule(self, name: str) -> RuleVerdict:
        """Return the verdict of one rule.

        Raises:
            KeyError: the decision has no rule of that name.
        """
        return {rule.rule: rule for rule in self.rules}[name]

    def format_lines(self) -> list[str]:
        """Return lines of text for the console: the answer, then a line for each rule."""
        against = f" against {self.champion}" if self.champion else ""
        alone = ", on simulated trials alone" if self.is_tested and self.robot_trials == 0 else ""
        first = f"{'YES' if self.passed else 'NO'}: {self.candidate}{against}{alone}"
        return [first, *(rule.format_line() for rule in self.rules)]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary (schema 1)."""
        value = super().to_json()
        if self.robot_trials is None:
            del value["robot_trials"]  # an old decision keeps its hash
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GateDecision:
        """Create the object from the dictionary that `to_json` returns.

        Raises:
            InputError: the value does not have the form that `to_json` writes.
        """
        if value.get("schema") != 1 or "rules" not in value:
            raise InputError("This is not a decision of a gate. Give the decision.json that `twinloop gate` wrote.")
        rest: dict[str, Any] = {key: item for key, item in value.items() if key in cls.__dataclass_fields__}
        rest["rules"] = tuple(RuleVerdict(**rule) for rule in value["rules"])
        rest["evidence"] = tuple(value["evidence"])
        return cls(**rest)
