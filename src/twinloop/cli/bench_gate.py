"""The command ``twinloop bench gate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class BenchGate:
    """How often the gate and the canary err, and how many trials they take: simulated releases, some of equals."""

    only: tuple[str, ...] = ()
    """Areas or names of studies, such as errors or gate_power; default all."""
    repetitions: int | None = None
    """Releases simulated for each row, instead of the number that its table was made with."""
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
        from twinloop.loop.gate_study.run import run_bench_gate

        figures = run_bench_gate(
            console(json=self.json),
            only=self.only,
            repetitions=self.repetitions,
            seed=self.seed,
            workers=self.workers,
            docs=self.write,
        )
        return figures, 0
