"""Define results of checks: a metric with its limit, or the reason why a check was skipped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["pass", "fail", "skip"]


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """Result of one check.

    ``figure`` is the measured value and ``limit`` its largest allowed value, both in ``unit``; None without a
    measurement. ``detail`` gives the conditions, the failure, or the reason why the check was skipped. ``figures`` are
    further metrics.
    """

    name: str
    status: Status
    unit: str = ""
    figure: float | None = None
    limit: float | None = None
    detail: str = ""
    figures: Mapping[str, float] | None = None

    @classmethod
    def judge(
        cls,
        name: str,
        figure: float,
        limit: float,
        unit: str,
        *,
        detail: str = "",
        figures: Mapping[str, float] | None = None,
    ) -> CheckOutcome:
        """Return an outcome that passes if the metric is at most the limit; NaN fails."""
        status: Status = "pass" if figure <= limit else "fail"
        return cls(
            name=name, status=status, unit=unit, figure=float(figure), limit=limit, detail=detail, figures=figures
        )

    @classmethod
    def skip(cls, name: str, reason: str) -> CheckOutcome:
        """Return a skipped check with its reason."""
        return cls(name=name, status="skip", detail=reason)

    @classmethod
    def fail(cls, name: str, reason: str) -> CheckOutcome:
        """Return a check that failed before a measurement."""
        return cls(name=name, status="fail", detail=reason)

    def summary_line(self) -> str:
        """Return one line for people."""
        if self.figure is None:
            return f"{self.status:4} {self.name}: {self.detail}"
        measured = f"{self.figure:.3g} {self.unit}".rstrip()
        return f"{self.status:4} {self.name}: {measured} (limit {self.limit:g}). {self.detail}".rstrip()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary; a metric that is not finite becomes a string."""
        return {
            "name": self.name,
            "status": self.status,
            "figure": _to_json_number(self.figure),
            "limit": self.limit,
            "unit": self.unit,
            "detail": self.detail,
            "figures": {key: _to_json_number(value) for key, value in (self.figures or {}).items()},
        }


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """All checks of one twin, in the order of execution."""

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
        """Return lines for people."""
        count = {status: sum(check.status == status for check in self.checks) for status in ("pass", "fail", "skip")}
        total = f"{count['pass']} passed, {count['fail']} failed, {count['skip']} skipped"
        return "\n".join([f"{self.twin}: {total}", *(f"  {check.summary_line()}" for check in self.checks)])

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary for ``result.json``."""
        return {"twin": self.twin, "passed": self.passed, "checks": [check.to_json() for check in self.checks]}


def _to_json_number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
