"""The commands ``twinloop gap policies``, ``predictivity``, ``compare``, ``power`` and ``estimate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

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


_Trials = tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="TRIALS")]]


@dataclass(frozen=True, kw_only=True)
class GapCompare:
    """Is one policy better than another, as good within a margin, or can neither be said yet?"""

    trials: _Trials
    """CSV or JSON with policy, domain, success or score (and task, condition, pair), a dataset, or a folder of them."""
    a: str
    """A policy."""
    b: str
    """The other one; differences are a minus b."""
    domain: Literal["real", "sim"] = "real"
    """Which trials are compared."""
    measure: Literal["auto", "success", "score"] = "auto"
    """What is compared; by default success where every trial tells it, else the score."""
    within: float | None = None
    """The largest difference that does not matter, such as 0.1: asks whether the policies are equivalent within it."""
    paired: bool = False
    """Insist that trials share their starts (column pair); where all do, they are paired anyway."""
    sequential: bool = False
    """Decide after every pair of trials, in their order; holds however often one looks and whenever one stops."""
    level: float = 0.95
    """1 − α."""
    seed: int = 0
    """Seed of permutations and resamples."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'difference.low < 0' or 'p_equivalent > 0.05'."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Compare."""
        from twinloop.workflows.gap.comparison import run_gap_compare

        return run_gap_compare(
            self.trials,
            self.a,
            self.b,
            self.output,
            domain=self.domain,
            measure=self.measure,
            within=self.within,
            paired=self.paired,
            sequential=self.sequential,
            level=self.level,
            seed=self.seed,
            fail_if=self.fail_if,
            console=console(json=self.json),
        )


@dataclass(frozen=True, kw_only=True)
class GapPower:
    """How many trials does a comparison of two success rates need?"""

    p: tuple[float, float]
    """The success rates, such as 0.56 0.92; with --paired the chances that only a, and only b, succeeds."""
    power: float = 0.9
    """The wished chance of finding what is there."""
    alpha: float = 0.05
    """The chance of finding what is not there."""
    within: float | None = None
    """Show that the rates are equivalent within this margin, instead of different."""
    ratio: float = 1.0
    """Trials of b for each trial of a."""
    paired: bool = False
    """Starts are shared: McNemar's test."""
    test: Literal["barnard", "fisher"] = "barnard"
    """Exact test; Barnard's needs fewer trials."""
    most: int = 500
    """Pairs after which the sequential test would give up."""
    seed: int = 0
    """Seed of the simulated sequences."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Add up."""
        from twinloop.workflows.gap.comparison import run_gap_power

        return run_gap_power(
            self.p,
            self.output,
            power=self.power,
            alpha=self.alpha,
            within=self.within,
            ratio=self.ratio,
            only_one=self.paired,
            test=self.test,
            most=self.most,
            seed=self.seed,
            console=console(json=self.json),
        )


@dataclass(frozen=True, kw_only=True)
class GapEstimate:
    """Real scores from few real and many simulated trials, and how many real trials that saves."""

    trials: _Trials
    """Real and simulated trials; those of one start share their name in the column pair."""
    measure: Literal["auto", "success", "score"] = "auto"
    """What is estimated; by default success where every trial tells it, else the score."""
    level: float = 0.95
    """Confidence level of the intervals."""
    seed: int = 0
    """Seed of resamples."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'real/act.low < 0.8'."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Estimate."""
        from twinloop.workflows.gap.comparison import run_gap_estimate

        return run_gap_estimate(
            self.trials,
            self.output,
            measure=self.measure,
            level=self.level,
            seed=self.seed,
            fail_if=self.fail_if,
            console=console(json=self.json),
        )
