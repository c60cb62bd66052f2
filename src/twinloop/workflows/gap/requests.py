"""Requests of ``twinloop gap``, one per measurement."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.data.requests import LogReading
from twinloop.workflows.run.request import FailIfOption, LevelOption, ReportedRequest, Request, SeedOption, request

_Trials = tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="TRIALS")]]


@request
class ComparisonOptions:
    """Windows of a log, compared channels, and simulated effects."""

    window: float | None = None
    """Replay windows of so many seconds from measured states; default 1, or whole episodes where half of them are
    shorter. 0 replays whole episodes."""
    stride: float | None = None
    """Seconds from one window's beginning to the next; by default windows meet."""
    compare: tuple[str, ...] = ()
    """Kinds of measurement: position, velocity, pose/BODY, pose_error/BODY (distance and angle), twist/BODY,
    acceleration/SITE, angular_velocity/SITE. Default: joint positions, or the pose errors of a twin without a robot."""
    contacts: bool = False
    """Simulate contacts and joint stops, which a log of joint positions alone does not determine; always on for a twin
    without a robot. Errors are then reported separately by contact.
    """
    measured_torque: bool = False
    """Drive a torque-controlled twin by the torques that were measured, instead of those that were commanded."""
    condition: tuple[str, ...] = ()
    """PARAMETER=CONDITION where every episode states a parameter's value, as in
    actuator/pendulum/firmware_gain=firmware_kp."""


@request
class GapDynamicsRequest(FailIfOption, ReportedRequest):
    """Measure how far a twin is from real logs: error over time, delay, skill, and real against real.

    Example conditions of --fail-if: 'skill < 0.5' and 'delay/elbow_flex > 0.02'.
    """

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: tuple[str, ...]
    """A log or dataset, or the name of a public set; of several, the episodes are counted through."""
    params: Path | None = None
    """Folder of an identify run, whose estimates replace the twin's nominal values. Of the log that it was fitted to,
    only its held-out episodes are measured."""
    no_why: bool = False
    """With --params: leave out why the nominal twin errs (`twinloop gap why`), which takes most of the time."""
    comparing: ComparisonOptions = field(default_factory=ComparisonOptions)
    repeats: str = "auto"
    """Which episodes repeat one motion, for the noise floor: auto (equal commands), task (episodes of one task), none,
    or numbers such as 0-9,12/20-24, where slashes part groups."""
    reading: LogReading = field(default_factory=LogReading)


@request
class AttributionOptionsRequest(SeedOption):
    """Which groups the error is shared out among, and how surely."""

    by: Literal["quantity", "joint", "quantity and joint", "parameter"] = "quantity"
    """Grouping of the parameters that differ from nominal: by meaning, by joint, by both, or each parameter alone."""
    group: tuple[str, ...] = ()
    """Your groups, NAME=PATTERN,PATTERN; the remaining parameters are grouped by --by."""
    groups: Path | None = None
    """YAML file with groups of your own: NAME: [PATTERN, …]."""
    draws: int = 12
    """Number of draws of the identified parameters, to include their uncertainty; 0 uses the estimate alone."""
    over: Literal["identified", "ranges", "none"] = "identified"
    """Distribution for the sensitivity of the predictions: identified, the default ranges, or none to skip it."""


@request
class GapWhyRequest(FailIfOption, ReportedRequest):
    """Attribute a twin's error to groups of parameters, and locate the unexplained part in events and states.

    Example conditions of --fail-if: 'unexplained > 0.3' and 'unexplained/elbow_flex > 0.5'.
    """

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: tuple[str, ...]
    """A log or dataset, or the name of a public set; of several, the episodes are counted through."""
    params: Path
    """Folder of an identify run. Of the log that it was fitted to, only its held-out episodes are used."""
    attributing: AttributionOptionsRequest = field(default_factory=AttributionOptionsRequest)
    comparing: ComparisonOptions = field(default_factory=ComparisonOptions)
    reading: LogReading = field(default_factory=LogReading)


