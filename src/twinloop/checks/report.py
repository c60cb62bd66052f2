"""Define the results of checks: a measured value with its limit, or the reason why a check was skipped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["pass", "fail", "skip"]


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """Result of one check of a twin.

    Attributes:
        name: Name of the check.
        status: ``pass``, ``fail`` or ``skip``.
        unit: Unit of the measured value and its limit.
        metric: Measured value; None if nothing was measured.
        limit: Largest allowed value; None if nothing was measured.
        detail: Sentence with the test conditions, the failure, or the reason for a skip.
        metrics: Further metrics by name.
    """

    name: str
    status: Status
    unit: str = ""
    metric: float | None = None
    limit: float | None = None
    detail: str = ""
    metrics: Mapping[str, float] | None = None

    @classmethod
    def judge(
        cls,
        name: str,
        metric: float,
        limit: float,
        unit: str,
        *,
        detail: str = "",
        metrics: Mapping[str, float] | None = None,
    ) -> CheckOutcome:
        """Create an outcome from a measured value; it passes if the value is at most the limit, and NaN fails.

        Args:
            name: Name of the check.
            metric: Measured value.
            limit: Largest allowed value.
            unit: Unit of both.
            detail: Sentence with the test conditions.
            metrics: Further metrics by name.
        """
        status: Status = "pass" if metric <= limit else "fail"
        return cls(
            name=name, status=status, unit=unit, metric=float(metric), limit=limit, detail=detail, metrics=metrics
        )

    @classmethod
    def skip(cls, name: str, reason: str) -> CheckOutcome:
        """Create the outcome of a check that was skipped for the given reason."""
        return cls(name=name, status="skip", detail=reason)

    @classmethod
    def fail(cls, name: str, reason: str) -> CheckOutcome:
        """Create the outcome of a check that failed before anything could be measured."""
        return cls(name=name, status="fail", detail=reason)

    def summary_line(self) -> str:
        """Return status, name, measured value, limit and detail as one line of text."""
        if self.metric is None:
            return f"{self.status:4} {self.name}: {self.detail}"
        measured = f"{self.metric:.3g} {self.unit}".rstrip()
        return f"{self.status:4} {self.name}: {measured} (limit {self.limit:g}). {self.detail}".rstrip()

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as a JSON-compatible dictionary; NaN and infinity become strings."""
        return {
            "name": self.name,
            "status": self.status,
            "metric": _to_json_number(self.metric),
            "limit": self.limit,
            "unit": self.unit,
            "detail": self.detail,
            "metrics": {key: _to_json_number(value) for key, value in (self.metrics or {}).items()},
        }


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Results of all checks of one twin, in the order in which they ran."""

    twin: str
    checks: tuple[CheckOutcome, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed. Skipped checks do not count as failed; their details give the reason."""
        return all(check.status != "fail" for check in self.checks)

    def __getitem__(self, name: str) -> CheckOutcome:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"No check {name!r}; there are {', '.join(check.name for check in self.checks)}.")

    def text(self) -> str:
        """Return the report as text: a line with the totals, then one line per check."""
        count = {status: sum(check.status == status for check in self.checks) for status in ("pass", "fail", "skip")}
        total = f"{count['pass']} passed, {count['fail']} failed, {count['skip']} skipped"
        return "\n".join([f"{self.twin}: {total}", *(f"  {check.summary_line()}" for check in self.checks)])

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON-compatible dictionary, which is stored in ``result.json``."""
        return {"twin": self.twin, "passed": self.passed, "checks": [check.to_json() for check in self.checks]}


def _to_json_number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
