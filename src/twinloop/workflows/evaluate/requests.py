"""Requests of ``twinloop evaluate``, ``compare`` and ``evidence``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from twinloop.tasks import DEFAULT_TASK
from twinloop.workflows.run.request import FailIfOption, LevelOption, ReportedRequest, Request, SeedOption, request

_Policy = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]]


@request
class TrialOptions(SeedOption):
    """Common to commands that run trials in simulation."""

    scenarios: Path | None = None
    """Folder of stored scenarios for the suite failures; by default the workspace's."""
    backend: str = "threads"
    """Backend that runs the worlds: threads, reference, warp, warp:cpu."""
    batch: int = 256
    """Worlds at a time; the result does not depend on it."""


@request
class EvaluateRequest(LevelOption, TrialOptions, Request):
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
    name: str = ""
    """What to call the policy; by default what it was asked for by."""
    real: Path | None = None
    """Take real trials instead: a CSV or JSON table, a LeRobot dataset that says how episodes ended, or a folder."""
    list_suites: bool = False
    """Say which suites there are on the twin, and what they cost."""
    show_suite: str | None = None
    """Print a suite as YAML, to begin one's own with."""
    fail_under: tuple[str, ...] = ()
    """Exit with 1 if a success rate is lower: nominal=0.9, 'hand_*=0.5', nominal.low=0.8, overall=0.8, worst=0.3."""
    output: Path | None = None
    """Folder for evaluation.json, trials.parquet, result.json and report.html."""


@request
class CompareRequest(FailIfOption, TrialOptions, Request):
    """Which of two policies is better? Both run in the same worlds until a sequential test decides.

    Example conditions of --fail-if: 'difference.low < 0' and 'p_value > 0.05'.
    """

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
    output: Path | None = None
    """Folder for result.json, report.html, and the trials of both."""


@request
class EvidenceRequest(FailIfOption, ReportedRequest):
    """How many real trials does a claim need, and what can simulation contribute to it?

    Example conditions of --fail-if: 'more_without_failure > 0' and 'bound > 1e-3'.
    """

    failure_rate: float
    """The largest failure rate that the claim allows, such as 1e-3."""
    confidence: float = 0.95
    """Of the claim."""
    failures: int = 3
    """Most failures allowed that the table goes up to."""
    seen_trials: int = 0
    """Real trials that were made already."""
    seen_failures: int = 0
    """Failures among them."""
    sim: Path | None = None
    """Output of a `twinloop scenario search`."""
    gap: float | None = None
    """Assumed: how much higher the real failure rate is than the simulated one, at most."""
    correlation: float | None = None
    """Assumed: correlation of real and simulated outcomes of the same trials."""
    region: float | None = None
    """Assumed: probability of the only region in which the robot fails."""
