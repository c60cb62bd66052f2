"""Run ``twinloop record``: move a robot through an excitation plan or a motion, and write the log as a dataset.

The dataset is the input of ``twinloop identify``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.core.files import write_json
from twinloop.core.units import CommandKind
from twinloop.dataset.logs.conversion import LogDatasetWriter
from twinloop.hardware import open_robot
from twinloop.hardware.driver import RobotDriver, RobotLostError
from twinloop.hardware.excite import ExcitationPlan, load_excitation
from twinloop.hardware.excite_drive import TASK, excite, require_matching_robot
from twinloop.hardware.excite_guard import DriveHealth, GuardOptions
from twinloop.hardware.limits import ClearanceCheck
from twinloop.hardware.motions import plan_motion
from twinloop.hardware.protocol import TRACKED_PREFIX, Robot
from twinloop.hardware.record import add_tracked_poses
from twinloop.twin import Twin, load_twin
from twinloop.workflows.data.requests import RecordRequest
from twinloop.workflows.run.results import claim_output

_RECORD = "twinloop/recording.json"
_HEADING = (("cos", 1.0), ("sin", 0.0))
_PATIENCE_S = 2.0  # maximum wait for an answer; a servo bus answers in milliseconds


def run_record(request: RecordRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Move a robot through an excitation plan or a motion, and record it as a dataset.

    Returns:
        The metrics of the recording, and exit code 1 if the motion ended early, else 0.

    Raises:
        InputError: If the plan, the motion, the twin or the output does not fit, or nothing was recorded.
    """
    if (request.excitation is None) == (request.motion is None):
        raise InputError(
            "Give a plan, --excitation PLAN.yaml, or a motion: --motion reach, pick, random or a CSV file."
        )
    plan = None if request.excitation is None else load_excitation(request.excitation)
    robot = RobotDriver(open_robot(request.robot), patience_s=_PATIENCE_S)
    try:
        return _run_recording(robot, plan, request, console)
    finally:
        robot.close()


def _run_recording(
    robot: RobotDriver, given: ExcitationPlan | None, request: RecordRequest, console: Console
) -> tuple[dict[str, Any], int]:
    twin = _load_motion_twin(request) if given is None else _load_plan_twin(given, request)
    plan = given or _plan_episode(twin, request, 0)
    require_matching_robot(robot, plan)
    if twin.robot.type != robot.name and not request.force:
        raise InputError(
            f"This motion is for a {twin.robot.type}, but {robot.origin} is a {robot.name}. If both have the same "
            "range, strength and surroundings, add --force. Otherwise use the twin of this robot."
        )
    repeat = plan.repeat if request.repeat is None else request.repeat
    if repeat < 1:
        raise InputError(f"--repeat {repeat} records nothing. Give 1 or more.")
    console.print(_describe_motion(plan, robot, repeat), soft_wrap=True)
    if request.dry_run:
        return {"schema": 1, "verb": "record", "dry_run": True, **_motion_metrics(plan, repeat)}, 0
    output = _claim_folder(request.output)
    cameras = {name: (int(shape[0]), int(shape[1])) for name, shape in robot.description.cameras.items()}
    writer = LogDatasetWriter(output, cameras=cameras)
    recording = _Recording(robot, twin, given, request, writer, console)
    try:
        recording.run(repeat)
    finally:
        writer.close()
    if not recording.lengths:
        raise InputError(f"Nothing was recorded: {recording.reason}.")
    result = {
        "schema": 1,
        "verb": "record",
        "dry_run": False,
        "robot": robot.origin,
        "output": str(output),
        "episodes": len(recording.lengths),
        "frames": sum(recording.lengths),
        "signals": list(recording.signals),
        "cameras": list(cameras),
        "completed": not recording.reason,
        "stopped": recording.reason,
        **_motion_metrics(plan, repeat),
    }
    write_json(output / _RECORD, {**result, "excitation": dict(plan.provenance), "expected": dict(plan.expected)})
    if recording.reason:
        console.print(f"Stopped: {recording.reason}. The frames recorded before are kept and marked.", soft_wrap=True)
    seen = ", ".join([*recording.signals, *cameras])
    console.print(
        f"{result['episodes']} episodes, {result['frames']} frames{f', with {seen}' if seen else ''}: {output}",
        soft_wrap=True,
    )
    return result, 1 if recording.reason else 0


