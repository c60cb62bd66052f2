"""The command ``twinloop bench quality``."""

from __future__ import annotations

from dataclasses import dataclass

from twinloop.cli.bench_study import BenchStudy
from twinloop.cli.commands import Outcome


@dataclass(frozen=True, kw_only=True)
class BenchQuality(BenchStudy):
    """How many planted defects the checks of episodes find, by kind and size, and what they say against good data."""

    def run(self) -> Outcome:
        """Plant and look."""
        from twinloop.loop.quality_study.run import run_bench_quality

        return self.studied(run_bench_quality)
