"""A robot as a policy sees it: observations by LeRobot's names, commands as rows, a time within which it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.extension import raised
from twinloop.hardware.protocol import POSITION, SEEN, Robot
from twinloop.hardware.record import command_kind
from twinloop.release.running_answers import Answerer

Array = NDArray[np.float64]


class RobotLostError(TwinloopError):
    """A robot that did not answer, or answered with what is no observation."""


def offered_contract(robot: Robot, *, hz: float, task: str = "") -> Contract:
    """What a robot offers to a policy at a rate; pictures are what its features say, ``(height, width, 3)`` each."""
    return Contract(
        robot_type=robot.name,
        control_hz=hz,
        action=robot.units,
        state=robot.units,
        command=command_kind(robot),
        environment=tuple(key.removeprefix(SEEN) for key in robot.observation_features if key.startswith(SEEN)),
        cameras={key: (int(shape[0]), int(shape[1])) for key, shape in _cameras(robot).items()},
        task=task,
    )


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One observation: arrays by LeRobot's names without a world's axis, and when it was taken by the robot's clock."""

    arrays: Mapping[str, NDArray[Any]]
    taken: float

    @property
    def reading(self) -> Array:
        """The joints' readings ``(n,)`` in the robot's units."""
        return self.arrays[STATE]


class Spoken:
    """A robot that is spoken to from one thread, and waited for no longer than so many seconds.

    Args:
        robot: see `hardware.protocol.Robot`.
        patience_s: how long an answer may take.
    """

    def __init__(self, robot: Robot, *, patience_s: float) -> None:
        self.robot, self.clock, self._patience = robot, robot.clock, patience_s
        self._thread = Answerer(f"robot {robot.origin}")
        self._keys = list(robot.observation_features)
        self._joints = [f"{joint}.{POSITION}" for joint in robot.units.names]
        self._environment = [key for key in self._keys if key.startswith(SEEN)]
        self._cameras = list(_cameras(robot))
        self._actions = list(robot.action_features)

    def environment_columns(self, contract: Contract) -> list[int]:
        """Which columns of what a tracker sees a policy reads, in its order; its contract fits."""
        names = [key.removeprefix(SEEN) for key in self._environment]
        return [names.index(name) for name in contract.environment]

    def connect(self) -> None:
        """Connect and configure it, in the thread that speaks to it.

        Raises:
            InputError: it is not calibrated.
            RobotLostError: it raised.
        """
        self._tell(self._connect, patience_s=None)
        self.clock = self.robot.clock

    def look(self) -> Seen:
        """What it observes now.

        Raises:
            RobotLostError: it raised, did not answer in time, or said something else.
        """
        taken = self.clock.now()
        answer = self._tell(self.robot.get_observation)
        try:
            arrays: dict[str, NDArray[Any]] = {STATE: np.array([answer[key] for key in self._joints], dtype=np.float64)}
            if self._environment:
                arrays[ENVIRONMENT] = np.array([answer[key] for key in self._environment], dtype=np.float64)
            pictures = {f"{IMAGES}{key}": np.asarray(answer[key]) for key in self._cameras}
        except (KeyError, TypeError, ValueError) as error:
            raise RobotLostError(
                f"{self.robot.origin} gave an observation that cannot be read ({raised(error)})."
            ) from error
        return Seen(arrays=arrays | pictures, taken=taken)

    def send(self, command: Array) -> Array:
        """Issue a command ``(n,)`` in the robot's units; returns the one sent.

        Raises:
            RobotLostError: it raised, did not answer in time, or said something else.
        """
        action = {key: float(value) for key, value in zip(self._actions, command, strict=True)}
        sent = self._tell(lambda: self.robot.send_action(action))
        try:
            values = np.array([sent[key] for key in self._actions], dtype=np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise RobotLostError(f"{self.robot.origin} does not say what it sent ({raised(error)}).") from error
        return values if np.isfinite(values).all() else command

    def disconnect(self) -> None:
        """Disconnect it, as far as it still answers."""
        try:
            self._tell(self.robot.disconnect)
        except RobotLostError:
            return
        finally:
            self._thread.close()

    def _connect(self) -> None:
        self.robot.connect()
        self.robot.configure()
        if not self.robot.is_calibrated:
            raise InputError(
                f"{self.robot.origin} is not calibrated, so its readings mean nothing. Calibrate it first."
            )

    def _tell(self, call: Callable[[], Any], *, patience_s: float | None = 0.0) -> Any:
        """The answer to a call; ``None`` waits for as long as it takes, 0 as long as is usual."""
        patience = np.inf if patience_s is None else self._patience
        began = time.perf_counter()
        if self._thread.busy and self._thread.wait(0.0) is None:
            raise RobotLostError(f"{self.robot.origin} still has not answered.")
        self._thread.ask(call)
        while (answer := self._thread.wait(min(patience, 1.0))) is None:  # Ctrl-C is heard once a second
            if time.perf_counter() - began > patience:
                raise RobotLostError(f"{self.robot.origin} has not answered for {patience:g} s.")
        if isinstance(answer.error, TwinloopError) and patience_s is None:
            raise answer.error
        if answer.error is not None:
            raise RobotLostError(f"{self.robot.origin} does not answer: {raised(answer.error)}.") from answer.error
        return answer.value


def _cameras(robot: Robot) -> dict[str, tuple[int, ...]]:
    """Features that are pictures: LeRobot gives their shape where others have a type."""
    features: Mapping[str, Any] = robot.observation_features
    return {key: shape for key, shape in features.items() if isinstance(shape, tuple) and len(shape) == 3}
