"""Connect a robot to a policy with LeRobot's names, and define the record of an episode: steps, events and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.dataset.media.images import fit_observation
from twinloop.hardware.driver import CheckedClock, RobotDescription, RobotDriver, RobotLostError
from twinloop.hardware.protocol import TRACKED_PREFIX, Robot
from twinloop.hardware.record import command_kind
from twinloop.release.envelope import EnvelopeDecision

Array = NDArray[np.float64]


def offered_contract(robot: Robot, *, hz: float, task: str = "") -> Contract:
    """Return the contract that a robot offers to a policy: joints with units, cameras, tracked objects and rate.

    Args:
        robot: robot whose features are read; those of cameras have the shape ``(height, width, 3)``.
        hz: control steps per second.
        task: name of the task.
    """
    offered = RobotDescription.read(robot)
    return Contract(
        robot_type=offered.name,
        control_hz=hz,
        action=offered.units,
        state=offered.units,
        command=command_kind(robot),
        environment=tuple(key.removeprefix(TRACKED_PREFIX) for key in offered.tracked_keys),
        cameras={key: (int(shape[0]), int(shape[1])) for key, shape in offered.cameras.items()},
        task=task,
    )


@dataclass(frozen=True, kw_only=True)
class RobotObservation:
    """Observation of one robot at one time.

    Attributes:
        arrays: arrays with LeRobot's names, for one robot (no batch axis).
        time_s: time of the observation by the robot's clock, in s.
    """

    arrays: Mapping[str, NDArray[Any]]
    time_s: float

    @property
    def reading(self) -> Array:
        """Joint positions of n joints, shape ``(n,)``, in the robot's units."""
        return self.arrays[STATE]

    def copy_for_policy(self, contract: Contract, columns: Sequence[int]) -> dict[str, NDArray[Any]]:
        """Return copies of the arrays that a policy reads, which may change them. Larger images are reduced.

        Args:
            contract: contract of the policy.
            columns: indices of the tracker's columns that it reads, in its order.
        """
        rows = fit_observation({key: values[None] for key, values in self.arrays.items()}, contract)
        arrays = {key: np.array(values[0]) for key, values in rows.items()}
        if ENVIRONMENT in arrays:
            arrays[ENVIRONMENT] = arrays[ENVIRONMENT][list(columns)]
        return arrays


class TimedRobot:
    """Robot whose methods are called from one thread, with a time limit for each answer.

    Args:
        robot: robot with LeRobot's interface, see `hardware.protocol.Robot`.
        patience_s: longest time in s to wait for an answer.

    Raises:
        InputError: If the description of the robot is invalid; see `hardware.driver.RobotDriver`.
    """

    def __init__(self, robot: Robot, *, patience_s: float) -> None:
        self.robot, self.driver = robot, RobotDriver(robot, patience_s=patience_s)
        self._description = self.driver.description
        self._actions = list(self._description.action_features)

    @property
    def clock(self) -> CheckedClock:
        """Clock of the robot's driver, which is checked for errors."""
        return self.driver.clock

    def find_environment_columns(self, contract: Contract) -> list[int]:
        """Return the indices of the tracker's columns that a policy reads, in the policy's order.

        Args:
            contract: contract of the policy; it must fit the robot.
        """
        names = [key.removeprefix(TRACKED_PREFIX) for key in self._description.tracked_keys]
        return [names.index(name) for name in contract.environment]

    def connect(self) -> None:
        """Connect and configure the robot, in the thread in which its methods are called.

        Raises:
            InputError: If the robot is not calibrated, or its description changed when it was connected.
            RobotLostError: If the robot raised an error.
        """
        self.driver.connect()

    def read_observation(self) -> RobotObservation:
        """Return the current observation.

        Raises:
            RobotLostError: If the robot raised an error, did not answer in time, or gave an invalid answer.
        """
        time_s, found = self.clock.now(), self._description
        answer = self.driver.get_observation()
        arrays: dict[str, NDArray[Any]] = {STATE: np.array([answer[key] for key in found.joint_keys])}
        if found.tracked_keys:
            arrays[ENVIRONMENT] = np.array([answer[key] for key in found.tracked_keys])
        return RobotObservation(arrays=arrays | {f"{IMAGES}{key}": answer[key] for key in found.cameras}, time_s=time_s)

    def send(self, command: Array) -> Array:
        """Send a command to the robot, and return the command that the driver reports as sent.

        Args:
            command: command for n joints, shape ``(n,)``, in the robot's units.

        Raises:
            RobotLostError: If the robot raised an error, did not answer in time, or gave an invalid answer.
        """
        action = {key: float(value) for key, value in zip(self._actions, command, strict=True)}
        return np.array(list(self.driver.send_action(action).values()))

    def judge_success(self, judge: Callable[[], Any]) -> bool | None:
        """Return whether the task is done, by calling ``judge`` in the robot's thread; None if it does not know.

        Raises:
            RobotLostError: If the robot raised an error or did not answer in time.
        """
        said = self.driver.call(judge)
        return None if said is None else bool(said)

    def reconnect(self) -> None:
        """Disconnect the robot and connect it again.

        Raises:
            InputError: If the robot is not calibrated, or its description changed when it was connected.
            RobotLostError: If the robot raised an error.
        """
        self.driver.disconnect()
        self.driver.connect()

    def disconnect(self) -> str:
        """Disconnect the robot and close its driver; return the error message if this fails, else ""."""
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
    """Event of an episode, such as a limited command or a late answer.

    Attributes:
        frame: number of the control step, from 0.
        time_s: time in s since the start of the episode.
        kind: what happened. The envelope limited a command (``limited``), held the robot in position (``held``) or
            ended the episode (``stopped``). An answer came too late and was not used (``late``), or the control loop is
            behind its clock (``slow``). A watcher gave an ``alarm``, the ``policy`` or the ``robot`` failed, or a
            person stopped the episode (``hand``).
        message: description for a person.
    """

    frame: int
    time_s: float
    kind: EventKind
    message: str


