"""Result classes of the diagnosis of a failed sim-to-real transfer: one check of a failure class, and the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from twinloop.stats import Interval, holm

ALPHA = 0.05  # probability that any check of a diagnosis fires although nothing is wrong

Kind = Literal[
    "never_covered", "gap_too_wide", "other_environment", "drift", "weak_in_simulation", "beyond_what_is_modelled"
]
MEANINGS: Mapping[Kind, str] = {
    "never_covered": "never covered in training",
    "gap_too_wide": "the gap is too wide",
    "other_environment": "another environment is not covered",
    "drift": "drift since calibration",
    "weak_in_simulation": "the policy fails in simulation as well",
    "beyond_what_is_modelled": "simulation is easier than reality, and no check explains it",
}


@dataclass(frozen=True, kw_only=True)
class ClassCheck:
    """Result of one check: whether a failure class applies to one subject.

    Attributes:
        kind: The failure class.
        subject: What was checked: the name of an axis, a channel, an environment or a policy.
        fired: True if the class applies, with significant evidence once `adjust_checks` has run.
        evidence: Sentence with the numbers.
        metric: The tested metric with its interval; None if the check has none.
        p_value: p-value, adjusted by Holm's method over all checks once `adjust_checks` has run; NaN if the interval of
            ``metric`` decides instead.
        needed: Data that are missing if the check could not decide; otherwise empty.
        remedy: Shell commands that may help.
    """

    kind: Kind
    subject: str
    fired: bool
    evidence: str
    metric: Interval | None = None
    p_value: float = float("nan")
    needed: str = ""
    remedy: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            **vars(self),
            "meaning": MEANINGS[self.kind],
            "metric": None if self.metric is None else self.metric.to_json(),
            "remedy": list(self.remedy),
        }


@dataclass(frozen=True, kw_only=True)
class FailureDiagnosis:
    """All checks that the data allowed.

    Attributes:
        checks: Results of the checks.
        skipped: Failure classes that could not be checked, with the reason.
    """

    checks: tuple[ClassCheck, ...]
    skipped: Mapping[Kind, str]

    @property
    def fired_checks(self) -> tuple[ClassCheck, ...]:
        """Checks with significant evidence, sorted by failure class, then by p-value."""
        order = list(MEANINGS)
        found = [check for check in self.checks if check.fired]
        return tuple(sorted(found, key=lambda c: (order.index(c.kind), np.nan_to_num(c.p_value))))

    @property
    def classes(self) -> tuple[Kind, ...]:
        """Failure classes with significant evidence, each listed once."""
        return tuple(dict.fromkeys(check.kind for check in self.fired_checks))

    def sentences(self) -> list[str]:
        """Describe the diagnosis in sentences.

        First come significant checks with evidence and remedy, then undecided checks with the missing data, then
        failure classes that could not be checked.
        """
        lines = [
            f"{MEANINGS[c.kind].capitalize()}: {c.evidence}. To do: " + ", then ".join(f"`{r}`" for r in c.remedy) + "."
            for c in self.fired_checks
        ]
        if not lines:
            lines.append(f"No failure class was found in {len(self.checks)} checks.")
        lines += [
            f"Undecided, {MEANINGS[c.kind]} ({c.subject}): {c.evidence}; {c.needed}."
            for c in self.checks
            if c.needed and not c.fired
        ]
        return lines + [f"Not checked, {MEANINGS[kind]}: {why}." for kind, why in self.skipped.items()]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary (schema 1)."""
        return {
            "schema": 1,
            "alpha": ALPHA,
            "classes": list(self.classes),
            "checks": [check.to_json() for check in self.checks],
            "skipped": dict(self.skipped),
            "sentences": self.sentences(),
        }


def adjust_checks(checks: Sequence[ClassCheck], skipped: Mapping[Kind, str] | None = None) -> FailureDiagnosis:
    """Adjust the p-values of all checks together (Holm), and combine the checks into a diagnosis.

    A check with a p-value stays ``fired`` only if its adjusted p-value is significant. Checks with the p-value NaN are
    kept unchanged.

    Args:
        checks: Checks with unadjusted p-values; ``fired`` must be True if the estimate indicates the failure, even if
            not significantly.
        skipped: Failure classes that could not be checked, with the reason.
    """
    tested = [i for i, check in enumerate(checks) if not np.isnan(check.p_value)]
    adjusted = dict(zip(tested, holm([checks[i].p_value for i in tested]).tolist() if tested else [], strict=True))
    rows = [
        replace(
            check,
            p_value=adjusted[i],
            fired=check.fired and adjusted[i] <= ALPHA,
            evidence=f"{check.evidence} (p {adjusted[i]:.2g} after Holm)",
        )
        if i in adjusted
        else check
        for i, check in enumerate(checks)
    ]
    return FailureDiagnosis(checks=tuple(rows), skipped=dict(skipped or {}))
