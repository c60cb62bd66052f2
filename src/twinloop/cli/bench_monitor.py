"""The command ``twinloop bench monitor``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class BenchMonitor:
    """What the monitor finds of faults planted into virtual robots, how late and as what; its false alarms."""

    small: bool = False
    """Few episodes of one robot, without pictures: whether it works, not how well."""
    policy: Path | None = None
    """A policy's folder, in the place of one that is trained here."""
    seed: int = 0
    """Run seed."""
    workers: int = 0
    """Processes; 0 takes every core."""
    write: Path | None = None
    """The folder of the page that takes the tables between its marks, such as docs."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Plant and watch."""
        from twinloop.loop.monitor_study.run import run_bench_monitor

        figures = run_bench_monitor(
            console(json=self.json),
            small=self.small,
            policy=self.policy,
            seed=self.seed,
            workers=self.workers,
            docs=self.write,
        )
        return figures, 0
