"""The command ``twinloop gap dynamics``, which ``twinloop gap`` stands for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinloop.cli.commands import Outcome, Reading, console


@dataclass(frozen=True, kw_only=True)
class Comparing:
    """How a log is cut, what of it is compared, and what is simulated."""

    window: float | None = None
    """Replay windows of so many seconds from measured states; default 1, or whole episodes where half of them are
    shorter. 0 replays whole episodes."""
    stride: float | None = None
    """Seconds from one window's beginning to the next; by default windows meet."""
    compare: tuple[str, ...] = ()
    """Kinds of measurement: position, velocity, pose/BODY, pose_error/BODY (distance and angle), twist/BODY,
    acceleration/SITE, angular_velocity/SITE. Default: joint positions, or the pose errors of a twin without a robot."""
    contacts: bool = False
    """Simulate contacts and joint stops, which a log of joint positions alone does not tell; always done for a twin
    without a robot. Errors are then told apart by contact."""
    measured_torque: bool = False
    """Drive a torque-controlled twin by the torques that were measured, instead of those that were commanded."""
    condition: tuple[str, ...] = ()
    """PARAMETER=CONDITION where every episode states a parameter's value, as in
    actuator/pendulum/firmware_gain=firmware_kp."""


@dataclass(frozen=True, kw_only=True)
class GapDynamics:
    """Measure how far a twin is from real logs: error over time, delay, skill, and real against real."""

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: tuple[str, ...]
    """A log or dataset, or the name of a public set; of several, the episodes are counted through."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    params: Path | None = None
    """Folder of an identify run, whose estimates replace the twin's nominal values. Of the log that it was fitted to,
    only its held-out episodes are measured."""
    no_why: bool = False
    """With --params: leave out why the nominal twin errs (`twinloop gap why`), which takes most of the time."""
    comparing: Comparing = field(default_factory=Comparing)
    repeats: str = "auto"
    """Which episodes repeat one motion, for the noise floor: auto (equal commands), task (episodes of one task), none,
    or numbers such as 0-9,12/20-24, where slashes part groups."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'skill < 0.5' or 'delay/elbow_flex > 0.02'."""
    reading: Reading = field(default_factory=Reading)
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.workflows.data.logs import open_logs
        from twinloop.workflows.gap.dynamics import run_gap
        from twinloop.workflows.gap.options import Request

        return run_gap(
            self.twin,
            open_logs(self.data, **vars(self.reading)),
            self.output,
            params=self.params,
            request=Request(**vars(self.comparing), repeats=self.repeats),
            why=not self.no_why,
            fail_if=self.fail_if,
            console=console(json=self.json),
        )
