"""Define the flags of ``twinloop run``, ``serve``, ``monitor``, ``gate``, ``promote``, ``rollback``, ``policies``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import ReportedRequest, Request, RerunOption, SeedOption, WorkspaceRequest, request


@request
class RunRequest(RerunOption, Request):
    """Run a policy on a robot through the safety envelope, and record everything as a LeRobot v3.0 dataset."""

    robot: str
    """virtual:TWIN?seed=N&task=TASK, lerobot:so101?port=PORT, or your own path/to/file.py:Class?option=value."""
    policy: str
    """champion or another alias, NAME@VERSION, a policy's folder or ONNX file, or a server (http://HOST:PORT or
    ws://HOST:PORT).
    """
    output: Path
    """Folder of the new dataset."""
    episodes: int = 1
    """Number of episodes."""
    first: int = 0
    """Number of the first episode. The random choices of the policy and the choice between champion and canary depend
    on it.
    """
    seconds: float | None = None
    """Length of an episode in seconds; by default the task's length, or 20 s without a task."""
    hz: float | None = None
    """Commands per second; by default the control rate of the twin."""
    twin: str | None = None
    """Twin for the limits and clearances of the envelope; by default that of the virtual robot or of the workspace."""
    envelope: Path | None = None
    """A YAML file with settings of the envelope, see docs/guides/deployment.md; by default the standard settings."""
    instruction: str = ""
    """Task sentence for the dataset; by default the instruction of the task."""
    outcome: Path | None = None
    """A CSV file with the columns episode and success, read after each episode."""
    ask: bool = False
    """Ask after each episode whether it succeeded, if neither the robot nor --outcome determines it."""
    no_home: bool = False
    """Do not move a real robot slowly to the home pose of its twin before each episode."""
    realtime: bool = False
    """Let the time of a virtual robot continue while the policy computes, as on a real robot. By default its time stops
    meanwhile.
    """
    stop_on_success: bool = False
    """End an episode as soon as the robot reports success."""
    on_trip: Literal["stop", "go-on", "rollback"] = "stop"
    """What to do after an episode was stopped early: end the run; continue with the next episode, unless the robot
    failed or a person stopped it; or roll back to the previous champion and end the run.
    """
    monitor: Path | None = None
    """Folder of a monitor that was calibrated for this policy by `twinloop monitor calibrate`; by default no monitor.
    """
    on_alarm: Literal["stop", "log"] = "stop"
    """Whether an alarm of the monitor ends the episode or is only recorded."""
    run_seed: int = 0
    """Seed of the random choices of the policy."""
    token_file: Path | None = None
    """A file with the token of the policy server; by default the environment variable TWINLOOP_TOKEN."""


@request
class ServeRequest(Request):
    """Serve a policy over HTTP and WebSocket until Ctrl-C. If no token is given, only this machine can use it."""

    policy: str
    """Policy to serve: champion or another alias, NAME@VERSION, or the folder or ONNX file of a policy."""
    host: str = "127.0.0.1"
    """Network address of the server; by default only this machine can connect. Any other address needs a token."""
    port: int = 8400
    """Port of the server; 0 chooses a free one."""
    token_file: Path | None = None
    """A file with the token that clients must send; by default no token."""
    sessions: int = 16
    """Maximum number of simultaneous clients."""


@request
class MonitorCalibrateRequest(SeedOption, Request):
    """Calibrate a monitor on successful episodes, with thresholds for a given rate of false alarms."""

    data: Path
    """A dataset of `twinloop run` or any LeRobot v3.0 folder that states which episodes succeeded."""
    output: Path
    """Folder for the monitor: monitor.json and monitor.npz."""
    policy: str | None = None
    """The policy of the episodes: its folder, NAME@VERSION or an alias. If it is not given, only robot and scene are
    monitored.
    """
    twin: str | None = None
    """The twin of the robot; by default that of the workspace, or so101_tabletop."""
    params: Path | None = None
    """Folder of an identify run whose parameters the twin gets; by default nominal values."""
    rate: float = 0.05
    """Probability of a false alarm in an episode, for all signals together."""
    camera: tuple[str, ...] = ()
    """Cameras whose images are monitored, such as front; by default none."""
    threads: int = 0
    """Number of simulation threads; 0 uses every core."""


