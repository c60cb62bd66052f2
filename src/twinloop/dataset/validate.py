"""The two public validators of LeRobot datasets, run as they are, their verdicts as records."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinloop.core.errors import DatasetError, MissingDependencyError

_REMEDY = "pip install 'twinloop[verify]'"
_TIMEOUT_S = 1800


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one validator says: counts of its checks, and the text of those that failed or warned."""

    validator: str
    accepted: bool
    passed: int
    warned: int
    failed: int
    failures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A plain form for results."""
        return {
            "validator": self.validator,
            "accepted": self.accepted,
            "passed": self.passed,
            "warned": self.warned,
            "failed": self.failed,
            "failures": list(self.failures),
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        verdict = "accepts" if self.accepted else "refuses"
        counts = f"{self.passed} passed, {self.warned} warned, {self.failed} failed"
        return "; ".join([f"{self.validator} {verdict} it ({counts})", *self.failures])


def validate(path: Path | str) -> tuple[Verdict, ...]:
    """Run ``lerobot-doctor --ci`` and ``robovet doctor`` on a dataset folder.

    Raises:
        MissingDependencyError: a validator is not installed; names the command that installs it.
        DatasetError: a validator ended without a verdict; quotes what it said.
    """
    path = Path(path)
    return lerobot_doctor(path), robovet(path)


def lerobot_doctor(path: Path) -> Verdict:
    """The verdict of ``lerobot-doctor check --ci``; it accepts when none of its checks fails."""
    done = _run("lerobot-doctor", ["check", "--ci", str(path)])
    report = _parse("lerobot-doctor", done.stdout, done)
    counts = report["summary"]
    return Verdict(
        validator="lerobot-doctor",
        accepted=done.returncode == 0,
        passed=counts["PASS"],
        warned=counts["WARN"],
        failed=counts["FAIL"],
        failures=_messages(report, "FAIL"),
        warnings=_messages(report, "WARN"),
    )


def robovet(path: Path) -> Verdict:
    """The verdict of ``robovet doctor``; it accepts when none of its checks fails."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "robovet.json"
        done = _run("robovet", ["doctor", str(path), "--json", str(target)])
        report = _parse("robovet", target.read_text() if target.exists() else "", done)
    found = {level: [r for r in report["results"] if r["severity"] == level] for level in ("FAIL", "WARN")}
    return Verdict(
        validator="robovet",
        accepted=done.returncode == 0,
        passed=report["counts"]["PASS"],
        warned=report["counts"]["WARN"],
        failed=report["counts"]["FAIL"],
        failures=tuple(r["summary"] for r in found["FAIL"]),
        warnings=tuple(r["summary"] for r in found["WARN"]),
    )


def _run(program: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a validator that was installed beside this interpreter."""
    places = (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent)
    found = next((place / program for place in places if (place / program).is_file()), None)
    if found is None:
        raise MissingDependencyError(f"The validator {program} is not installed.", remedy=_REMEDY)
    command = [str(found), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - a fixed program and a path


def _parse(program: str, text: str, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing"]
        raise DatasetError(f"{program} ended with {done.returncode} and gave no verdict. It said: {said[0]}") from None


def _messages(report: dict[str, Any], level: str) -> tuple[str, ...]:
    return tuple(
        message["message"]
        for check in report["checks"]
        for message in check["messages"]
        if message["severity"] == level
    )
