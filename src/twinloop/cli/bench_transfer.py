"""``twinloop bench transfer``: does the gap close?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from twinloop.cli.commands import Outcome, console
from twinloop.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class BenchTransfer:
    """Success of policies on virtual robots that the nominal twin never was, by what they were trained on.

    Nominal twin, hand-written randomization, identified twin, randomization from the identified distribution, that
    and some demonstrations on the robot, those demonstrations alone. A run that was interrupted goes on.
    """

    output: Path
    """Folder for demonstrations, policies and trials, result.json and report.html."""
    robots: int = 5
    """Virtual robots."""
    seeds: int = 3
    """Training runs per condition and robot."""
    episodes: int = 30
    """Trials of each policy on each robot."""
    demos: int = 300
    """Simulated demonstrations that are attempted per source."""
    real: int = 10
    """Demonstrations on each virtual robot."""
    steps: int = 2000
    """Training steps."""
    batch: int = 256
    """Samples per training step; a picture weighs a hundred times as much as a state."""
    log: int = 6
    """Episodes of teleoperation that each robot is identified from."""
    shake: float = 0.0
    """Standard deviation of what is added to the script's commands while it shows, in rad (DART); 0 for nothing."""
    sees: Literal["scene", "tool"] = "scene"
    """What a tracker tells policies: where things lie, or the tool as well."""
    conditions: str = "1,2,3,4,5,6"
    """Which conditions, separated by commas."""
    images: bool = False
    """Policies see pictures of the front camera in place of what a tracker sees; takes hours."""
    workers: int = 0
    """Processes; 0 takes every core."""
    write: Path | None = None
    """The folder of the page that takes the tables between its marks, such as docs."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.loop.transfer_study.run import run_bench_transfer
        from twinloop.loop.transfer_study.settings import Recipe, TransferSettings

        settings = TransferSettings(
            robots=self.robots,
            seeds=self.seeds,
            episodes=self.episodes,
            demos=self.demos,
            real=self.real,
            steps=self.steps,
            log=self.log,
            conditions=_numbers(self.conditions),
            images=self.images,
            recipe=Recipe(shake=self.shake, sees=self.sees, batch=self.batch),
        )
        figures = run_bench_transfer(
            console(json=self.json), settings, self.output, workers=self.workers, docs=self.write
        )
        return figures, 0


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise InputError(f"--conditions {text}: give numbers from 1 to 6 separated by commas, such as 1,4.") from error
