"""Define the options of the ``twinloop gap`` commands, one class per measurement."""

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
    """Flags of a replay: time windows, compared channels, contacts, source of the torques, and values per episode."""

    window: float | None = None
    """Length of the replayed windows in seconds. Each window starts from a measured state. By default 1, or whole
    episodes if half of the episodes are shorter than 1 s. 0 replays whole episodes.
    """
    stride: float | None = None
    """Seconds from the start of a window to that of the next; by default the length of a window."""
    compare: tuple[str, ...] = ()
    """Channels to compare: position, velocity, joint/JOINT, pose/BODY, pose_error/BODY (distance and angle),
    twist/BODY, place/SITE, view/CAMERA/SITE, acceleration/SITE, angular_velocity/SITE. By default joint positions, or
    pose errors if the twin has no robot.
    """
    contacts: bool = False
    """Simulate contacts and joint stops, although a log of joint positions alone does not determine them; always on for
    a twin without a robot. Errors with and without contact are then reported separately.
    """
    measured_torque: bool = False
    """Drive a torque-controlled twin with the measured torques instead of the commanded ones."""
    condition: tuple[str, ...] = ()
    """PARAMETER=CONDITION sets a parameter in each episode to the value that the episode records as this condition,
    such as actuator/pendulum/firmware_gain=firmware_kp.
    """


@request
class GapDynamicsRequest(FailIfOption, ReportedRequest):
    """Measure the gap between a twin and real logs: error over time, delay, skill, and noise floor.

    The skill is 1 − (RMSE of the twin) / (RMSE of the best baseline); 1 is perfect. The noise floor is the error
    between real repeats of one motion. Example conditions of --fail-if: 'skill < 0.5' and 'delay/elbow_flex > 0.02'.
    """

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: tuple[str, ...]
    """Logs, datasets or names of public sets. If several are given, their episodes are numbered consecutively."""
    params: Path | None = None
    """Folder of an identify run, whose estimates replace the twin's nominal values. If it was fitted to the same log,
    only its held-out episodes are measured."""
    no_why: bool = False
    """With --params: skip the attribution of the error (`twinloop gap why`), which takes most of the time."""
    comparing: ComparisonOptions = field(default_factory=ComparisonOptions)
    repeats: str = "auto"
    """Episodes that repeat one motion, for the noise floor: auto (equal commands), task (episodes of one task), none,
    or episode numbers such as 0-9,12/20-24, where a slash separates groups of repeats.
    """
    reading: LogReading = field(default_factory=LogReading)


@request
class AttributionOptionsRequest(SeedOption):
    """Groups of parameters to which the error is attributed, and options of the attribution."""

    by: Literal["quantity", "joint", "quantity and joint", "parameter"] = "quantity"
    """How to group the parameters that differ from nominal: by quantity, by joint, by both, or each parameter alone."""
    group: tuple[str, ...] = ()
    """Your own groups, NAME=PATTERN,PATTERN; the remaining parameters are grouped by --by."""
    groups: Path | None = None
    """YAML file with your own groups: NAME: [PATTERN, …]."""
    draws: int = 12
    """Number of draws of the identified parameters, to include their uncertainty; 0 uses the estimate alone."""
    over: Literal["identified", "ranges", "none"] = "identified"
    """Distribution of the parameters for the sensitivity of the predictions: the identified one, or the twin's default
    ranges; none skips the sensitivity.
    """


@request
class GapWhyRequest(FailIfOption, ReportedRequest):
    """Attribute a twin's error to groups of parameters, and locate the unexplained part in events and states.

    Example conditions of --fail-if: 'unexplained > 0.3' and 'unexplained/elbow_flex > 0.5'.
    """

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: tuple[str, ...]
    """Logs, datasets or names of public sets. If several are given, their episodes are numbered consecutively."""
    params: Path
    """Folder of an identify run. If it was fitted to the same log, only its held-out episodes are used."""
    attributing: AttributionOptionsRequest = field(default_factory=AttributionOptionsRequest)
    comparing: ComparisonOptions = field(default_factory=ComparisonOptions)
    reading: LogReading = field(default_factory=LogReading)


