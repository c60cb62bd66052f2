"""Run ``twinloop record``: move a robot through an excitation plan, and write the log as a LeRobot dataset.

The dataset is the input of ``twinloop identify``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.core.files import write_json
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.hardware import open_robot
from twinloop.hardware.driver import RobotDriver, RobotLostError
from twinloop.hardware.excite import ExcitationPlan, load_excitation
from twinloop.hardware.excite_drive import ExcitationRecording, excite, require_matching_robot
from twinloop.hardware.excite_guard import DriveHealth, GuardOptions
from twinloop.hardware.limits import ClearanceCheck
from twinloop.hardware.protocol import Robot
from twinloop.twin import Twin, load_twin
from twinloop.workflows.data.requests import RecordRequest
from twinloop.workflows.run.results import claim_output

_RECORD = "twinloop/recording.json"
_PATIENCE_S = 2.0  # maximum wait for an answer; a servo bus answers in milliseconds


def run_record(request: RecordRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Move a robot through an excitation plan and record the motion as a dataset.

    Returns:
        The metrics of the recording, and exit code 1 if the motion ended early, else 0.

    Raises:
        InputError: If the plan, the twin or the output does not fit, or nothing was recorded.
    """
    plan = load_excitation(request.excitation)
    robot = RobotDriver(open_robot(request.robot), patience_s=_PATIENCE_S)
    try:
        return _run_recording(robot, plan, request, console)
    finally:
        robot.close()


def _run_recording(
    robot: RobotDriver, plan: ExcitationPlan, request: RecordRequest, console: Console
) -> tuple[dict[str, Any], int]:
    twin = _load_plan_twin(plan, request)
    require_matching_robot(robot, plan)
    if twin.robot.type != robot.name and not request.force:
        raise InputError(
            f"This plan was made for a {twin.robot.type}, but {robot.origin} is a {robot.name}. If both have the same "
            "range, strength and surroundings, add --force. Otherwise make a plan with the twin of this robot."
        )
    repeat = plan.repeat if request.repeat is None else request.repeat
    if repeat < 1:
        raise InputError(f"--repeat {repeat} records nothing. Give 1 or more.")
    console.print(_describe_motion(plan, robot, repeat), soft_wrap=True)
    if request.dry_run:
        return {"schema": 1, "verb": "record", "dry_run": True, **_motion_metrics(plan, repeat)}, 0
    output = _claim_folder(request.output)
    driven = _drive(robot, plan, twin, repeat, request, console)
    if not driven.episodes:
        raise InputError(f"Nothing was recorded: {driven.reason}.")
    write_log_dataset(driven.episodes, output, name=output.name)
    result = {
        "schema": 1,
        "verb": "record",
        "dry_run": False,
        "robot": robot.origin,
        "output": str(output),
        "episodes": len(driven.episodes),
        "frames": sum(map(len, driven.episodes)),
        "completed": driven.completed,
        "stopped": driven.reason,
        **_motion_metrics(plan, repeat),
    }
    write_json(output / _RECORD, {**result, "excitation": dict(plan.provenance), "expected": dict(plan.expected)})
    if driven.reason:
        console.print(f"Stopped: {driven.reason}. The frames recorded before are kept and marked.", soft_wrap=True)
    console.print(f"{result['episodes']} episodes, {result['frames']} frames: {output}", soft_wrap=True)
    return result, 0 if driven.completed else 1


def _drive(
    robot: RobotDriver, plan: ExcitationPlan, twin: Twin, repeat: int, request: RecordRequest, console: Console
) -> ExcitationRecording:
    driven = None
    try:
        robot.connect()
        driven = excite(
            robot,
            plan,
            repeat=repeat,
            guard=GuardOptions(tracking_tolerance=request.max_lag, temperature=request.temperature),
            on_abort=request.on_abort,
            clearance=ClearanceCheck(twin, plan.limits.clearance) if plan.control == "position" else None,
            progress=lambda text: console.print(text, soft_wrap=True),
        )
    finally:
        lost = _disconnect_robot(robot)
        if lost:
            console.print(lost, soft_wrap=True)
    return replace(driven, reason=f"{driven.reason}; {lost}" if driven.reason else lost) if lost else driven


def _disconnect_robot(robot: RobotDriver) -> str:
    """Disconnect a robot; return the error message if this fails, else ""."""
    try:
        robot.disconnect()
    except RobotLostError as error:
        return f"the robot could not be disconnected, switch it off by hand: {error}"
    return ""


def _load_plan_twin(plan: ExcitationPlan, request: RecordRequest) -> Twin:
    """Return the twin that the excitation plan was made with.

    Raises:
        InputError: If the twin has changed since then, and ``--force`` is not given.
    """
    twin = load_twin(plan.twin)
    if twin.hash != plan.twin_hash and not request.force:
        raise InputError(
            f"The twin {plan.twin} has changed since this plan was made (it is {twin.hash[:12]} and was "
            f"{plan.twin_hash[:12]}). If the robot and its surroundings have not changed, add --force. "
            "Otherwise make the plan again."
        )
    return twin


def _claim_folder(output: Path | None) -> Path:
    """Return the output folder, after a check that the log can be written there; called before the robot moves.

    Raises:
        InputError: If no folder is given, or it is not empty, or it is not writable.
    """
    if output is None:
        raise InputError("No output folder is given. Add --output DIR; only --dry-run needs none.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} is not an empty folder. Choose another --output.")
    claim_output(output)
    return output


def _motion_metrics(plan: ExcitationPlan, repeat: int) -> Mapping[str, Any]:
    return {"seconds": plan.seconds, "repeat": repeat, "hz": plan.hz, "peaks": plan.command_peaks()}


def _describe_motion(plan: ExcitationPlan, robot: Robot, repeat: int) -> str:
    """Return a text on a motion: duration, range and peak speed of each joint, and the watched measurements.

    A watched measurement, such as the following error or temperature, stops the motion if it exceeds its limit.
    """
    lines = [
        f"{repeat} × {plan.seconds:.1f} s at {plan.hz:g} Hz on {robot.origin}, each from rest at its first pose",
        f"{'joint':<20}{'from':>9}{'to':>9}{'limits':>18}{'peak speed':>12}{'limit':>8}",
    ]
    for j, (joint, peak) in enumerate(plan.command_peaks().items()):
        limits = f"{plan.limits.low[j]:.2f} to {plan.limits.high[j]:.2f}"
        speed = f"{peak['speed']:>12.2f}{plan.limits.speed[j]:>8.2f}"
        lines.append(f"{joint:<20}{peak['low']:>9.2f}{peak['high']:>9.2f}{limits:>18}{speed}")
    unit = "rad and rad/s, of slides m and m/s" if plan.control == "position" else "N·m and N·m/s, of slides N and N/s"
    watched = "following error, temperature and torque" if isinstance(robot, DriveHealth) else "following error only"
    return "\n".join([*lines, f"{unit}; watched: {watched}"])
