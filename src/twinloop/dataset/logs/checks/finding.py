"""Define input and results of log checks: the twin's joints, findings with evidence and remedy, and the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Episode
from twinloop.dataset.logs.importers.protocol import RawEpisode

LogRecord = Episode | RawEpisode
InverseDynamics = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class JointExpectations:
    """Properties of a twin's joints that a log should match.

    Attributes:
        name: the twin's name, for messages.
        joints: names of the robot's joints.
        ranges: position limits in rad or m, ``(n, 2)``; infinite for a joint without limits.
        slides: whether each joint is a slide joint, ``(n,)``.
        control: command type of the robot.
        inverse_dynamics: joint torques ``(T, n)`` from positions, velocities and accelerations ``(T, n)``, in SI and in
            the order of ``joints``; None if the twin cannot compute them.
    """

    name: str
    joints: tuple[str, ...]
    ranges: NDArray[np.float64]
    slides: NDArray[np.bool_]
    control: Literal["position", "torque"]
    inverse_dynamics: InverseDynamics | None = None

    def match_joints(self, joints: Sequence[str]) -> list[tuple[int, int]]:
        """Return for each joint that twin and log both have its index in the twin and its column in the log."""
        return [(row, list(joints).index(joint)) for row, joint in enumerate(self.joints) if joint in joints]


Severity = Literal["error", "warning", "note"]
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")
_SHOWN = 6  # most ranges of episode numbers in a line


@dataclass(frozen=True, kw_only=True)
class LogFinding:
    """One defect of a log.

    ``kind`` is its name (table in ``docs/guides/import_logs.md``). An ``error`` makes a fit wrong or impossible, a
    ``warning`` may be intended, a ``note`` is for information. ``column`` is the joint or ``signal/column``, "" if all
    columns are affected. The defect begins at ``begin_s`` of the first of ``episodes``; ``figures`` are the numbers of
    the evidence there.
    """

    kind: str
    severity: Severity
    column: str
    episodes: tuple[int, ...]
    begin_s: float
    evidence: str
    remedy: str
    figures: Mapping[str, float] = field(default_factory=dict[str, float])

    def format_line(self) -> str:
        """Return the finding as one line of text."""
        subject = f"{self.column}, " if self.column else ""
        return (
            f"{self.severity}: {self.kind}: {subject}{_format_episodes(self.episodes)} from {self.begin_s:.3f} s: "
            f"{self.evidence} {self.remedy}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
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


def make_finding(
    record: LogRecord,
    column: str,
    begin: float,
    kind: str,
    severity: Severity,
    evidence: str,
    remedy: str,
    **figures: float,
) -> LogFinding:
    """Return a finding of one column that begins at ``begin`` (s) of one episode."""
    return LogFinding(
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
    """All findings of a log, errors first.

    ``lags`` is the median delay of each joint's measurement behind its command, in s; joints with too little motion are
    missing.
    """

    findings: tuple[LogFinding, ...]
    lags: Mapping[str, float]
    episodes: int
    frames: int

    @property
    def errors(self) -> tuple[LogFinding, ...]:
        """Findings that make a fit wrong or impossible."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def select_kind(self, kind: str) -> tuple[LogFinding, ...]:
        """Return the findings of one kind."""
        return tuple(finding for finding in self.findings if finding.kind == kind)

    def format_text(self) -> str:
        """Return the report as text, one line per finding."""
        counts = {severity: sum(f.severity == severity for f in self.findings) for severity in _ORDER}
        said = ", ".join(f"{count} {severity}{'s' * (count != 1)}" for severity, count in counts.items())
        lines = [f"{self.episodes} episodes, {self.frames} frames: {said}"]
        if self.lags:
            lags = ", ".join(f"{joint} {1e3 * lag:.0f}" for joint, lag in self.lags.items())
            lines.append(f"Measurements follow commands by (ms): {lags}")
        return "\n".join([*lines, *(finding.format_line() for finding in self.findings)])

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary (schema 1)."""
        return {
            "schema": 1,
            "passed": not self.errors,
            "episodes": self.episodes,
            "frames": self.frames,
            "lags_s": dict(self.lags),
            "findings": [finding.to_json() for finding in self.findings],
        }


def merge_findings(findings: Iterable[LogFinding]) -> tuple[LogFinding, ...]:
    """Merge findings that recur in several episodes into one, with the first episode's values; errors first."""
    groups: dict[tuple[str, str, str], list[LogFinding]] = {}
    for finding in findings:
        groups.setdefault((finding.kind, finding.severity, finding.column), []).append(finding)
    joined = []
    for group in groups.values():
        numbers = tuple(dict.fromkeys(number for finding in group for number in finding.episodes))
        joined.append(replace(group[0], episodes=numbers))
    return tuple(sorted(joined, key=lambda finding: _ORDER.index(finding.severity)))


def _format_episodes(episodes: Sequence[int]) -> str:
    """Format episode numbers as ``episode 3`` or ``episodes 0-3, 7``."""
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


POSITIONS = {
    180 / math.pi: "degrees where radians should be",
    math.pi / 180: "radians where degrees should be",
    1000.0: "mm where m should be",
    0.001: "m where mm should be",
}
VELOCITIES = {
    **POSITIONS,
    30 / math.pi: "turns per minute where rad/s should be",
    math.pi / 30: "rad/s where turns per minute should be",
}
_NEAR = 1.35  # tolerance as a factor: servos do not reach their commands, velocities are filtered


def name_factor(slope: float, known: Mapping[float, str]) -> str | None:
    """Return the unit error that causes a positive factor, which should be 1; None if it is near no known one.

    A joint that moves by a third of its command is weak, not in another unit.
    """
    return next((name for size, name in known.items() if size / _NEAR < slope < size * _NEAR), None)
