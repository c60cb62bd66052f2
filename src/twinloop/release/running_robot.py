"""Show a robot to a policy by LeRobot's names, and describe the steps and events of an episode."""

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
    """What a robot offers to a policy at a rate; pictures are what its features say, ``(height, width, 3)`` each."""
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
    """One observation: arrays by LeRobot's names without a world's axis, and when it was taken by the robot's clock."""

    arrays: Mapping[str, NDArray[Any]]
    taken: float

    @property
    def reading(self) -> Array:
        """The joints' readings ``(n,)`` in the robot's units."""
        return self.arrays[STATE]

    def shown(self, columns: Sequence[int]) -> dict[str, NDArray[Any]]:
        """Return copies of the arrays for a policy, which may write into them.

        Args:
            columns: which columns of what a tracker sees the policy reads, in its order.
        """
        arrays = {key: np.array(values) for key, values in self.arrays.items()}
        if ENVIRONMENT in arrays:
            arrays[ENVIRONMENT] = arrays[ENVIRONMENT][list(columns)]
        return arrays


class TimedRobot:
    """A robot that is spoken to from one thread, and waited for no longer than so many seconds.

    Args:
        robot: see `hardware.protocol.Robot`.
        patience_s: how long an answer may take.

    Raises:
        InputError: see `hardware.driver.RobotDriver`.
    """

    def __init__(self, robot: Robot, *, patience_s: float) -> None:
        self.robot, self.driver = robot, RobotDriver(robot, patience_s=patience_s)
        self._description = self.driver.description
        self._actions = list(self._description.action_features)

    @property
    def clock(self) -> CheckedClock:
        """The time the robot lives in, as long as its driver keeps it."""
        return self.driver.clock

    def environment_columns(self, contract: Contract) -> list[int]:
        """Which columns of what a tracker sees a policy reads, in its order; its contract fits."""
        names = [key.removeprefix(SEEN) for key in self._description.tracked_keys]
        return [names.index(name) for name in contract.environment]

    def connect(self) -> None:
        """Connect and configure it, in the thread that speaks to it.

        Raises:
            InputError: it is not calibrated, or not the robot that it was before it was connected.
            RobotLostError: it raised.
        """
        self.driver.connect()

    def look(self) -> RobotObservation:
        """What it observes now.

        Raises:
            RobotLostError: it raised, did not answer in time, or said something else.
        """
        taken, found = self.clock.now(), self._description
        answer = self.driver.get_observation()
        arrays: dict[str, NDArray[Any]] = {STATE: np.array([answer[key] for key in found.joint_keys])}
        if found.tracked_keys:
            arrays[ENVIRONMENT] = np.array([answer[key] for key in found.tracked_keys])
        return RobotObservation(arrays=arrays | {f"{IMAGES}{key}": answer[key] for key in found.cameras}, taken=taken)

    def send(self, command: Array) -> Array:
        """Issue a command ``(n,)`` in the robot's units; returns the one that the driver says it sent.

        Raises:
            RobotLostError: it raised, did not answer in time, or said something else.
        """
        action = {key: float(value) for key, value in zip(self._actions, command, strict=True)}
        return np.array(list(self.driver.send_action(action).values()))

    def judged(self, judge: Callable[[], Any]) -> bool:
        """Return what the robot's own judge says of the task.

        Raises:
            RobotLostError: it raised, or did not answer in time.
        """
        return bool(self.driver.call(judge))

    def reconnect(self) -> None:
        """Disconnect it and connect it again; raises as `connect`."""
        self.driver.disconnect()
        self.driver.connect()

    def disconnect(self) -> str:
        """Disconnect it for good, as far as it still answers; returns why it is not disconnected, or ""."""
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
    """Something that happened at a frame: what kind, and a sentence."""

    frame: int
    time_s: float
    kind: EventKind
    message: str


@dataclass(frozen=True, kw_only=True)
class ControlStep:
    """One control step. ``wanted`` is NaN where no command came; ``latency_s`` is how long the policy took for it.

    ``age_s`` is how old the observation behind the command was when it was sent; ``scores`` are a monitor's. ``sent``
    says whether the robot took the command; where it did not, ``issued`` is the last one that it took.
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
    """What a watcher says of a step: its scores, an alarm that ends the episode, or "", and ``notes`` that do not."""

    scores: Mapping[str, float] = field(default_factory=dict)
    alarm: str = ""
    notes: tuple[str, ...] = ()


class Watcher(Protocol):
    """Something that looks on, step by step: a monitor, or a policy in shadow."""

    def begin(self, episode: int) -> None:
        """An episode begins."""
        ...

    def look(self, seen: RobotObservation, command: Array) -> WatcherReport:
        """What it makes of an observation and of the command that was sent after it ``(n,)``."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How an episode is run.

    Attributes:
        steps: control steps at most.
        patience_s: how long a policy's answer is waited for in seconds of the wall; None is the envelope's watchdog.
            A robot whose time stands still while one thinks may be given more.
        judge: says whether the task is done now; None where nobody can.
        stop_on_success: end there.
        interrupted: says whether a person wants it to stop.
    """

    steps: int
    patience_s: float | None = None
    judge: Callable[[], bool] | None = None
    stop_on_success: bool = False
    interrupted: Callable[[], bool] = lambda: False


@dataclass(kw_only=True)
class EpisodeRun:
    """What came of an episode: its steps, its events, and why it ended early, or "".

    ``trip`` says what kind of end that was: ``stopped`` by the envelope, an ``alarm``, ``policy`` or ``robot`` lost,
    or ``hand`` where a person stopped it. ``success`` is the judge's, None where there was none. ``shadow`` are the
    figures of a policy in shadow, if one looked on.
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
    def unsent(self) -> int:
        """Steps whose command the robot did not take."""
        return sum(not step.sent for step in self.steps)

    @property
    def rulings(self) -> dict[str, int]:
        """Commands that the robot took, by what the envelope made of them."""
        return dict(Counter(step.ruling.kind for step in self.steps if step.sent))

    @property
    def violations(self) -> int:
        """Steps at which the envelope had to hold or stop; a command that was only cut to the limits breaks none."""
        return sum(step.ruling.kind in ("held", "stopped") for step in self.steps)
