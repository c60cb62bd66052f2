"""Driving a robot through commands and keeping what happened: the way every log of ours is made."""

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
    """What driving gave: ``time`` ``(nsession, T)`` in s, ``action`` (as sent) and ``state`` ``(nsession, T, n)``."""

    time: NDArray[np.float64]
    action: NDArray[np.float64]
    state: NDArray[np.float64]


class Drivable(Protocol):
    """One robot or many in step, in arrays ``(nsession, n)``."""

    def now(self) -> NDArray[np.float64]:
        """Seconds, ``(nsession,)``."""
        ...

    def wait_until(self, moment: float) -> None:
        """Return at ``moment`` or a little later."""
        ...

    def observe(self) -> NDArray[np.float64]:
        """What is read now."""
        ...

    def command(self, action: ArrayLike) -> NDArray[np.float64]:
        """Issue commands; returns those sent."""
        ...


def record(robot: Robot, commands: Iterable[ArrayLike], hz: float, *, index: int = 0, task: str = "") -> Episode:
    """Drive a connected robot and record one episode.

    Row t of ``commands`` is issued at ``t / hz`` seconds from now, or as soon after as the robot's clock wakes, right
    after reading; ``Episode.time`` holds the true moments, ``Episode.action`` the commands as sent, within limits.

    Args:
        robot: a connected one.
        commands: rows ``(n,)`` in the robot's units, in the order of ``robot.units``; asked for as it goes.
        hz: commands per second.
        index: the episode's number.
        task: what the robot is doing.

    Raises:
        InputError: a rate that is not positive, or a row that does not fit the robot's joints.
        LogError: no commands.
    """
    spoken = _DrivableRobot(robot)
    rows = (_row(row, robot) for row in commands)
    return episodes_of(drive(spoken, rows, hz), robot, [index], task=task)[0]


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


def episodes_of(recording: DriveRecording, robot: Robot, numbers: Iterable[int], *, task: str = "") -> list[Episode]:
    """The sessions of a recording as episodes of a robot, numbered."""
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
    """What the commands of a robot are, by the names of its actions."""
    return "torque" if all(key.endswith(f".{TORQUE}") for key in robot.action_features) else "position"


class _DrivableRobot:
    """A robot of the protocol as something drivable with one session."""

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


def _row(row: ArrayLike, robot: Robot) -> NDArray[np.float64]:
    values = np.asarray(row, dtype=np.float64)
    joints = robot.units.names
    if values.shape != (len(joints),):
        raise InputError(
            f"A row of commands has shape {values.shape}; {robot.origin} has {len(joints)} joints: {', '.join(joints)}."
        )
    return values[None]
