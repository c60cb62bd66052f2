"""Connection of a robot to a policy with LeRobot's names, and records of the steps and events of an episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.hardware.driver import CheckedClock, RobotDescription, RobotDriver, RobotLostError
from twinloop.hardware.protocol import SEEN, Robot
from twinloop.hardware.record import command_kind
from twinloop.release.envelope import EnvelopeDecision

Array = NDArray[np.float64]


def offered_contract(robot: Robot, *, hz: float, task: str = "") -> Contract:
    """Return the contract that a robot offers to a policy at a rate in Hz.

    The images have the shapes of the robot's features, ``(height, width, 3)`` each.
    """
    offered = RobotDescription.read(robot)
    return Contract(
        robot_type=offered.name,
        control_hz=hz,
        action=offered.units,
        state=offered.units,
        command=command_kind(robot),
        environment=tuple(key.removeprefix(SEEN) for key in offered.tracked_keys),
        cameras={key: (int(shape[0]), int(shape[1])) for key, shape in offered.cameras.items()},
        task=task,
    )


@dataclass(frozen=True, kw_only=True)
class RobotObservation:
    """One observation: arrays with LeRobot's names and no world axis, and its time by the robot's clock in s."""

    arrays: Mapping[str, NDArray[Any]]
    taken: float

    @property
    def reading(self) -> Array:
        """Joint readings ``(n,)`` in the robot's units."""
        return self.arrays[STATE]

    def copy_for_policy(self, columns: Sequence[int]) -> dict[str, NDArray[Any]]:
        """Return copies of the arrays, so that a policy may write into them.

        Args:
            columns: columns of the tracker's observation that the policy reads, in the policy's order.
        """
        arrays = {key: np.array(values) for key, values in self.arrays.items()}
        if ENVIRONMENT in arrays:
            arrays[ENVIRONMENT] = arrays[ENVIRONMENT][list(columns)]
        return arrays


class TimedRobot:
    """A robot that is called from one thread, with a time limit for each answer.

    Args:
        robot: see `hardware.protocol.Robot`.
        patience_s: longest time to wait for an answer, in s.

    Raises:
        InputError: see `hardware.driver.RobotDriver`.
    """

    def __init__(self, robot: Robot, *, patience_s: float) -> None:
        self.robot, self.driver = robot, RobotDriver(robot, patience_s=patience_s)
        self._description = self.driver.description
        self._actions = list(self._description.action_features)

    @property
    def clock(self) -> CheckedClock:
        """Checked clock of the robot's driver."""
        return self.driver.clock

    def find_environment_columns(self, contract: Contract) -> list[int]:
        """Return the tracker columns that a policy reads, in the policy's order; its contract must fit the robot."""
        names = [key.removeprefix(SEEN) for key in self._description.tracked_keys]
        return [names.index(name) for name in contract.environment]

    def connect(self) -> None:
        """Connect and configure the robot, in the thread that calls it.

        Raises:
            InputError: it is not calibrated, or its description changed when it was connected.
            RobotLostError: it raised an error.
        """
        self.driver.connect()

    def read_observation(self) -> RobotObservation:
        """Return the current observation.

        Raises:
            RobotLostError: the robot raised an error, did not answer in time, or gave an invalid answer.
        """
        taken, found = self.clock.now(), self._description
        answer = self.driver.get_observation()
        arrays: dict[str, NDArray[Any]] = {STATE: np.array([answer[key] for key in found.joint_keys])}
        if found.tracked_keys:
            arrays[ENVIRONMENT] = np.array([answer[key] for key in found.tracked_keys])
        return RobotObservation(arrays=arrays | {f"{IMAGES}{key}": answer[key] for key in found.cameras}, taken=taken)

    def send(self, command: Array) -> Array:
        """Issue a command ``(n,)`` in the robot's units; return the command that the driver reports as sent.

        Raises:
            RobotLostError: the robot raised an error, did not answer in time, or gave an invalid answer.
        """
        action = {key: float(value) for key, value in zip(self._actions, command, strict=True)}
        return np.array(list(self.driver.send_action(action).values()))

    def judge_success(self, judge: Callable[[], Any]) -> bool:
        """Return whether ``judge`` reports the task as done; it is called in the robot's thread.

        Raises:
            RobotLostError: the robot raised an error or did not answer in time.
        """
        return bool(self.driver.call(judge))

    def reconnect(self) -> None:
        """Disconnect the robot and connect it again; raises the errors of `connect`."""
        self.driver.disconnect()
        self.driver.connect()

    def disconnect(self) -> str:
        """Disconnect the robot and close its driver; return the reason of a failure, or ""."""
        try:
            self.driver.disconnect()
        except RobotLostError as error:
            return str(error)
        finally:
            self.driver.close()
        return ""


