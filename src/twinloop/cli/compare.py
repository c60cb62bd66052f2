"""The command ``twinloop compare``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console
from twinloop.tasks import DEFAULT_TASK

_Policy = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]]


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Which of two policies is better? Both run in the same worlds until a sequential test decides."""

    a: _Policy
    """A policy's folder, NAME@VERSION, an alias, expert, or the folder of a stored evaluation."""
    b: _Policy
    """The other one, likewise; differences are a minus b."""
    suite: str = "nominal"
    """Where they are tried, each slice as often as any other: a suite's name or FILE.yaml."""
    alpha: float = 0.05
    """The chance of calling one better where there is no difference, however often one looks."""
    margin: float | None = None
    """The largest difference that does not matter, such as 0.05: then equivalence is an answer too."""
    max_episodes: int = 1000
    """Pairs of episodes after which it gives up."""
    twin: str | None = None
    """What they are tried on; by default the workspace's twin, or so101_tabletop."""
    task: str = DEFAULT_TASK
    """What they should do."""
    slices: tuple[str, ...] = ()
    """Only slices whose names match."""
    seed: int = 0
    """Run seed of worlds, and of the order in which slices are tried."""
    scenarios: Path | None = None
    """Folder of stored scenarios for the suite failures; by default the workspace's."""
    backend: str = "threads"
    """How worlds run: threads, reference, warp, warp:cpu."""
    batch: int = 256
    """Worlds at a time; what comes out does not depend on it."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'difference.low < 0' or 'p_value > 0.05'."""
    output: Path | None = None
    """Folder for result.json, report.html, and the trials of both."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Compare."""
        from twinloop.workflows.evaluate.compare import run_compare
        from twinloop.workflows.evaluate.evaluate import EvaluateRequest

        request = EvaluateRequest(
            suite=self.suite,
            twin=self.twin,
            task=self.task,
            slices=self.slices,
            run_seed=self.seed,
            scenarios=self.scenarios,
            backend=self.backend,
            batch=self.batch,
            level=1 - self.alpha,
        )
        return run_compare(
            self.a,
            self.b,
            request,
            self.output,
            alpha=self.alpha,
            margin=self.margin,
            most=self.max_episodes,
            fail_if=self.fail_if,
            console=console(json=self.json),
        )