@request
class GapSensorsRequest(FailIfOption, ReportedRequest):
    """How far simulated sensors are from real ones: noise spectra, Allan deviation, lag, lost samples, counts.

    Example conditions of --fail-if: 'sensors_differ > 0.1' and 'noise/position/elbow_flex.low > 0'.
    """

    real: str
    """The real log or dataset, or the name of a public set."""
    sim: str
    """The simulated one, such as a generated dataset with `rollout: {sensors: all}`."""
    twin: str | None = None
    """The twin that the simulated log was made with: its nominal values make the values that close a gap exact."""
    same: tuple[str, ...] = ()
    """REAL=SIM for a signal that has two names, such as acceleration/imu=acceleration/tool_imu."""
    reading: LogReading = field(default_factory=LogReading)
    """Metadata that the real log lacks."""


@request
class GapVisionRequest(FailIfOption, SeedOption, ReportedRequest):
    """Measure the distance between simulated and real images, the regions that differ, and the parameters to change.

    Example conditions of --fail-if: 'auc > 0.8' and 'mmd.low > 0'.
    """

    real: str
    """A LeRobot dataset with images, or a folder with one folder of images (or one array) for each episode."""
    sim: str
    """The simulated one, such as what `twinloop render` wrote."""
    camera: str | None = None
    """Camera, as in observation.images.NAME; optional if there is only one."""
    sim_camera: str | None = None
    """Camera of the simulated images, if it has another name."""
    embedding: str = "classical"
    """classical, onnx:FILE, torch:FILE (TorchScript), policy:FOLDER, or my_file.py:Encoder."""
    frames: int = 8
    """Largest number of images of each episode, drawn by --seed."""
    size: str | None = None
    """WIDTHxHEIGHT to which all images are scaled; by default both sides must have the same size."""
    twin: str | None = None
    """The twin with the sensor of the simulated images, if the dataset does not record it."""
    draws: int = 4999
    """Relabellings of episodes for each test."""


@request
class GapDataRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest):
    """Compare real and simulated trajectories as distributions: distances, a classifier, and the deciding features.

    With neither --sim nor --twin the real episodes are compared half with half: the result without a gap.

    Example condition of --fail-if: 'auc > 0.7'.
    """

    real: str
    """A log or dataset, or the name of a public set."""
    sim: str | None = None
    """Simulated episodes: a dataset or log."""
    twin: str | None = None
    """Instead of --sim: a twin that replays the real commands; trials are then compared in pairs."""
    params: Path | None = None
    """Folder of an identify run, whose estimates replace the twin's nominal values."""
    ranges: str | None = None
    """A twin whose joint ranges replace the calibration of a log without one, as for identify."""
    clip: float = 2.0
    """Length of a clip in s; every clip becomes one row of features."""
    draws: int = 999
    """Relabellings of episodes in every test; 0 for distances without tests."""
    reading: LogReading = field(default_factory=LogReading)


@request
class GapPoliciesRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest):
    """Success and progress of policies, simulated against real: by policy, task and condition, with exact tests.

    Example conditions of --fail-if: 'success_gap.low > 0' and 'success_largest > 0.3'.
    """

    trials: Annotated[Path | None, tyro.conf.Positional] = None
    """Trials of both domains in one table: policy,domain,success,score,task,condition,pair (CSV or JSON)."""
    real: Path | None = None
    """Real trials: a table, a LeRobot dataset with recorded outcomes, or a folder with one of these per policy."""
    sim: Path | None = None
    """Simulated trials, likewise."""


@request
class GapPredictivityRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest):
    """How well simulated scores of policies predict real ones: correlations, rankings and distances, with intervals.

    Example conditions of --fail-if: 'pearson.low < 0.5' and 'mmrv > 0.1'.
    """

    scores: Annotated[Path | None, tyro.conf.Positional] = None
    """CSV or JSON: trials (policy,domain,success…), counts (…,successes,trials), or means (policy,real,sim,trials)."""
    real: Path | None = None
    """Real trials, if they are separate from the simulated ones: a table, a dataset or a folder of them."""
    sim: Path | None = None
    """Simulated trials."""
    measure: Literal["auto", "success", "score"] = "auto"
    """Compared measure; by default success if every trial has it, else the score."""