@request
class GapSensorsRequest(FailIfOption, ReportedRequest):
    """Compare simulated sensors with real ones: noise spectra, Allan deviation, lag, lost samples, step size.

    Example conditions of --fail-if: 'sensors_differ > 0.1' and 'noise/position/elbow_flex.low > 0'.
    """

    real: str
    """The real log or dataset, or the name of a public set."""
    sim: str
    """The simulated log or dataset, such as a generated dataset with `rollout: {sensors: all}`."""
    twin: str | None = None
    """Twin that generated the simulated log. With its nominal values, the recommended parameter values are exact."""
    same: tuple[str, ...] = ()
    """REAL=SIM for a signal with different names in the two logs, such as acceleration/imu=acceleration/tool_imu."""
    reading: LogReading = field(default_factory=LogReading)
    """Metadata that the files of the real log do not contain."""


@request
class GapVisionRequest(FailIfOption, SeedOption, ReportedRequest):
    """Measure the distance between simulated and real images, the regions that differ, and the parameters to change.

    Example conditions of --fail-if: 'auc > 0.8' and 'mmd.low > 0'.
    """

    real: str
    """A LeRobot dataset with images, or a folder with one folder of images (or one array) for each episode."""
    sim: str
    """The simulated images in one of the same forms, such as the output of `twinloop render`."""
    camera: str | None = None
    """Name of the camera, as in observation.images.NAME; optional if there is only one."""
    sim_camera: str | None = None
    """Camera of the simulated images, if it has another name."""
    embedding: str = "classical"
    """Image encoder: classical, onnx:FILE, torch:FILE (TorchScript), policy:FOLDER, or my_file.py:Encoder."""
    frames: int = 8
    """Maximum number of images per episode, selected at random with --seed."""
    size: str | None = None
    """WIDTHxHEIGHT in pixels to which all images are scaled; by default both sides must have the same size."""
    twin: str | None = None
    """Twin whose camera sensor made the simulated images, if the dataset does not record it."""
    draws: int = 4999
    """Number of permutations of the episode labels for each test."""


@request
class GapDataRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest):
    """Compare real and simulated trajectories as distributions: distances, a classifier, and the deciding features.

    With neither --sim nor --twin, one half of the real episodes is compared with the other: the result without a gap.

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
    """Twin whose joint ranges replace the calibration of a log that has none, as for identify."""
    clip: float = 2.0
    """Length in seconds of the clips into which episodes are cut; every clip becomes one feature vector."""
    draws: int = 999
    """Number of permutations of the episode labels for each test; 0 for distances without tests."""
    reading: LogReading = field(default_factory=LogReading)


@request
class GapPoliciesRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest):
    """Compare success and progress of policies in simulation and reality: by policy, task and condition.

    Example conditions of --fail-if: 'success_gap.low > 0' and 'success_largest > 0.3'.
    """

    trials: Annotated[Path | None, tyro.conf.Positional] = None
    """One table with real and simulated trials, CSV or JSON: policy,domain,success,score,task,condition,pair."""
    real: Path | None = None
    """Real trials: a table, a LeRobot dataset with recorded outcomes, or a folder with one table or dataset per policy.
    """
    sim: Path | None = None
    """Simulated trials, in one of the same forms."""


@request
class GapPredictivityRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest):
    """Measure how well simulated scores of policies predict real ones: correlations, rankings and distances.

    Example conditions of --fail-if: 'pearson.low < 0.5' and 'mmrv > 0.1'.
    """

    scores: Annotated[Path | None, tyro.conf.Positional] = None
    """CSV or JSON: trials (policy,domain,success…), counts (…,successes,trials), or means (policy,real,sim,trials)."""
    real: Path | None = None
    """Real trials, if they are not in the same table as the simulated trials: a table, a dataset or a folder of them.
    """
    sim: Path | None = None
    """Simulated trials, in one of the same forms."""
    measure: Literal["auto", "success", "score"] = "auto"
    """Compared measure; by default success if every trial has it, else the score."""


@request
class GapClassesRequest(FailIfOption, ReportedRequest):
    """Diagnose why policies fail on the robot: causes (failure classes) by rule, with evidence and commands that help.

    Example conditions of --fail-if: 'classes > 0' and 'class/drift > 0'.
    """

    data: str | None = None
    """A real log or dataset, or the name of a public set."""
    twin: str | None = None
    """The calibrated twin: a built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    params: Path | None = None
    """Folder of the identify run that calibrated the twin."""
    training: str | None = None
    """Training data of the policy: a dataset, or the folder of the identify run whose ranges were used."""
    trials: tuple[Path, ...] = ()
    """Real and simulated trials: tables or datasets with policy, domain, success and condition."""
    gap: Path | None = None
    """Folder of a run of `twinloop gap dynamics` or `twinloop gap why`."""
    other: str | None = None
    """A real log of another environment, such as one in which the policy fails."""
    calibrated: str | None = None
    """Number of the first episode of --data after the calibration, or its date (2026-03-01T08:00)."""
    min_skill: float = 0.5
    """Skill of the twin (1 minus its error divided by the best baseline's error) below which the gap is too wide."""
    max_unexplained: float = 0.25
    """Share of the error that no parameter explains above which the gap is too wide."""
    min_success: float = 0.5
    """Success rate in simulation below which a policy is weak."""
    reading: LogReading = field(default_factory=LogReading)


