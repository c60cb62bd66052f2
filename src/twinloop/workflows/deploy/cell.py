"""Open and check the parts of a run before anything moves; serve a policy to other computers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.core.contract import Contract
from twinloop.core.errors import InputError
from twinloop.hardware import open_robot
from twinloop.hardware.driver import RobotDriver
from twinloop.release.client import is_address, open_decider
from twinloop.release.envelope import Envelope
from twinloop.release.envelope_settings import EnvelopeSettings
from twinloop.release.registry import PolicyRegistry
from twinloop.release.running_observers import MonitorWatcher, open_watcher
from twinloop.release.running_policy import Decider, open_saved
from twinloop.release.running_robot import TimedRobot, offered_contract
from twinloop.release.serve import PolicyServer, ServeOptions, read_token
from twinloop.release.stages import StageTracker
from twinloop.tasks import DEFAULT_TWIN
from twinloop.twin import Twin, load_twin
from twinloop.workflows.deploy.requests import RunRequest, ServeRequest

PATIENCE_S = 30.0  # maximum wait for an answer while the time of a virtual robot is paused
_VIRTUAL = "virtual:"
_SECONDS = 20.0  # s per episode without a task: the usual length of teleoperated tabletop episodes


@dataclass(kw_only=True)
class RobotCell:
    """The parts of a run: robot, envelope, policies by their role, and the stages of a candidate.

    ``judge`` returns whether the task is done now; None if the robot has no judge.
    """

    robot: RobotDriver
    spoken: TimedRobot
    judge: Callable[[], bool] | None
    twin: Twin
    envelope: Envelope
    offered: Contract
    deciders: Mapping[str, Decider]
    stages: StageTracker | None
    task: Any
    monitor: MonitorWatcher | None


def open_cell(request: RunRequest, registry: PolicyRegistry | None, held: ExitStack) -> RobotCell:
    """Open everything that a run needs; nothing is connected yet.

    Raises:
        InputError: a part is not available, or does not fit the others; the message names it and the remedy.
    """
    spoken = TimedRobot(open_robot(_add_session_number(request.robot, request.first)), patience_s=PATIENCE_S)
    held.callback(spoken.driver.close)
    robot = spoken.driver
    twin = load_twin(_twin_name(request, registry))
    hz = request.hz or twin.control_hz
    if robot.source == "sim" and hz != twin.control_hz:
        raise InputError(f"{robot.origin} runs at its twin's {twin.control_hz:g} Hz. Leave --hz out.")
    settings = EnvelopeSettings() if request.envelope is None else EnvelopeSettings.read(request.envelope)
    envelope = Envelope(twin, settings, units=robot.units, hz=hz)
    task = robot.read_attribute("task")
    offered = offered_contract(robot, hz=hz, task=str(getattr(task, "name", "")))
    stages = StageTracker(registry) if registry is not None and request.policy == "champion" else None
    deciders: dict[str, Decider] = {}
    for arm, reference in _policies_by_role(request, stages).items():
        deciders[arm] = open_decider(
            reference, registry, token=read_token(request.token_file), run_seed=request.run_seed
        )
        held.callback(deciders[arm].close)
        require_compatible(deciders[arm], offered, robot.origin)
    if robot.source == "real":
        robot.patience_s = settings.max_age_s
    monitor = None
    if request.monitor is not None:
        monitor = open_watcher(request.monitor, deciders["champion"], spoken, on_alarm=request.on_alarm)
    return RobotCell(
        robot=robot,
        spoken=spoken,
        judge=robot.read_attribute("success"),
        twin=twin,
        envelope=envelope,
        offered=offered,
        deciders=deciders,
        stages=stages,
        task=task,
        monitor=monitor,
    )


def _add_session_number(address: str, first: int) -> str:
    """Return a virtual robot's address with the session number of the first episode, unless it already has one."""
    if not address.startswith(_VIRTUAL) or "session=" in address or not first:
        return address
    return f"{address}{'&' if '?' in address else '?'}session={first}"


def require_compatible(decider: Decider, offered: Contract, robot: str) -> None:
    """Refuse a policy whose contract does not match the robot.

    Raises:
        InputError: lists every difference on its own line.
    """
    differences = decider.contract.find_differences(offered)
    if differences:
        lines = "\n".join(f"  {line}" for line in differences)
        raise InputError(
            f"{decider.name} does not fit {robot}:\n{lines}\nChoose another policy, robot, --twin or --hz."
        )


def _policies_by_role(request: RunRequest, stages: StageTracker | None) -> dict[str, str]:
    """Return the policies of the run by role: the requested one, and the candidate that is in shadow or canary."""
    arms = {"champion": request.policy}
    standing = None if stages is None else stages.current_candidate
    if standing is not None:
        arms[standing.stage] = standing.policy
    return arms


def _twin_name(request: RunRequest, registry: PolicyRegistry | None) -> str:
    if request.twin is not None:
        return request.twin
    if request.robot.startswith(_VIRTUAL):
        return request.robot.removeprefix(_VIRTUAL).partition("?")[0]
    named = None if registry is None else registry.workspace.config.get("twin")
    if named is None:
        raise InputError(
            f"The envelope needs a twin of {request.robot} to compute limits and clearances, and none is given. Add "
            f"--twin, such as --twin {DEFAULT_TWIN}, or name a twin in the workspace's twinloop.yaml."
        )
    return str(named)


def open_registry(held: ExitStack) -> PolicyRegistry | None:
    """Return the policy registry of the workspace around the working folder, or None."""
    root = Workspace.find(Path.cwd())
    return None if root is None else PolicyRegistry(held.enter_context(Workspace.open(root)))


def episode_steps(cell: RobotCell, request: RunRequest) -> int:
    """Return the number of control steps of an episode: as requested, or that of the task, or those of 20 s."""
    hz = cell.offered.control_hz
    if request.seconds is not None:
        return max(1, round(request.seconds * hz))
    return int(cell.task.nstep) if cell.task is not None else round(_SECONDS * hz)


def serve_policy(request: ServeRequest, console: Console) -> dict[str, Any]:
    """Serve a policy until Ctrl-C; return the number of answered observations.

    Raises:
        InputError: there is no such policy, a server's address is given instead, or the port is not available.
    """
    options = ServeOptions(
        host=request.host, port=request.port, token=read_token(request.token_file), sessions=request.sessions
    )
    if is_address(request.policy):
        raise InputError(
            f"{request.policy} is the address of a server. Give the folder of a policy, or a name of the registry."
        )
    with ExitStack() as held:
        policy = open_saved(request.policy, open_registry(held))
        server = PolicyServer(policy.copy, options)
        console.print(
            f"Serving {policy.name} ({policy.hash[:12]}) at {server.address}. Ctrl-C stops it.", soft_wrap=True
        )
        server.run()
    return {"schema": 1, "verb": "serve", "policy": policy.name, "answered": server.sessions.answered}
