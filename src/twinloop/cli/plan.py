"""The command ``twinloop plan``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinloop.cli.commands import Outcome, console
from twinloop.cli.coverage import Sides


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to generate next: the holes of simulation, by reality's mass and failures, as a generate file."""

    sides: Sides = field(default_factory=Sides)
    output: Path | None = None
    """The generate file to write; by default it is printed."""
    base: Path | None = None
    """The generate file to go on from; by default what the first simulated dataset was generated from."""
    episodes: int = 128
    """Attempts of the next run, shared out over the holes by their weight."""
    holes: int = 5
    """The most holes that are filled."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Plan."""
        from twinloop.workflows.coverage.next_plan import run_plan

        return run_plan(
            self.sides.options(),
            output=self.output,
            base=self.base,
            episodes=self.episodes,
            holes=self.holes,
            console=console(json=self.json),
        )
