"""Requests of ``twinloop run``, ``serve``, ``monitor``, ``gate``, ``promote``, ``rollback`` and ``policies``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import ReportedRequest, Request, SeedOption, WorkspaceRequest, request


@request
class RunRequest(Request):
    """Let a policy drive a robot through the safety envelope, and record everything as a LeRobot v3.0 dataset."""

    robot: str
    """virtual:TWIN?seed=N&task=TASK, lerobot:so101?port=PORT, or your own path/to/file.py:Class?option=value."""
    policy: str
    """champion or another alias, NAME@VERSION, a policy's folder, or a server: http://HOST:PORT, ws://HOST:PORT."""
    output: Path
    """Folder of the dataset."""
    episodes: int = 1
    """How many."""
    first: int = 0
    """Number of the first; what a policy does by chance, and who acts in a canary, depends on the number."""
    seconds: float | None = None
    """Length of an episode; by default the task's, or 20."""
    hz: float | None = None
    """Commands per second; by default the twin's."""
    twin: str | None = None
    """The twin that the envelope asks; by default the virtual robot's, or the workspace's."""
    envelope: Path | None = None
    """A YAML file of the envelope's settings; see docs/guides/deployment.md."""
    instruction: str = ""
    """What the robot is to do, in words, for the dataset; by default the task's sentence."""
    outcome: Path | None = None
    """A CSV file with the columns episode and success, read after each episode."""
    ask: bool = False
    """Ask after each episode whether it succeeded, where nobody else can tell."""
    no_home: bool = False
    """Do not bring a real robot slowly to its twin's home before each episode."""
    realtime: bool = False
    """A virtual robot lives on while the policy thinks, as a real one does; else its time stands still."""
    stop_on_success: bool = False
    """End an episode as soon as the judge calls it a success."""
    on_trip: Literal["stop", "go-on", "rollback"] = "stop"
    """When an episode was cut short: end the run, go on with the next unless the robot failed, or roll back and end."""
    monitor: Path | None = None
    """Folder of a monitor that was calibrated for this policy: twinloop monitor calibrate."""
    on_alarm: Literal["stop", "log"] = "stop"
    """An alarm of the monitor ends the episode, or is written down only."""
    run_seed: int = 0
    """Of what a policy does by chance."""
    token_file: Path | None = None
    """A file with the token of the policy server; else the variable TWINLOOP_TOKEN is asked."""


@request
class ServeRequest(Request):
    """Serve a policy over HTTP and WebSocket, to this machine only unless there is a token; end it with Ctrl-C."""

    policy: str
    """champion or another alias, NAME@VERSION, or a policy's folder."""
    host: str = "127.0.0.1"
    """Where to listen; beyond this machine a token is needed."""
    port: int = 8400
    """The port; 0 takes a free one."""
    token_file: Path | None = None
    """A file with the token that clients must show."""
    sessions: int = 16
    """Clients at a time."""


@request
class MonitorCalibrateRequest(SeedOption, Request):
    """Learn from successful episodes what is usual, so that alarms come at a promised rate where nothing is wrong."""

    data: Path
    """A run's dataset or any LeRobot v3.0 folder that says which episodes succeeded."""
    output: Path
    """Folder for the monitor: monitor.json and monitor.npz."""
    policy: str | None = None
    """The policy that acted: its folder, NAME@VERSION or an alias; without it only robot and scene are watched."""
    twin: str | None = None
    """The robot's twin; by default the workspace's, or so101_tabletop."""
    params: Path | None = None
    """A run of identify: the twin as this robot is."""
    rate: float = 0.05
    """False alarms per episode, of all signals together."""
    camera: tuple[str, ...] = ()
    """Cameras whose pictures are watched, such as front."""
    threads: int = 0
    """C threads; 0 takes every core."""


@request
class MonitorCheckRequest(ReportedRequest):
    """Show recorded episodes to a monitor: what is unusual, since when, and what it points to.

    Exit code 1 where more episodes alarm than are promised, or the course of episodes has drifted.
    """

    data: Path
    """A run's dataset or any LeRobot v3.0 folder."""
    monitor: Path
    """Folder of the monitor."""
    policy: str | None = None
    """The policy that acted; the one that the monitor was calibrated with."""
    twin: str | None = None
    """The robot's twin; the one that the monitor was calibrated with."""
    threads: int = 0
    """C threads; 0 takes every core."""


@request
class GateRequest(Request):
    """May a candidate take the champion's place? Exits with 1 where any rule says no or lacks evidence."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """What is asked, and where the evaluations lie: see docs/guides/release.md."""
    output: Path | None = None
    """Folder for decision.json, result.json and report.html."""
    deployment: str = "main"
    """Whose champion is meant, where a workspace serves several robots or tasks."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from FILE."""


@request
class DeploymentRequest(WorkspaceRequest):
    """Common to commands on the registry of policies."""

    deployment: str = "main"
    """What the aliases belong to, where a workspace serves several robots or tasks."""


@request
class PromoteRequest(DeploymentRequest):
    """Move a version one stage on: shadow, canary, champion, as the file of its gate says."""

    policy: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]] = "candidate"
    """NAME@VERSION, the beginning of a hash, or an alias."""
    to: Literal["shadow", "canary", "champion"] | None = None
    """The stage; by default the next one."""
    force: bool = False
    """Go past the gate and the stages; the log says so."""
    reason: str = ""
    """Why; needed with --force."""
    who: str | None = None
    """Who decides; by default the user."""


@request
class RollbackRequest(DeploymentRequest):
    """Make the previous champion the champion again, after checking every byte of it."""

    reason: str
    """Why; the log keeps it."""
    who: str | None = None
    """Who decides; by default the user."""


@request
class PoliciesAddRequest(DeploymentRequest):
    """Copy a saved policy into the registry; what is there never changes."""

    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """Folder of the policy: config.json, model.safetensors, README.md."""
    name: str | None = None
    """What to call it; by default as the folder. A name has versions."""


@request
class PoliciesListRequest(DeploymentRequest):
    """Every version with its aliases and its stage."""


@request
class PoliciesShowRequest(DeploymentRequest):
    """What a version is made of, checked byte by byte, and what the gate said of it."""

    policy: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]]
    """NAME@VERSION, the beginning of a hash, or an alias."""


@request
class PoliciesAuditRequest(DeploymentRequest):
    """Who promoted what on which evidence; ends with the hash of the newest entry, to be noted elsewhere."""


@request
class PoliciesVerifyRequest(DeploymentRequest):
    """Check every version, the chain of the log and the aliases; exits with 1 where something is wrong."""

    head: str | None = None
    """NUMBER:HASH of an entry of the log that was noted elsewhere: it must still be there."""
