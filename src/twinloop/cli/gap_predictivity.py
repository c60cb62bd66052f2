"""The command ``twinloop gap predictivity``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class GapPredictivity:
    """How well simulated scores of policies predict real ones: correlations, rankings and distances, with intervals."""

    scores: Annotated[Path | None, tyro.conf.Positional] = None
    """CSV or JSON: trials (policy,domain,success…), counts (…,successes,trials), or means (policy,real,sim,trials)."""
    real: Path | None = None
    """Real trials, where they are kept apart from the simulated ones: a table, a dataset or a folder of them."""
    sim: Path | None = None
    """Simulated trials."""
    measure: Literal["auto", "success", "score"] = "auto"
    """What is compared; by default success where every trial tells it, else the score."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'pearson.low < 0.5' or 'mmrv > 0.1'."""
    level: float = 0.95
    """Confidence level of the intervals."""
    seed: int = 0
    """Seed of the draws behind the intervals."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.workflows.gap.policies import run_gap_predictivity

        return run_gap_predictivity(
            self.scores,
            self.output,
            real=self.real,
            sim=self.sim,
            measure=self.measure,
            level=self.level,
            seed=self.seed,
            fail_if=self.fail_if,
            console=console(json=self.json),
        )