class _Recording:
    """Recording in progress: every episode is on the disk before the next one begins.

    Attributes:
        lengths: number of frames of each recorded episode.
        signals: names of the recorded signals.
        reason: why the recording ended early, or "".
    """

    def __init__(
        self,
        robot: RobotDriver,
        twin: Twin,
        plan: ExcitationPlan | None,
        request: RecordRequest,
        writer: LogDatasetWriter,
        console: Console,
    ) -> None:
        self._robot, self._twin, self._plan, self._request = robot, twin, plan, request
        self._writer, self._console = writer, console
        self.lengths: list[int] = []
        self.signals: tuple[str, ...] = ()
        self.reason = ""

    def run(self, repeat: int) -> None:
        """Connect the robot, record the episodes, and disconnect the robot."""
        try:
            self._robot.connect()
            for number in range(repeat):
                if number and self._plan is None and self._robot.source == "sim":
                    self._robot.disconnect()  # a simulated robot begins every motion at home, with a new scene
                    self._robot.connect()
                self._record_episode(number)
                if self.reason:
                    break
        finally:
            lost = _disconnect_robot(self._robot)
            if lost:
                self._console.print(lost, soft_wrap=True)
                self.reason = f"{self.reason}; {lost}" if self.reason else lost

    def _record_episode(self, number: int) -> None:
        plan = self._plan or _plan_episode(self._twin, self._request, number, robot=self._robot)
        clear = plan.control == "position" and self._request.motion != "pick"  # which is to touch an object
        driven = excite(
            self._robot,
            plan,
            repeat=1,
            first=number,
            task=TASK if self._plan is not None else str(self._request.motion),
            guard=GuardOptions(tracking_tolerance=self._request.max_lag, temperature=self._request.temperature),
            on_abort=self._request.on_abort,
            clearance=ClearanceCheck(self._twin, plan.limits.clearance) if clear else None,
            progress=lambda text: self._console.print(text, soft_wrap=True),
        )
        self.reason = driven.reason
        for episode, images in zip(driven.episodes, driven.images, strict=True):
            stored = add_tracked_poses(episode, self._twin)
            self._writer.add(stored, images)
            self.lengths.append(len(stored))
            self.signals = tuple(stored.signals)


def _plan_episode(
    twin: Twin, request: RecordRequest, number: int, *, robot: RobotDriver | None = None
) -> ExcitationPlan:
    """Return the motion of an episode; a connected robot's tracker gives the positions of objects."""
    seen = {} if robot is None else robot.get_observation()
    objects = {
        name: tracked_pose(seen, name)
        for name in twin.spec.objects
        if all(f"{TRACKED_PREFIX}{name}.{axis}" in seen for axis in "xyz")
    }
    return plan_motion(
        twin, str(request.motion), seconds=request.seconds, seed=request.seed, episode=number, objects=objects
    )


def tracked_pose(seen: Mapping[str, float], name: str) -> NDArray[np.float64]:
    """Return x, y, z in m and the heading in rad of an object in a robot's observation; the heading is 0 if unknown."""
    cosine, sine = (seen.get(f"{TRACKED_PREFIX}{name}.heading.{part}", usual) for part, usual in _HEADING)
    return np.array([*(seen[f"{TRACKED_PREFIX}{name}.{axis}"] for axis in "xyz"), np.arctan2(sine, cosine)])


def _load_motion_twin(request: RecordRequest) -> Twin:
    """Return the twin that ``--twin`` or the address of a virtual robot names.

    Raises:
        InputError: If neither names a twin.
    """
    scheme, _, rest = request.robot.partition(":")
    reference = request.twin or (rest.partition("?")[0] if scheme == "virtual" else "")
    if not reference:
        raise InputError("A motion needs limits: name the twin of this robot with --twin TWIN.")
    return load_twin(reference)


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


_UNITS: Mapping[CommandKind, str] = MappingProxyType(
    {
        "position": "rad and rad/s, of slides m and m/s",
        "velocity": "rad/s and rad/s², of slides m/s and m/s²",
        "torque": "N·m and N·m/s, of slides N and N/s",
    }
)


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
        limit = f"{plan.limits.speed[j]:>8.2f}" if plan.control == "position" else f"{'–':>8}"
        speed = f"{peak['speed']:>12.2f}{limit}"
        lines.append(f"{joint:<20}{peak['low']:>9.2f}{peak['high']:>9.2f}{limits:>18}{speed}")
    unit = _UNITS[plan.control]
    if (slowed := plan.provenance.get("slowed", 1.0)) > 1.0:
        lines.append(f"The motion is {slowed:.2f} times slower than requested, which keeps the limits of speed.")
    watched = "following error, temperature and torque" if isinstance(robot, DriveHealth) else "following error only"
    return "\n".join([*lines, f"{unit}; watched: {watched}"])