@request
class GapCompareRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest):
    """Test whether one policy is better than another, equivalent within a margin, or undecided.

    Example conditions of --fail-if: 'difference.low < 0' and 'p_equivalent > 0.05'.
    """

    trials: _Trials
    """CSV or JSON table with policy, domain, success or score (and task, condition, pair), a dataset, or a folder of
    these.
    """
    a: str
    """Name of the first policy."""
    b: str
    """Name of the second policy; differences are a minus b."""
    domain: Literal["real", "sim"] = "real"
    """Compare real trials or simulated ones."""
    measure: Literal["auto", "success", "score"] = "auto"
    """Compared measure; by default success if every trial has it, else the score."""
    within: float | None = None
    """Margin of equivalence, such as 0.1: also test whether the policies differ by less than this."""
    paired: bool = False
    """Require trials with common initial conditions (column pair). If all trials have them, they are paired anyway."""
    sequential: bool = False
    """Test after every pair of trials, in their order. The result is valid however often you look and whenever you
    stop.
    """


@request
class GapPowerRequest(SeedOption, ReportedRequest):
    """Compute the number of trials with which a comparison of two success rates has the required power."""

    p: tuple[float, float]
    """Success rates of the two policies, such as 0.56 0.92; with --paired the probabilities that only the first, and
    only the second, succeeds.
    """
    power: float = 0.9
    """Required probability of detecting the difference."""
    alpha: float = 0.05
    """Probability of a false detection."""
    within: float | None = None
    """Compute the trials to show that the rates differ by less than this margin, instead of that they differ."""
    ratio: float = 1.0
    """Number of trials of the second policy for each trial of the first."""
    paired: bool = False
    """Both policies are tried from the same initial conditions, so use McNemar's test."""
    test: Literal["barnard", "fisher"] = "barnard"
    """Exact test; Barnard's needs fewer trials."""
    max_pairs: int = 500
    """Number of pairs after which the sequential test stops without a decision."""


@request
class GapEstimateRequest(FailIfOption, LevelOption, SeedOption, ReportedRequest):
    """Estimate real scores from few real and many simulated trials, and the number of real trials that this saves.

    Example condition of --fail-if: 'real/act.low < 0.8'.
    """

    trials: _Trials
    """Real and simulated trials: a CSV or JSON table with policy, domain, success or score, and pair, or a folder with
    tables or datasets. Trials with the same initial conditions have the same name in the column pair.
    """
    measure: Literal["auto", "success", "score"] = "auto"
    """Estimated measure; by default success if every trial has it, else the score."""


@request
class GapHistoryRequest(Request):
    """Show every metric of earlier `gap` runs in order of time, with the twin's version."""

    runs: tyro.conf.Positional[tuple[Annotated[Path, tyro.conf.arg(metavar="DIR")], ...]]
    """Folders of gap runs, or folders that hold such folders at any depth."""
    metrics: tuple[str, ...] = ()
    """Names or patterns of metrics, such as skill or 'rmse/*'; by default those without a slash."""
    kind: str = "dynamics"
    """Kind of measurement: dynamics, sensors, vision, data, policies, predictivity."""
    output: Path | None = None
    """File of a page with the curves; by default no page is written."""
