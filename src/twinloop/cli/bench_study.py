"""What every command has that measures by simulation and keeps its tables in the documentation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class BenchStudy:
    """A group of studies, each of which is a table."""

    only: tuple[str, ...] = ()
    """Areas or names of studies; default all."""
    repetitions: int | None = None
    """Repetitions behind each row, instead of the number that its table was made with."""
    seed: int = 0
    """Run seed."""
    workers: int = 0
    """Processes; 0 takes every core."""
    write: Path | None = None
    """The folder of the pages that take the tables between their marks, such as docs."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def studied(self, measure: Callable[..., dict[str, Any]]) -> Outcome:
        """Run the studies that were asked for."""
        figures = measure(
            console(json=self.json),
            only=self.only,
            repetitions=self.repetitions,
            seed=self.seed,
            workers=self.workers,
            docs=self.write,
        )
        return figures, 0
