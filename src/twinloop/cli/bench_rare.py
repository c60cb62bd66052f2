"""The command ``twinloop bench rare``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class BenchRare:
    """How far to trust a search for rare failures: searches of failures whose rate is known."""

    only: tuple[str, ...] = ()
    """Names of studies; default all."""
    repetitions: int | None = None
    """Searches of each row, instead of the number that its table was made with."""
    seed: int = 0
    """Run seed."""
    workers: int = 0
    """Processes; 0 takes every core."""
    write: Path | None = None
    """The folder of the page that takes the tables between its marks, such as docs."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Simulate."""
        from twinloop.loop.rare_study.run import run_bench_rare

        figures = run_bench_rare(
            console(json=self.json),
            only=self.only,
            repetitions=self.repetitions,
            seed=self.seed,
            workers=self.workers,
            docs=self.write,
        )
        return figures, 0
