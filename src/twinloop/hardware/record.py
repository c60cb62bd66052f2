"""Drive a robot with a series of commands and record an episode; all logs that twinloop records are made here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.contract import ENVIRONMENT
from twinloop.core.errors import InputError
from twinloop.core.records import POSE_COLUMNS, Episode, LoggedSignal
from twinloop.core.units import CommandKind
from twinloop.hardware.protocol import COMMAND_KEYS, TRACKED_PREFIX, Robot
from twinloop.twin import Twin

TRACKER = ENVIRONMENT.removeprefix("observation.")  # signal with the values of a tracker


@dataclass(frozen=True, kw_only=True)
class DriveRecording:
    """Recorded data of one or several sessions, with T control steps and n joints.

    Attributes:
        time: time since the start in s, ``(nsession, T)``.
        action: commands as sent, ``(nsession, T, n)``.
        state: readings, ``(nsession, T, n)``.
    """

    time: NDArray[np.float64]
    action: NDArray[np.float64]
    state: NDArray[np.float64]


class Drivable(Protocol):
    """Interface of what `drive` can record: one robot, or several sessions of a robot that are simulated in lockstep.

    Values of n joints have shape ``(nsession, n)``; nsession is the number of sessions, 1 for one robot.
    """

    def now(self) -> NDArray[np.float64]:
        """Return the time of each session in s since an arbitrary, fixed moment, ``(nsession,)``."""
        ...

    def wait_until(self, moment: float) -> None:
        """Wait until the time ``moment`` of all sessions, in s as returned by `now`, or a little longer."""
        ...

    def observe(self) -> NDArray[np.float64]:
        """Return the present readings of the n joints in each session, ``(nsession, n)``."""
        ...

    def command(self, action: ArrayLike) -> NDArray[np.float64]:
        """Issue commands ``(nsession, n)``; return the commands as sent, which the robot may clip to its limits.

        Commands are in the robot's units, or in N·m with torque control.
        """
        ...


def record(robot: Robot, commands: Iterable[ArrayLike], hz: float, *, index: int = 0, task: str = "") -> Episode:
    """Drive a connected robot and record one episode.

    In control step t, the robot's clock waits until ``t / hz`` seconds after the start, the joints are read, and then
    row t of ``commands`` is sent. ``Episode.time`` holds the true times, ``Episode.action`` the commands as sent,
    clipped to the robot's limits.

    Args:
        robot: a connected robot.
        commands: rows ``(n,)`` in the robot's units, in the order of ``robot.units``; iterated during the drive.
        hz: commands per second.
        index: the episode's number.
        task: task text of the episode.

    Raises:
        InputError: If the rate is not positive, or a row does not match the robot's joints.
        LogError: If there are no commands.
    """
    return record_images(robot, commands, hz, index=index, task=task)[0]


def record_images(
    robot: Robot, commands: Iterable[ArrayLike], hz: float, *, index: int = 0, task: str = ""
) -> tuple[Episode, dict[str, NDArray[np.uint8]]]:
    """Drive a connected robot and record one episode and the images of its cameras; see `record`.

    Returns:
        The episode, and for each camera its image at each control step, ``(T, height, width, 3)``, RGB.
    """
    spoken = _DrivableRobot(robot)
    rows = (_check_row(row, robot) for row in commands)
    episode = make_episodes(drive(spoken, rows, hz), robot, [index], task=task)[0]
    return spoken.add_signals(episode), spoken.stack_images()


def drive(arms: Drivable, commands: Iterable[NDArray[np.float64]], hz: float) -> DriveRecording:
    """Issue commands at a rate and record them with the readings, in one or several sessions; see `record`.

    Args:
        arms: robot or sessions.
        commands: rows ``(nsession, n)``, one per control step.
        hz: commands per second.

    Raises:
        InputError: If the rate is not positive.
    """
    if not hz > 0:
        raise InputError(f"A rate of {hz:g} Hz is not possible. Give commands per second, such as 30.")
    start = float(arms.now().min())
    time, action, state = [], [], []
    for step, command in enumerate(commands):
        arms.wait_until(start + step / hz)
        time.append(arms.now() - start)
        state.append(arms.observe())
        action.append(arms.command(command))
    if not time:
        return DriveRecording(time=np.empty((1, 0)), action=np.empty((1, 0, 0)), state=np.empty((1, 0, 0)))
    time, action, state = (np.stack(part, axis=1) for part in (time, action, state))
    return DriveRecording(time=time, action=action, state=state)


def make_episodes(recording: DriveRecording, robot: Robot, numbers: Iterable[int], *, task: str = "") -> list[Episode]:
    """Return each session of a recording as an episode of ``robot``; ``numbers`` are the episode numbers."""
    return [
        Episode(
            index=number,
            time=recording.time[row],
            action=recording.action[row],
            state=recording.state[row],
            units=robot.units,
            task=task,
            source=robot.source,
            origin=robot.origin,
            robot_type=robot.name,
            command=command_kind(robot),
        )
        for row, number in enumerate(numbers)
    ]


def command_kind(robot: Robot) -> CommandKind:
    """Return the kind of a robot's commands, from the keys of its actions."""
    keys = list(robot.action_features)
    for kind, end in COMMAND_KEYS.items():
        if all(key.endswith(f".{end}") for key in keys):
            return kind
    return "position"


