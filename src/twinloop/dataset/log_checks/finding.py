"""What a check found: where, from when on, the evidence in numbers, how bad it is and what mends it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from twinloop.dataset.log_checks.expectations import LogRecord

Severity = Literal["error", "warning", "note"]
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")
_SHOWN = 6  # runs of episode numbers that a line shows


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One defect of a log.

    ``kind`` is its name (see the table in ``docs/log_checks.md``). An ``error`` would make a fit wrong or impossible, a
    ``warning`` is true and may be meant, a ``note`` is worth knowing. ``column`` is the joint or ``signal/column``, ""
    where all frames are concerned. It begins at ``begin_s`` of the first of ``episodes``; ``figures`` are the numbers
    of the evidence there.
    """

    kind: str
    severity: Severity
    column: str
    episodes: tuple[int, ...]
    begin_s: float
    evidence: str
    remedy: str
    figures: Mapping[str, float] = field(default_factory=dict[str, float])

    def line(self) -> str:
        """One line for people."""
        subject = f"{self.column}, " if self.column else ""
        return (
            f"{self.severity}: {self.kind}: {subject}{_numbers(self.episodes)} from {self.begin_s:.3f} s: "
            f"{self.evidence} {self.remedy}"
        )

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "column": self.column,
            "episodes": list(self.episodes),
            "begin_s": self.begin_s,
            "evidence": self.evidence,
            "remedy": self.remedy,
            "figures": dict(self.figures),
        }


def in_episode(
    record: LogRecord,
    column: str,
    begin: float,
    kind: str,
    severity: Severity,
    evidence: str,
    remedy: str,
    **figures: float,
) -> Finding:
    """A defect of one column, from ``begin`` (s) of one episode on; see `Finding`."""
    return Finding(
        kind=kind,
        severity=severity,
        column=column,
        episodes=(record.index,),
        begin_s=float(begin),
        evidence=evidence,
        remedy=remedy,
        figures={name: float(value) for name, value in figures.items()},
    )


@dataclass(frozen=True, kw_only=True)
class LogReport:
    """Everything that was found in a log, errors first.

    ``lags`` is by how many seconds each joint's measurement follows its command, the median over the episodes; joints
    that did not move enough to tell are missing.
    """

    findings: tuple[Finding, ...]
    lags: Mapping[str, float]
    episodes: int
    frames: int

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What would make a fit wrong or impossible."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def of(self, kind: str) -> tuple[Finding, ...]:
        """The findings of one kind."""
        return tuple(finding for finding in self.findings if finding.kind == kind)

    def text(self) -> str:
        """Lines for people."""
        counts = {severity: sum(f.severity == severity for f in self.findings) for severity in _ORDER}
        said = ", ".join(f"{count} {severity}{'s' * (count != 1)}" for severity, count in counts.items())
        lines = [f"{self.episodes} episodes, {self.frames} frames: {said}"]
        if self.lags:
            lags = ", ".join(f"{joint} {1e3 * lag:.0f}" for joint, lag in self.lags.items())
            lines.append(f"Measurements follow commands by (ms): {lags}")
        return "\n".join([*lines, *(finding.line() for finding in self.findings)])

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 1)."""
        return {
            "schema": 1,
            "passed": not self.errors,
            "episodes": self.episodes,
            "frames": self.frames,
            "lags_s": dict(self.lags),
            "findings": [finding.to_json() for finding in self.findings],
        }


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding for what recurs in several episodes, as it is in the first of them; errors first."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.kind, finding.severity, finding.column), []).append(finding)
    joined = []
    for group in groups.values():
        numbers = tuple(dict.fromkeys(number for finding in group for number in finding.episodes))
        joined.append(replace(group[0], episodes=numbers))
    return tuple(sorted(joined, key=lambda finding: _ORDER.index(finding.severity)))


def _numbers(episodes: Sequence[int]) -> str:
    """``episode 3`` or ``episodes 0-3, 7``."""
    if len(episodes) == 1:
        return f"episode {episodes[0]}"
    runs: list[list[int]] = []
    for number in sorted(episodes):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:_SHOWN])
    return f"episodes {shown}" + (", …" if len(runs) > _SHOWN else "")
