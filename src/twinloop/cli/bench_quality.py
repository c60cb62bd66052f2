"""The command ``twinloop bench quality``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class BenchQuality:
    """How many planted defects the checks of episodes find, by kind and size, and what they say against good data."""

    only: tuple[str, ...] = ()
    """Families or names of studies, such as physics or recording_alarms; default all."""
    repetitions: int | None = None
    """Episodes that each defect is planted into, instead of the number that its table was made with."""
    seed: int = 0
    """Run seed."""
    workers: int = 0
    """Processes; 0 takes every core."""
    write: Path | None = None
    """The folder of the pages that take the tables between their marks, such as docs."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Plant and look."""
        from twinloop.loop.quality_study.run import run_bench_quality

        figures = run_bench_quality(
            console(json=self.json),
            only=self.only,
            repetitions=self.repetitions,
            seed=self.seed,
            workers=self.workers,
            docs=self.write,
        )
        return figures, 0