def add_tracked_poses(episode: Episode, twin: Twin) -> Episode:
    """Return an episode with what its tracker saw also as signals from which a replay starts, or that it compares.

    They are the position of the twin's tool site as ``place/SITE``, and the poses of its free and mocap bodies as
    ``pose/BODY``. A body without a tracked heading has the orientation that it has in the model.

    Args:
        episode: the episode, with the tracker's values as the signal ``environment_state``.
        twin: twin of the robot and its scene.
    """
    tracked, model = episode.signals.get(TRACKER), twin.model
    if tracked is None:
        return episode
    seen = dict(zip(tracked.columns, tracked.values.T, strict=True))

    def find_place(name: str) -> list[NDArray[np.float64]]:
        return [seen[f"{name}.{axis}"] for axis in "xyz"] if all(f"{name}.{axis}" in seen for axis in "xyz") else []

    found, site, place = dict[str, LoggedSignal](), twin.robot.tcp, find_place("tool")
    if site is not None and place:
        found[f"place/{site}"] = replace(tracked, values=np.stack(place, axis=1), columns=tuple("xyz"), unit="m")
    free = model.jnt_bodyid[model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)]
    for body in [*free.tolist(), *np.flatnonzero(model.body_mocapid >= 0).tolist()]:
        name, turn = model.body(body).name, model.body_quat[body]
        place, known = find_place(name), f"{name}.heading.cos" in seen
        if place:
            half = np.arctan2(seen[f"{name}.heading.sin"], seen[f"{name}.heading.cos"]) / 2.0 if known else 0.0
            turn = [np.cos(half), 0.0, 0.0, np.sin(half)] if known else turn
            values = np.stack(np.broadcast_arrays(*place, *turn), axis=1)
            found[f"pose/{name}"] = replace(tracked, values=values, columns=POSE_COLUMNS, unit="")
    return replace(episode, signals={**episode.signals, **found})


class _DrivableRobot:
    """Adapter from the robot protocol to `Drivable`, the interface of what `drive` can record.

    The robot is the only session, so that all arrays have one row.
    """

    def __init__(self, robot: Robot) -> None:
        self._robot, self._clock = robot, robot.clock
        features = robot.observation_features
        numbers = [key for key, kind in features.items() if kind is float]
        self._reads = [key for key in numbers if not key.startswith(TRACKED_PREFIX)]
        self._tracked = [key for key in numbers if key.startswith(TRACKED_PREFIX)]
        self._cameras = [key for key, kind in features.items() if isinstance(kind, tuple)]
        self._acts = list(robot.action_features)
        self._others: list[tuple[list[float], list[NDArray[np.uint8]]]] = []

    def now(self) -> NDArray[np.float64]:
        return np.array([self._clock.now()])

    def wait_until(self, moment: float) -> None:
        self._clock.wait_until(moment)

    def observe(self) -> NDArray[np.float64]:
        reading: Mapping[str, Any] = self._robot.get_observation()
        self._others.append(
            ([reading[key] for key in self._tracked], [np.array(reading[key]) for key in self._cameras])
        )
        return np.array([[reading[key] for key in self._reads]])

    def add_signals(self, episode: Episode) -> Episode:
        """Return the episode with the values of the robot's tracker as the signal ``environment_state``."""
        if not self._tracked:
            return episode
        names = tuple(key.removeprefix(TRACKED_PREFIX) for key in self._tracked)
        values = np.array([tracked for tracked, _ in self._others])
        signal = LoggedSignal(time=episode.time, values=values, columns=names, unit="")
        return replace(episode, signals={**episode.signals, TRACKER: signal})

    def stack_images(self) -> dict[str, NDArray[np.uint8]]:
        """Return the images of each camera at each reading, ``(T, height, width, 3)``."""
        return {
            name: np.stack([images[column] for _, images in self._others]) for column, name in enumerate(self._cameras)
        }

    def command(self, action: ArrayLike) -> NDArray[np.float64]:
        values = np.asarray(action, dtype=np.float64)[0]
        sent = self._robot.send_action({k: float(v) for k, v in zip(self._acts, values, strict=True)})
        return np.array([[sent[key] for key in self._acts]])


def _check_row(row: ArrayLike, robot: Robot) -> NDArray[np.float64]:
    values = np.asarray(row, dtype=np.float64)
    joints = robot.units.names
    if values.shape != (len(joints),):
        raise InputError(
            f"A row of commands has shape {values.shape}; {robot.origin} has {len(joints)} joints: {', '.join(joints)}."
        )
    return values[None]