@dataclass(frozen=True, kw_only=True)
class ControlStep:
    """Record of one control step; commands have the shape ``(n,)`` for n joints, in the robot's units.

    Attributes:
        time_s: time in s since the start of the episode.
        observation: observation of the step.
        requested: command that the policy requested; NaN if no command arrived.
        issued: command that the robot follows after the step; if ``sent`` is false, the last command that it accepted.
        decision: decision of the envelope.
        latency_s: time in s that the policy took; NaN if it did not answer.
        age_s: age of the observation in s when the policy's answer arrived.
        scores: scores of the watchers by name.
        success: whether the task was done; None if unknown.
        sent: whether the robot accepted the command of this step.
    """

    time_s: float
    observation: RobotObservation
    requested: Array
    issued: Array
    decision: EnvelopeDecision
    latency_s: float
    age_s: float
    scores: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None
    sent: bool = True


@dataclass(frozen=True, kw_only=True)
class WatcherReport:
    """Report of a watcher about one control step.

    Attributes:
        scores: scores by name.
        alarm: message of an alarm that ends the episode, or "".
        notes: messages to record as events.
    """

    scores: Mapping[str, float] = field(default_factory=dict)
    alarm: str = ""
    notes: tuple[str, ...] = ()


class Watcher(Protocol):
    """Observer of a run that is called at each control step: a monitor or a policy in shadow."""

    def begin(self, episode: int) -> None:
        """Start the episode with this number."""
        ...

    def watch_step(self, observation: RobotObservation, command: Array) -> WatcherReport:
        """Return the report about one control step.

        Args:
            observation: observation of the step.
            command: command that was sent after the observation, shape ``(n,)`` for n joints, in the robot's units.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of an episode.

    Attributes:
        steps: largest number of control steps.
        patience_s: longest time in s of real time to wait for a policy's answer; None for the watchdog time of the
            safety envelope (`Envelope.watchdog_s`). It may be longer for a simulated robot whose time stops while the
            policy computes.
        judge: function that returns whether the task is done now; None if this cannot be determined.
        stop_on_success: whether to end the episode at success.
        interrupted: function that returns whether a person requests to stop the episode.
    """

    steps: int
    patience_s: float | None = None
    judge: Callable[[], bool] | None = None
    stop_on_success: bool = False
    interrupted: Callable[[], bool] = lambda: False


@dataclass(kw_only=True)
class EpisodeRun:
    """Record of an episode of a running robot.

    Attributes:
        episode: number of the episode.
        policy: name of the policy.
        steps: control steps.
        events: events in the order of time.
        end_kind: kind of an early end: ``stopped`` by the envelope, ``alarm`` of a watcher, failure of the ``policy``
            or the ``robot``, or ``hand`` if a person stopped the episode; None for a regular end.
        reason: reason of an early end, or "".
        success: whether the task was done at the last judged step; None if this was not determined.
        shadow: metrics of the policy in shadow, see `ShadowLog.summary`; None if there was none.
    """

    episode: int
    policy: str
    steps: list[ControlStep] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    end_kind: EventKind | None = None
    reason: str = ""
    success: bool | None = None
    shadow: Mapping[str, Any] | None = None

    @property
    def unsent_count(self) -> int:
        """Number of control steps whose command the robot did not accept."""
        return sum(not step.sent for step in self.steps)

    @property
    def decision_counts(self) -> dict[str, int]:
        """Number of commands that the robot accepted, by kind of the safety envelope's decision (`EnvelopeDecision`).

        For example ``passed`` or ``limited``.
        """
        return dict(Counter(step.decision.kind for step in self.steps if step.sent))

    @property
    def violations(self) -> int:
        """Number of control steps at which the envelope held or stopped the robot; limited commands do not count."""
        return sum(step.decision.kind in ("held", "stopped") for step in self.steps)