@request
class GapClassesRequest(FailIfOption, ReportedRequest):
    """Why it fails in practice: name the failure class by rule, with its evidence and the command that mends it.

    Example conditions of --fail-if: 'classes > 0' and 'class/drift > 0'.
    """

    data: str | None = None
    """A real log or dataset, or the name of a public set."""
    twin: str | None = None
    """The twin that was calibrated: a built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    params: Path | None = None
    """Folder of the identify run that calibrated it."""
    training: str | None = None
    """What the policy was trained on: a dataset, or the folder of an identify run whose ranges were drawn from."""
    trials: tuple[Path, ...] = ()
    """Scored trials, real and simulated: tables or datasets with policy, domain, success and condition."""
    gap: Path | None = None
    """Folder of a run of `twinloop gap`."""
    other: str | None = None
    """A real log of another environment, such as one in which the policy fails."""
    calibrated: str | None = None
    """Number of the first episode of --data after the calibration, or its date (2026-03-01T08:00)."""
    least_skill: float = 0.5
    """Skill below which a gap is too wide."""
    most_unexplained: float = 0.25
    """Unexplained share above which a gap is too wide."""
    least_success: float = 0.5
    """Success in simulation below which a policy is weak."""
    reading: LogReading = field(default_factory=LogReading)


@request
class GapCompareRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest):
    """Test whether one policy is better than another, equivalent within a margin, or undecided.

    Example conditions of --fail-if: 'difference.low < 0' and 'p_equivalent > 0.05'.
    """

    trials: _Trials
    """CSV or JSON with policy, domain, success or score (and task, condition, pair), a dataset, or a folder of them."""
    a: str
    """A policy."""
    b: str
    """The other one; differences are a minus b."""
    domain: Literal["real", "sim"] = "real"
    """Which trials are compared."""
    measure: Literal["auto", "success", "score"] = "auto"
    """Compared measure; by default success if every trial has it, else the score."""
    within: float | None = None
    """Margin of equivalence, such as 0.1: also test whether the policies are equivalent within it."""
    paired: bool = False
    """Insist that trials share their starts (column pair); where all do, they are paired anyway."""
    sequential: bool = False
    """Decide after every pair of trials, in their order; holds however often one looks and whenever one stops."""


@request
class GapPowerRequest(SeedOption, ReportedRequest):
    """How many trials does a comparison of two success rates need?"""

    p: tuple[float, float]
    """The success rates, such as 0.56 0.92; with --paired the chances that only a, and only b, succeeds."""
    power: float = 0.9
    """Required probability of detecting the difference."""
    alpha: float = 0.05
    """Probability of a false detection."""
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


@request
class GapEstimateRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest):
    """Real scores from few real and many simulated trials, and how many real trials that saves.

    Example condition of --fail-if: 'real/act.low < 0.8'.
    """

    trials: _Trials
    """Real and simulated trials; those of one start share their name in the column pair."""
    measure: Literal["auto", "success", "score"] = "auto"
    """Estimated measure; by default success if every trial has it, else the score."""


@request
class GapHistoryRequest(Request):
    """Show every metric of earlier `gap` runs in order of time, with the twin's version."""

    runs: tyro.conf.Positional[tuple[Annotated[Path, tyro.conf.arg(metavar="DIR")], ...]]
    """Folders of gap runs, or folders that hold such folders at any depth."""
    figures: tuple[str, ...] = ()
    """Names or patterns of figures, such as skill or 'rmse/*'; default those without a slash."""
    kind: str = "dynamics"
    """Which measurement: dynamics, sensors, vision, data, policies, predictivity."""
    output: Path | None = None
    """Write a page with the curves to this file."""
