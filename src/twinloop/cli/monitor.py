"""The command ``twinloop monitor``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class MonitorCalibrate:
    """Learn from successful episodes what is usual, so that alarms come at a promised rate where nothing is wrong."""

    data: Path
    """A run's dataset or any LeRobot v3.0 folder that says which episodes succeeded."""
    output: Path
    """Folder for the monitor: monitor.json and monitor.npz."""
    policy: str | None = None
    """The policy that acted: its folder, NAME@VERSION or an alias; without it only robot and scene are watched."""
    twin: str | None = None
    """The robot's twin; by default the workspace's, or so101_tabletop."""
    params: Path | None = None
    """A run of identify: the twin as this robot is."""
    rate: float = 0.05
    """False alarms per episode, of all signals together."""
    camera: tuple[str, ...] = ()
    """Cameras whose pictures are watched, such as front."""
    seed: int = 0
    """Of the split into episodes that shape bands and those that set thresholds."""
    threads: int = 0
    """C threads; 0 takes every core."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Calibrate."""
        from twinloop.workflows.deploy.monitor import run_monitor_calibrate

        return run_monitor_calibrate(
            self.data,
            self.output,
            policy=self.policy,
            twin=self.twin,
            params=self.params,
            rate=self.rate,
            cameras=self.camera,
            seed=self.seed,
            nthread=self.threads,
            console=console(json=self.json),
        )


@dataclass(frozen=True, kw_only=True)
class MonitorCheck:
    """Show recorded episodes to a monitor: what is unusual, since when, and what it points to.

    Exit code 1 where more episodes alarm than are promised, or the course of episodes has drifted.
    """

    data: Path
    """A run's dataset or any LeRobot v3.0 folder."""
    monitor: Path
    """Folder of the monitor."""
    policy: str | None = None
    """The policy that acted; the one that the monitor was calibrated with."""
    twin: str | None = None
    """The robot's twin; the one that the monitor was calibrated with."""
    threads: int = 0
    """C threads; 0 takes every core."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Look."""
        from twinloop.workflows.deploy.monitor import run_monitor_check

        return run_monitor_check(
            self.data,
            self.monitor,
            policy=self.policy,
            twin=self.twin,
            output=self.output,
            nthread=self.threads,
            console=console(json=self.json),
        )


@dataclass(frozen=True, kw_only=True)
class Monitor:
    """Whether a policy and its robot still behave as they did when they succeeded, and what has changed."""

    action: (
        Annotated[MonitorCalibrate, tyro.conf.subcommand("calibrate", prefix_name=False)]
        | Annotated[MonitorCheck, tyro.conf.subcommand("check", prefix_name=False)]
    )

    @property
    def json(self) -> bool:
        """See the action."""
        return self.action.json

    def run(self) -> Outcome:
        """Run the action."""
        return self.action.run()
