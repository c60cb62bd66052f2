"""The command ``twinloop bench rare``."""

from __future__ import annotations

from dataclasses import dataclass

from twinloop.cli.bench_study import BenchStudy
from twinloop.cli.commands import Outcome


@dataclass(frozen=True, kw_only=True)
class BenchRare(BenchStudy):
    """How far to trust a search for rare failures: searches of failures whose rate is known."""

    def run(self) -> Outcome:
        """Simulate."""
        from twinloop.loop.rare_study.run import run_bench_rare

        return self.studied(run_bench_rare)