EventKind = Literal["held", "limited", "late", "stopped", "alarm", "policy", "robot", "slow", "hand"]


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """Event at one frame: its kind and a message."""

    frame: int
    time_s: float
    kind: EventKind
    message: str


@dataclass(frozen=True, kw_only=True)
class ControlStep:
    """One control step: the requested command ``wanted`` and the command in force ``issued``, ``(n,)`` each.

    ``wanted`` is NaN if no command arrived. ``latency_s`` is the time that the policy took for it, ``age_s`` the age of
    its observation when the answer arrived. ``scores`` come from watchers. ``sent`` is true if the robot accepted the
    command; otherwise ``issued`` is the last command that it accepted.
    """

    time_s: float
    seen: RobotObservation
    wanted: Array
    issued: Array
    ruling: EnvelopeDecision
    latency_s: float
    age_s: float
    scores: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None
    sent: bool = True


@dataclass(frozen=True, kw_only=True)
class WatcherReport:
    """Report of a watcher for one step: scores, an ``alarm`` that ends the episode or "", and ``notes`` to record."""

    scores: Mapping[str, float] = field(default_factory=dict)
    alarm: str = ""
    notes: tuple[str, ...] = ()


class Watcher(Protocol):
    """Observer of a run, step by step: a monitor or a policy in shadow."""

    def begin(self, episode: int) -> None:
        """Start a new episode."""
        ...

    def watch_step(self, seen: RobotObservation, command: Array) -> WatcherReport:
        """Return the report for an observation and the command ``(n,)`` that was sent after it."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of an episode.

    Attributes:
        steps: largest number of control steps.
        patience_s: longest time to wait for a policy's answer, in s of real time; None means the envelope's watchdog.
            It may be longer for a robot whose time stops while the policy computes.
        judge: returns whether the task is done now; None if this cannot be determined.
        stop_on_success: whether to end the episode at success.
        interrupted: returns whether a person wants to stop the episode.
    """

    steps: int
    patience_s: float | None = None
    judge: Callable[[], bool] | None = None
    stop_on_success: bool = False
    interrupted: Callable[[], bool] = lambda: False


@dataclass(kw_only=True)
class EpisodeRun:
    """Result of an episode: its steps, its events, and the reason why it ended early, or "".

    ``trip`` is the kind of an early end: ``stopped`` by the envelope, ``alarm``, loss of ``policy`` or ``robot``, or
    ``hand`` if a person stopped it. ``success`` comes from the judge; None without one. ``shadow`` are the metrics of a
    policy in shadow, if there was one.
    """

    episode: int
    policy: str
    steps: list[ControlStep] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    trip: EventKind | None = None
    reason: str = ""
    success: bool | None = None
    shadow: Mapping[str, Any] | None = None

    @property
    def unsent_count(self) -> int:
        """Number of steps whose command the robot did not accept."""
        return sum(not step.sent for step in self.steps)

    @property
    def ruling_counts(self) -> dict[str, int]:
        """Number of accepted commands for each kind of envelope decision."""
        return dict(Counter(step.ruling.kind for step in self.steps if step.sent))

    @property
    def violations(self) -> int:
        """Number of steps at which the envelope had to hold or stop; commands that were only limited do not count."""
        return sum(step.ruling.kind in ("held", "stopped") for step in self.steps)
