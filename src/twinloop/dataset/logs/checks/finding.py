"""Define inputs and results of log checks: joints of the twin, findings with evidence and remedy, and the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Episode
from twinloop.core.units import CommandKind
from twinloop.dataset.logs.importers.protocol import RawEpisode

LogRecord = Episode | RawEpisode
InverseDynamics = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class JointExpectations:
    """Properties of a twin's n joints that a log should match.

    Attributes:
        name: Name of the twin, for messages.
        joints: Names of the robot's joints.
        ranges: Position limits in rad or m, shape ``(n, 2)``; infinite for a joint without limits.
        slides: Whether each joint is a slide joint, shape ``(n,)``.
        control: Command type of the robot.
        inverse_dynamics: Function that returns joint torques, shape ``(T, n)``, from positions, velocities and
            accelerations of that shape, in SI units and in the order of ``joints``. None if the twin cannot compute
            torques.
    """

    name: str
    joints: tuple[str, ...]
    ranges: NDArray[np.float64]
    slides: NDArray[np.bool_]
    control: CommandKind
    inverse_dynamics: InverseDynamics | None = None

    def match_joints(self, joints: Sequence[str]) -> list[tuple[int, int]]:
        """Return the index in the twin and the column in the log of each joint that both have.

        Args:
            joints: Names of the log's joints, in column order.
        """
        return [(row, list(joints).index(joint)) for row, joint in enumerate(self.joints) if joint in joints]


Severity = Literal["error", "warning", "note"]
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")
_SHOWN = 6  # most ranges of episode numbers in a line


@dataclass(frozen=True, kw_only=True)
class LogFinding:
    """One defect of a log.

    Attributes:
        kind: Name of the defect (table in ``docs/guides/import_logs.md``).
        severity: ``error`` if the defect makes a fit wrong or impossible, ``warning`` if it may be intended,
            ``note`` for information.
        column: Name of the joint, or ``signal/column``; "" if all columns are affected.
        episodes: Numbers of the affected episodes.
        begin_s: Time in s at which the defect begins in the first of the episodes.
        evidence: Sentence that describes the observed values.
        remedy: Sentence or command-line flag that corrects the defect.
        metrics: Numbers of the evidence by name.
    """

    kind: str
    severity: Severity
    column: str
    episodes: tuple[int, ...]
    begin_s: float
    evidence: str
    remedy: str
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])

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
            "metrics": dict(self.metrics),
        }


def make_finding(
    record: LogRecord,
    column: str,
    begin: float,
    kind: str,
    severity: Severity,
    evidence: str,
    remedy: str,
    **metrics: float,
) -> LogFinding:
    """Return a finding of one column in one episode.

    Args:
        record: Episode.
        column: Name of the joint or ``signal/column``; "" if all columns are affected.
        begin: Time in s at which the defect begins.
        kind: Name of the defect.
        severity: Severity of the defect.
        evidence: Sentence that describes the observed values.
        remedy: Sentence or command-line flag that corrects the defect.
        metrics: Numbers of the evidence by name.
    """
    return LogFinding(
        kind=kind,
        severity=severity,
        column=column,
        episodes=(record.index,),
        begin_s=float(begin),
        evidence=evidence,
        remedy=remedy,
        metrics={name: float(value) for name, value in metrics.items()},
    )


@dataclass(frozen=True, kw_only=True)
class LogReport:
    """All defects that the checks of one log found.

    Attributes:
        findings: Findings, errors first.
        lags: Median delay in s of each joint's measurement behind its command; joints with too little motion are
            missing.
        episodes: Number of episodes.
        frames: Number of frames.
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
        """Return the findings with the given name of the defect."""
        return tuple(finding for finding in self.findings if finding.kind == kind)

    def format_text(self) -> str:
        """Return the report as text, one line per finding."""
        counts = {severity: sum(f.severity == severity for f in self.findings) for severity in _ORDER}
        summary = ", ".join(f"{count} {severity}{'s' * (count != 1)}" for severity, count in counts.items())
        lines = [f"{self.episodes} episodes, {self.frames} frames: {summary}"]
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
    """Merge findings of the same defect and column in several episodes into one, and sort errors first.

    A merged finding has the evidence of the first episode.
    """
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
    """Return the unit error that explains why a slope between two quantities is not 1; None if no unit error does.

    Slopes that no unit error explains are not reported as unit errors. For example, a weak joint may move by only a
    third of its command.

    Args:
        slope: Positive slope, for example of measured over commanded movement.
        known: Text of each known unit error by its factor. A slope matches within a factor of 1.35.
    """
    return next((name for size, name in known.items() if size / _NEAR < slope < size * _NEAR), None)
