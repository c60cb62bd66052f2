"""The command ``twinloop bench gate``."""

from __future__ import annotations

from dataclasses import dataclass

from twinloop.cli.bench_study import BenchStudy
from twinloop.cli.commands import Outcome


@dataclass(frozen=True, kw_only=True)
class BenchGate(BenchStudy):
    """How often the gate and the canary err, and how many trials they take: simulated releases, some of equals."""

    def run(self) -> Outcome:
        """Simulate."""
        from twinloop.loop.gate_study.run import run_bench_gate

        return self.studied(run_bench_gate)
