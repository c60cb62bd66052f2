"""The command ``twinloop evaluate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console
from twinloop.tasks import DEFAULT_TASK


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Try a policy in a suite of conditions, many worlds at a time, or take real trials: the same scores and tables."""

    policy: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]] = "expert"
    """A policy's folder, NAME@VERSION, an alias such as champion, or expert: the script that comes with the task."""
    suite: str = "nominal"
    """nominal, randomized, axes, pairs, unseen, disturbances, latency, failures, or FILE.yaml of your own."""
    twin: str | None = None
    """What it is tried on; by default the workspace's twin, or so101_tabletop."""
    task: str = DEFAULT_TASK
    """What it should do."""
    episodes: int | None = None
    """Trials of each slice, instead of the suite's own number."""
    slices: tuple[str, ...] = ()
    """Only slices whose names match, such as 'joint/*:low'."""
    seed: int = 0
    """Run seed: policies that are tried with the same one are tried in the same worlds."""
    scenarios: Path | None = None
    """Folder of stored scenarios for the suite failures; by default the workspace's."""
    backend: str = "threads"
    """How worlds run: threads, reference, warp, warp:cpu."""
    batch: int = 256
    """Worlds at a time; what comes out does not depend on it."""
    name: str = ""
    """What to call the policy; by default what it was asked for by."""
    real: Path | None = None
    """Take real trials instead: a CSV or JSON table, a LeRobot dataset that says how episodes ended, or a folder."""
    list_suites: bool = False
    """Say which suites there are on the twin, and what they cost."""
    show_suite: str | None = None
    """Print a suite as YAML, to begin one's own with."""
    level: float = 0.95
    """Confidence level of the intervals."""
    fail_under: tuple[str, ...] = ()
    """Exit with 1 if a success rate is lower: nominal=0.9, 'hand_*=0.5', nominal.low=0.8, overall=0.8, worst=0.3."""
    output: Path | None = None
    """Folder for evaluation.json, trials.parquet, result.json and report.html."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Evaluate."""
        from twinloop.workflows.evaluate import evaluate as loop

        out = console(json=self.json)
        if self.list_suites or self.show_suite is not None:
            return loop.run_list_suites(out, twin=self.twin, task=self.task, show=self.show_suite)
        if self.real is not None:
            return loop.run_evaluate_real(
                self.real,
                self.output,
                policy=self.name or None,
                twin=self.twin,
                level=self.level,
                fail_under=self.fail_under,
                console=out,
            )
        request = loop.EvaluateRequest(
            policy=self.policy,
            suite=self.suite,
            twin=self.twin,
            task=self.task,
            episodes=self.episodes,
            slices=self.slices,
            run_seed=self.seed,
            scenarios=self.scenarios,
            backend=self.backend,
            batch=self.batch,
            name=self.name,
            level=self.level,
        )
        return loop.run_evaluate(request, self.output, fail_under=self.fail_under, console=out)