@request
class MonitorCheckRequest(ReportedRequest):
    """Check recorded episodes with a monitor: report unusual signals, when they began, and the likely cause.

    The exit code is 1 if the share of episodes with an alarm is significantly above the calibrated rate (the lower
    bound of its 95 % interval is above), or if the scores drift from episode to episode.
    """

    data: Path
    """A dataset of `twinloop run` or any LeRobot v3.0 folder."""
    monitor: Path
    """Folder of the monitor."""
    policy: str | None = None
    """The policy of the episodes. It must be the one that the monitor was calibrated with."""
    twin: str | None = None
    """The twin of the robot. It must be the one that the monitor was calibrated with."""
    threads: int = 0
    """Number of simulation threads; 0 uses every core."""


@request
class GateRequest(Request):
    """Decide whether a candidate may replace the champion. Exit with 1 if a rule fails or lacks evidence.

    The candidate is the new policy, and the champion is the released one.
    """

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """The gate file, which names the policies, the rules and the evaluations; see docs/guides/release.md."""
    output: Path | None = None
    """Folder for decision.json, result.json and report.html."""
    deployment: str = "main"
    """Deployment whose champion is the reference, if a workspace has several robots or tasks."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from FILE."""


@request
class DeploymentRequest(WorkspaceRequest):
    """Options of all commands on the policy registry."""

    deployment: str = "main"
    """Name of the deployment (a robot or task with its own aliases and log), if a workspace has several."""


@request
class PromoteRequest(DeploymentRequest):
    """Promote a policy version by one stage: shadow, canary, champion, as defined in its gate file.

    In shadow a policy only computes commands, in canary it acts in some episodes, and as champion in all.
    """

    policy: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]] = "candidate"
    """The policy version: NAME@VERSION, the beginning of a hash, or an alias."""
    to: Literal["shadow", "canary", "champion"] | None = None
    """Stage to reach; by default the next one."""
    force: bool = False
    """Promote without a gate decision and without the stages in between; the log records this."""
    reason: str = ""
    """Reason for the promotion log; required with --force."""
    who: str | None = None
    """Name of the person who decides; by default the current user."""


@request
class RollbackRequest(DeploymentRequest):
    """Make the previous champion the champion again, after a check of all its files."""

    reason: str
    """Reason for the promotion log."""
    who: str | None = None
    """Name of the person who decides; by default the current user."""


@request
class PoliciesAddRequest(DeploymentRequest):
    """Copy a saved policy into the registry as a new version; stored versions never change."""

    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """Folder of the policy (config.json, model.safetensors, README.md), or its ONNX file."""
    name: str | None = None
    """Name in the registry; by default the name of the folder or file. Each name has numbered versions."""


@request
class PoliciesExportRequest(Request):
    """Write a policy as one ONNX file with its contract, which runs without torch; compare its commands first."""

    policy: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]]
    """The policy: its folder, NAME@VERSION or an alias."""
    output: Path
    """The file, FILE.onnx. Its commands differ from those of the policy by at most 1e-5 of the largest value."""


@request
class PoliciesListRequest(DeploymentRequest):
    """List every policy version of the registry with its aliases and its stage of deployment."""


@request
class PoliciesShowRequest(DeploymentRequest):
    """Show the content and origin of a policy version, and the gate's decisions about it.

    All files of the version are checked first.
    """

    policy: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]]
    """The policy version: NAME@VERSION, the beginning of a hash, or an alias."""


@request
class PoliciesAuditRequest(DeploymentRequest):
    """Print the promotion log: who promoted which version with which evidence, and the hash of the newest entry."""


@request
class PoliciesVerifyRequest(DeploymentRequest):
    """Check the files of every version, the hash chain of the log, and the aliases. Exit with 1 if a fault is found."""

    head: str | None = None
    """NUMBER:HASH of a log entry that you recorded earlier. It is a fault if the log no longer contains it."""
