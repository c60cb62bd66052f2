"""The command ``twinloop gap policies``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class GapPolicies:
    """Success and progress of policies, simulated against real: by policy, task and condition, with exact tests."""

    trials: Annotated[Path | None, tyro.conf.Positional] = None
    """Trials of both domains in one table: policy,domain,success,score,task,condition,pair (CSV or JSON)."""
    real: Path | None = None
    """Real trials: a table, a LeRobot dataset whose episodes say how they ended, or a folder with one per policy."""
    sim: Path | None = None
    """Simulated trials, likewise."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'success_gap.low > 0' or 'success_largest > 0.3'."""
    level: float = 0.95
    """Confidence level of the intervals."""
    seed: int = 0
    """Seed of permutations."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.workflows.gap.policies import run_gap_policies

        return run_gap_policies(
            self.trials,
            self.output,
            real=self.real,
            sim=self.sim,
            level=self.level,
            seed=self.seed,
            fail_if=self.fail_if,
            console=console(json=self.json),
        )
