"""Drive a robot with commands and record the result; every log of twinloop is made this way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.hardware.protocol import SEEN, TORQUE, Robot


@dataclass(frozen=True, kw_only=True)
class DriveRecording:
    """Result of a drive: ``time`` ``(nsession, T)`` in s, ``action`` (as sent) and ``state`` ``(nsession, T, n)``."""

    time: NDArray[np.float64]
    action: NDArray[np.float64]
    state: NDArray[np.float64]


class Drivable(Protocol):
    """One robot, or several in lockstep, with arrays ``(nsession, n)``."""

    def now(self) -> NDArray[np.float64]:
        """Return the time in s, ``(nsession,)``."""
        ...

    def wait_until(self, moment: float) -> None:
        """Return at ``moment`` or a little later."""
        ...

    def observe(self) -> NDArray[np.float64]:
        """Return the present readings."""
        ...

    def command(self, action: ArrayLike) -> NDArray[np.float64]:
        """Issue commands; return the commands as sent."""
        ...


def record(robot: Robot, commands: Iterable[ArrayLike], hz: float, *, index: int = 0, task: str = "") -> Episode:
    """Drive a connected robot and record one episode.

    Row t of ``commands`` is issued ``t / hz`` seconds from now, or as soon afterwards as the robot's clock returns,
    right after a reading. ``Episode.time`` holds the true times, ``Episode.action`` the commands as sent, within
    limits.

    Args:
        robot: a connected robot.
        commands: rows ``(n,)`` in the robot's units, in the order of ``robot.units``; iterated during the drive.
        hz: commands per second.
        index: the episode's number.
        task: task text of the episode.

    Raises:
        InputError: the rate is not positive, or a row does not match the robot's joints.
        LogError: no commands.
    """
    spoken = _DrivableRobot(robot)
    rows = (_check_row(row, robot) for row in commands)
    return make_episodes(drive(spoken, rows, hz), robot, [index], task=task)[0]


def drive(arms: Drivable, commands: Iterable[NDArray[np.float64]], hz: float) -> DriveRecording:
    """Issue rows of commands ``(nsession, n)`` at a rate and record; see `record`."""
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
    """Return the sessions of a recording as numbered episodes of a robot."""
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


def command_kind(robot: Robot) -> Literal["position", "torque"]:
    """Return the kind of a robot's commands, from the names of its actions."""
    return "torque" if all(key.endswith(f".{TORQUE}") for key in robot.action_features) else "position"


class _DrivableRobot:
    """Adapter from the robot protocol to `Drivable`, with one session."""

    def __init__(self, robot: Robot) -> None:
        self._robot, self._clock = robot, robot.clock
        self._reads = [key for key in robot.observation_features if not key.startswith(SEEN)]
        self._acts = list(robot.action_features)

    def now(self) -> NDArray[np.float64]:
        return np.array([self._clock.now()])

    def wait_until(self, moment: float) -> None:
        self._clock.wait_until(moment)

    def observe(self) -> NDArray[np.float64]:
        reading = self._robot.get_observation()
        return np.array([[reading[key] for key in self._reads]])

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
