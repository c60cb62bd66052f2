"""Open and check the robot, twin, policies and monitor of a run before anything moves; serve a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.core.assignment import Assignment, list_sources
from twinloop.core.contract import Contract
from twinloop.core.errors import InputError
from twinloop.hardware import open_robot
from twinloop.hardware.driver import RobotDriver
from twinloop.policies.folder import read_card
from twinloop.release.client import is_address, open_decider
from twinloop.release.envelope import Envelope
from twinloop.release.envelope_settings import EnvelopeSettings
from twinloop.release.registry import PolicyRegistry
from twinloop.release.running_observers import MonitorWatcher, open_watcher
from twinloop.release.running_policy import Decider, LocalDecider, open_saved
from twinloop.release.running_robot import TimedRobot, offered_contract
from twinloop.release.serve import PolicyServer, ServeOptions, read_token
from twinloop.release.stages import StageTracker
from twinloop.twin import Twin
from twinloop.workflows.deploy.requests import RunRequest, ServeRequest
from twinloop.workflows.run.twin_and_task import load_requested_twin

PATIENCE_S = 30.0  # maximum wait for an answer while the time of a virtual robot is paused
_VIRTUAL = "virtual:"
_SECONDS = 20.0  # s per episode without a task: the usual length of teleoperated tabletop episodes


@dataclass(kw_only=True)
class OpenedRun:
    """Robot, envelope, policies and monitor of a run, opened and checked against each other.

    Attributes:
        robot: driver of the robot.
        timed_robot: the same robot, with a time limit for each of its answers.
        judge: function that returns whether the task is done now; None if the robot cannot determine it.
        twin: twin from which the envelope is computed.
        envelope: limits that every command must respect.
        robot_contract: contract that the robot offers to a policy.
        deciders: policies by role: ``champion``, and ``shadow`` or ``canary`` if a candidate is in this stage.
        stages: stages of deployment; None without a registry, or if another policy than the champion is requested.
        task: task of a virtual robot, or None.
        monitor: monitor of the champion, or None.
        assignment: twin and task for which the champion was trained; None if they are unknown.
        sources: files of this twin and task, by their path in a folder.
    """

    robot: RobotDriver
    timed_robot: TimedRobot
    judge: Callable[[], bool] | None
    twin: Twin
    envelope: Envelope
    robot_contract: Contract
    deciders: Mapping[str, Decider]
    stages: StageTracker | None
    task: Any
    monitor: MonitorWatcher | None
    assignment: Assignment | None
    sources: Mapping[str, Path]


def open_run_parts(request: RunRequest, registry: PolicyRegistry | None, held: ExitStack) -> OpenedRun:
    """Open and check everything that a run needs. The robot is not connected yet.

    Args:
        request: flags of ``twinloop run``.
        registry: registry of the workspace, or None.
        held: stack on which everything that must be closed is registered.

    Raises:
        InputError: If a robot, policy, twin or monitor is not available, or does not fit the others.
    """
    timed_robot = TimedRobot(open_robot(_add_session_number(request.robot, request.first)), patience_s=PATIENCE_S)
    held.callback(timed_robot.driver.close)
    robot = timed_robot.driver
    if request.first and robot.read_attribute("episode") is not None:  # of a class based on OwnRobot
        robot.call(lambda: setattr(robot.robot, "episode", request.first))
    policy = None if is_address(request.policy) else request.policy
    twin = load_requested_twin(_requested_twin(request), None, policy)
    hz = request.hz or twin.control_hz
    if request.robot.startswith(_VIRTUAL) and hz != twin.control_hz:
        raise InputError(f"{robot.origin} runs at its twin's {twin.control_hz:g} Hz. Leave --hz out.")
    settings = EnvelopeSettings() if request.envelope is None else EnvelopeSettings.read(request.envelope)
    envelope = Envelope(twin, settings, units=robot.units, hz=hz)
    task = robot.read_attribute("task")
    robot_contract = offered_contract(robot, hz=hz, task=str(getattr(task, "name", "")))
    stages = StageTracker(registry) if registry is not None and request.policy == "champion" else None
    deciders: dict[str, Decider] = {}
    for arm, reference in _policies_by_role(request, stages).items():
        deciders[arm] = open_decider(
            reference, registry, token=read_token(request.token_file), run_seed=request.run_seed
        )
        held.callback(deciders[arm].close)
        require_compatible(deciders[arm], robot_contract, robot.origin)
    champion = deciders["champion"]
    folder = champion.folder if isinstance(champion, LocalDecider) else None
    kept = None if folder is None else read_card(folder).assignment
    if robot.source == "real":
        robot.patience_s = settings.max_age_s
    monitor = None
    if request.monitor is not None:
        monitor = open_watcher(request.monitor, deciders["champion"], timed_robot, on_alarm=request.on_alarm)
    return OpenedRun(
        robot=robot,
        timed_robot=timed_robot,
        judge=robot.read_attribute("success"),
        twin=twin,
        envelope=envelope,
        robot_contract=robot_contract,
        deciders=deciders,
        stages=stages,
        task=task,
        monitor=monitor,
        assignment=kept,
        sources={} if kept is None or folder is None else list_sources(folder),
    )


def _add_session_number(address: str, first: int) -> str:
    """Add the number of the first episode to the address of a virtual robot, so that a later run gets other scenes.

    Args:
        address: address of a robot. It is returned unchanged for a real robot, and if it already has a session number.
        first: number of the first episode.
    """
    if not address.startswith(_VIRTUAL) or "session=" in address or not first:
        return address
    return f"{address}{'&' if '?' in address else '?'}session={first}"


def require_compatible(decider: Decider, robot_contract: Contract, robot: str) -> None:
    """Check that the contract of a policy matches a robot.

    Args:
        decider: the policy.
        robot_contract: contract that the robot offers.
        robot: name of the robot, for the error message.

    Raises:
        InputError: If the contracts differ; the message has one line for each difference.
    """
    differences = decider.contract.find_differences(robot_contract, reduced=True)
    if differences:
        lines = "\n".join(f"  {line}" for line in differences)
        raise InputError(
            f"{decider.name} does not fit {robot}:\n{lines}\nChoose another policy, robot, --twin or --hz."
        )


def _policies_by_role(request: RunRequest, stages: StageTracker | None) -> dict[str, str]:
    """Return the policies of a run by role: ``champion`` is the requested one, ``shadow`` or ``canary`` a candidate."""
    arms = {"champion": request.policy}
    standing = None if stages is None else stages.current_candidate
    if standing is not None:
        arms[standing.stage] = standing.policy
    return arms


def _requested_twin(request: RunRequest) -> str | None:
    if request.twin is None and request.robot.startswith(_VIRTUAL):
        return request.robot.removeprefix(_VIRTUAL).partition("?")[0]
    return request.twin


def open_registry(held: ExitStack) -> PolicyRegistry | None:
    """Return the policy registry of the nearest workspace upwards from the working folder, or None without a workspace.

    Args:
        held: stack that closes the workspace.
    """
    root = Workspace.find(Path.cwd())
    return None if root is None else PolicyRegistry(held.enter_context(Workspace.open(root)))


def episode_steps(opened: OpenedRun, request: RunRequest) -> int:
    """Return the number of control steps of an episode: from ``--seconds``, else from the task, else for 20 s."""
    hz = opened.robot_contract.control_hz
    if request.seconds is not None:
        return max(1, round(request.seconds * hz))
    return int(opened.task.nstep) if opened.task is not None else round(_SECONDS * hz)


def serve_policy(request: ServeRequest, console: Console) -> dict[str, Any]:
    """Serve a policy over HTTP and WebSocket until Ctrl-C; return the number of answered observations.

    Raises:
        InputError: If there is no such policy, the policy is given as the address of a server, or the port is not
            available.
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
