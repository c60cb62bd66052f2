"""Define the flags of ``twinloop evaluate``, ``compare`` and ``evidence``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import FailIfOption, LevelOption, ReportedRequest, Request, SeedOption, request

_Policy = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]]


@request
class TrialOptions(SeedOption):
    """Options of all commands that run trials in simulation."""

    scenarios: Path | None = None
    """Folder of stored scenarios for the suite failures; by default the workspace's."""
    backend: str = "threads"
    """Backend that steps the worlds: threads, reference, warp or warp:cpu."""
    batch: int = 256
    """Number of worlds simulated together; the result does not depend on it."""
    sensors: Literal["clean", "device"] = "clean"
    """What a policy sees: clean images, or device: images through the camera models of the twin's sensors (exposure,
    lens, noise, latency), as in datasets that were rendered with the same option.
    """
    randomize_from: Path | None = None
    """With --suite taught: folder of an identification run to draw the parameters of the worlds from."""


@request
class EvaluateRequest(LevelOption, TrialOptions, Request):
    """Evaluate a policy in a suite of simulated conditions, or from real trials with the same scores and tables."""

    policy: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]] = "expert"
    """The folder or ONNX file of a policy, NAME@VERSION, an alias such as champion, or expert: the task's scripted
    expert.
    """
    suite: str = "nominal"
    """nominal, randomized, axes, pairs, unseen, disturbances, latency, failures, the path of your own FILE.yaml, or
    taught: new worlds of the distribution in which `distill` or `reinforce` trained the policy.
    """
    twin: str | None = None
    """Twin in which the policy is evaluated; by default that of the policy's training data, or of the workspace."""
    task: str | None = None
    """Task that the policy is to perform: a name or FILE.py:CLASS; by default that of the training data, or of the
    workspace.
    """
    episodes: int | None = None
    """Number of trials per slice (condition of the suite); by default the suite's own number."""
    slices: tuple[str, ...] = ()
    """Evaluate only slices whose names match one of these patterns, such as 'joint/*:low'."""
    name: str = ""
    """Name of the policy in the results; by default the value of POLICY."""
    workers: int | None = None
    """Number of processes; the result does not depend on it. By default one, and for a policy from images one per core
    and 32 trials.
    """
    real: Path | None = None
    """Evaluate real trials instead: a CSV or JSON table, a LeRobot dataset with outcomes, or a folder."""
    list_suites: bool = False
    """List the built-in suites for the twin, with their numbers of slices and episodes."""
    show_suite: str | None = None
    """Print a suite as YAML, as a template for your own."""
    fail_under: tuple[str, ...] = ()
    """Exit with 1 if a success rate is lower than a value, as in nominal=0.9, 'hand_*=0.5', nominal.low=0.8 (lower
    bound of the interval), overall=0.8 or worst=0.3.
    """
    output: Path | None = None
    """Folder for evaluation.json, trials.parquet, result.json and report.html."""


@request
class CompareRequest(FailIfOption, TrialOptions, Request):
    """Compare two policies: both run in the same worlds until a sequential test decides.

    Example conditions of --fail-if: 'difference.low < 0' and 'p_value > 0.05'.
    """

    a: _Policy
    """First policy: its folder, NAME@VERSION, an alias, expert, or the folder of a stored evaluation."""
    b: _Policy
    """Second policy, given in the same ways. Differences are the success of the first policy minus that of the second.
    """
    suite: str = "nominal"
    """Suite of conditions: a name, FILE.yaml, or taught, for the worlds of the first policy. Every slice (condition of
    the suite) gets the same number of trials."""
    alpha: float = 0.05
    """Probability of declaring one policy better if there is no difference, however often the test is repeated."""
    margin: float | None = None
    """Largest difference of success rates that does not matter, such as 0.05. If given, the test can also find that the
    policies are equivalent.
    """
    max_episodes: int = 1000
    """Number of pairs of episodes after which the test stops without a decision."""
    twin: str | None = None
    """Twin in which the policies are compared; by default that of their training data, or of the workspace."""
    task: str | None = None
    """Task that the policies are to perform: a name or FILE.py:CLASS; by default that of their training data, or of the
    workspace.
    """
    slices: tuple[str, ...] = ()
    """Use only slices whose names match one of these patterns."""
    output: Path | None = None
    """Folder for result.json, report.html, and the trials of both policies."""


@request
class EvidenceRequest(FailIfOption, ReportedRequest):
    """Compute how many real trials a claim about the failure rate needs, and how much simulation can contribute.

    Example conditions of --fail-if: 'more_without_failure > 0' and 'bound > 1e-3'.
    """

    failure_rate: float
    """The largest failure rate that the claim allows, such as 1e-3."""
    confidence: float = 0.95
    """Confidence level of the claim."""
    failures: int = 3
    """Largest number of allowed failures in the table of trial numbers."""
    seen_trials: int = 0
    """Number of real trials made so far."""
    seen_failures: int = 0
    """Number of failures among these trials."""
    sim: Path | None = None
    """Output folder of a `twinloop scenario search`; by default no simulated trials."""
    gap: float | None = None
    """Assumption: the real failure rate exceeds the simulated one by at most this value."""
    correlation: float | None = None
    """Assumption: the correlation (0 to 1) of real and simulated outcomes of the same trials."""
    region: float | None = None
    """Assumption: the robot fails only in one region of the conditions, which has this probability."""
