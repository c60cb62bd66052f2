"""Define the decision of a release gate about a candidate policy: every rule with its verdict, reason and evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from twinloop.core.errors import InputError
from twinloop.core.files import sha256_json
from twinloop.core.plain import JsonRecord

Verdict = Literal["yes", "no", "missing", "waived", "none"]


@dataclass(frozen=True, kw_only=True)
class RuleVerdict(JsonRecord):
    """The verdict of one gate rule on a candidate policy.

    Attributes:
        rule: Name of the rule.
        verdict: ``yes``, ``no``, ``missing`` (the evidence does not suffice; refuses the candidate like ``no``),
            ``waived`` (a person disabled the rule), or ``none`` (the rule does not apply, for example because there is
            no champion yet or there are no trials on a robot).
        requirement: Sentence that states the required evidence.
        reason: Sentence that states the available evidence.
        evidence: Metrics behind the verdict, by name.
    """

    json_names: ClassVar[Mapping[str, str | None]] = {"requirement": "asked"}

    rule: str
    verdict: Verdict
    requirement: str
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RuleVerdict:
        """Create the verdict from the dictionary that `to_json` returns."""
        fields = dict(value)
        fields["requirement"] = fields.pop("asked")
        return cls(**fields)

    @property
    def passed(self) -> bool:
        """True if the rule does not refuse the candidate: verdict ``yes``, ``waived`` or ``none`` (does not apply)."""
        return self.verdict in ("yes", "waived", "none")

    def format_line(self) -> str:
        """Return verdict, rule name and reason as one line of text for the console."""
        return f"{self.verdict:7} {self.rule}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class GateDecision(JsonRecord):
    """Decision of a release gate: whether a candidate policy may replace the champion (the released policy).

    Attributes:
        candidate: Name of the candidate policy.
        candidate_hash: Hash of the candidate's weights and settings.
        champion: Name of the champion; empty if no policy has been released yet.
        champion_hash: Hash of the champion's weights and settings; empty if there is no champion.
        alpha: Largest probability that a candidate passes although it breaks a rule that is tested on trials.
        looks: ``any`` if ``alpha`` is valid for repeated decisions while trials are added (a sequential test), ``once``
            if it is valid for a single decision.
        rules: Verdicts of all rules.
        evidence: Hashes of the evaluations that were used.
        robot_trials: Number of the candidate's trials on a robot; 0 if only simulated trials were used, None in
            decisions that were stored before these trials were counted.
        plan: Requirements of the later deployment stages (shadow, canary, champion).
        made: Time of the decision as ISO 8601 text.
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
        """True if no rule refuses the candidate and at least one rule has the verdict ``yes``."""
        return all(rule.passed for rule in self.rules) and any(rule.verdict == "yes" for rule in self.rules)

    @property
    def is_tested(self) -> bool:
        """True if any rule was tested on trials.

        False if the gate stopped at the rule ``evidence``, which requires complete trials of both policies.
        """
        return any(rule.rule != "evidence" for rule in self.rules)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons for a refusal: one line for each rule that refuses the candidate."""
        return tuple(f"{rule.rule}: {rule.reason}" for rule in self.rules if not rule.passed)

    @property
    def hash(self) -> str:
        """SHA-256 of the decision's JSON form."""
        return sha256_json(self.to_json())

    def rule(self, name: str) -> RuleVerdict:
        """Return the entry of ``rules`` for one rule, by its name.

        Raises:
            KeyError: If the decision has no rule of that name.
        """
        return {rule.rule: rule for rule in self.rules}[name]

    def format_lines(self) -> list[str]:
        """Return lines of text for the console: YES or NO with the policies' names, then one line for each rule."""
        against = f" against {self.champion}" if self.champion else ""
        alone = ", on simulated trials alone" if self.is_tested and self.robot_trials == 0 else ""
        first = f"{'YES' if self.passed else 'NO'}: {self.candidate}{against}{alone}"
        return [first, *(rule.format_line() for rule in self.rules)]

    def to_json(self) -> dict[str, Any]:
        """Return the decision as a JSON-compatible dictionary of schema version 1."""
        value = super().to_json()
        if self.robot_trials is None:
            del value["robot_trials"]  # an old decision keeps its hash
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GateDecision:
        """Create the decision from the dictionary that `to_json` returns.

        Raises:
            InputError: If the value does not have the form that `to_json` writes.
        """
        if value.get("schema") != 1 or "rules" not in value:
            raise InputError("This is not a decision of a gate. Give the decision.json that `twinloop gate` wrote.")
        rest: dict[str, Any] = {key: item for key, item in value.items() if key in cls.__dataclass_fields__}
        rest["rules"] = tuple(RuleVerdict.from_json(rule) for rule in value["rules"])
        rest["evidence"] = tuple(value["evidence"])
        return cls(**rest)
