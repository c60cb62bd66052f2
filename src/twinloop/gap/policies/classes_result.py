"""Failure classes of sim-to-real, and the result of a check of one: evidence, interval, remedy."""

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
    """One check of one class on one ``subject`` (an axis, a channel, an environment).

    ``fired`` is True only on significant evidence. ``p_value`` is adjusted by Holm over all checks that have one; NaN
    if the interval of ``figure`` decides. ``needed`` is the missing data if the check could not decide, else "".
    ``remedy`` are shell commands.
    """

    kind: Kind
    subject: str
    fired: bool
    evidence: str
    figure: Interval | None = None
    p_value: float = float("nan")
    needed: str = ""
    remedy: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            **vars(self),
            "meaning": MEANINGS[self.kind],
            "figure": None if self.figure is None else self.figure.to_json(),
            "remedy": list(self.remedy),
        }


@dataclass(frozen=True, kw_only=True)
class FailureDiagnosis:
    """Every check that the data allowed, and the classes that were not checked, with the reason."""

    checks: tuple[ClassCheck, ...]
    skipped: Mapping[Kind, str]

    @property
    def fired_checks(self) -> tuple[ClassCheck, ...]:
        """Checks with significant evidence, sorted by class, then by p-value."""
        order = list(MEANINGS)
        found = [check for check in self.checks if check.fired]
        return tuple(sorted(found, key=lambda c: (order.index(c.kind), np.nan_to_num(c.p_value))))

    @property
    def classes(self) -> tuple[Kind, ...]:
        """The classes that fired, each once."""
        return tuple(dict.fromkeys(check.kind for check in self.fired_checks))

    def sentences(self) -> list[str]:
        """Return sentences: fired checks with evidence and remedy, undecided checks, classes that were not checked."""
        lines = [
            f"{MEANINGS[c.kind].capitalize()}: {c.evidence}. To do: " + ", then ".join(f"`{r}`" for r in c.remedy) + "."
            for c in self.fired_checks
        ]
        if not lines:
            lines.append(f"No failure class fires on {len(self.checks)} checks.")
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
    """Adjust the p-values of all checks together; only those that remain significant fire.

    In a check with a p-value, ``fired`` must be True if its estimate is in the bad direction.
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
