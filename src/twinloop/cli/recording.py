"""The command that drives a robot through an excitation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Record:
    """Drive a robot through an excitation within its limits, and record the log as a LeRobot v3.0 dataset."""

    robot: str
    """virtual:TWIN?seed=N, or your own class as path/to/file.py:Class?option=value."""
    excitation: Path
    """The plan, from identify --plan --excitation."""
    output: Path | None = None
    """Folder of the dataset."""
    repeat: int | None = None
    """How often, each time an episode; by default as often as the plan was made for."""
    dry_run: bool = False
    """Say duration, range and peak speed per joint, and move nothing."""
    on_abort: Literal["hold", "return"] = "hold"
    """When something is wrong, or on Ctrl-C: hold the pose, or return slowly to the start."""
    following: float = 0.15
    """How far a joint may lag beyond one and a half times what the plan foresees, in rad or m."""
    temperature: float = 60.0
    """Degrees Celsius at which to stop, where the robot says its temperatures."""
    anyway: bool = False
    """Go on although the twin has changed since the plan was made, or the robot is of another type."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Record."""
        from twinloop.workflows.data.record import RecordRequest, run_record

        request = RecordRequest(
            repeat=self.repeat,
            dry_run=self.dry_run,
            on_abort=self.on_abort,
            following=self.following,
            temperature=self.temperature,
            anyway=self.anyway,
        )
        return run_record(self.robot, self.excitation, self.output, request, console=console(json=self.json))
