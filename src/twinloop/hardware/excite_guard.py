"""Stop an excitation if tracking error, temperature or torque is too high, the robot is lost, or the user stops it."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.extension import describe_error
from twinloop.core.units import UnitMap
from twinloop.hardware.driver import RobotLostError
from twinloop.hardware.driver_answers import (
    COMMAND_SLACK,
    find_misreported_joint,
    find_out_of_range_joint,
    find_unreachable_joint,
    joint_values,
    range_length,
    to_float,
)
from twinloop.hardware.excite import ExcitationPlan
from twinloop.hardware.limits import SPEED_SHARE
from twinloop.hardware.protocol import POSITION, Robot

Array = NDArray[np.float64]


@runtime_checkable
class DriveHealth(Protocol):
    """Optional interface of a robot that reports temperature and torque of its drives."""

    def get_vitals(self) -> Mapping[str, float]:
        """Return ``<joint>.temperature`` in °C and ``<joint>.torque`` in N·m, for the joints that report them."""
        ...


@dataclass(frozen=True, kw_only=True)
class GuardOptions:
    """Conditions for stopping an excitation.

    Attributes:
        tracking_tolerance: allowed tracking error in rad or m, in addition to 1.5 times
            `ExcitationPlan.tracking_error`.
        patience: allowed duration of a larger error in s; a single wrong encoder reading is not a collision.
        temperature: limit in °C. The STS3215 switches itself off at 70 (its register's default).
        vitals_interval: interval in s of temperature and torque readings, which take time on a servo bus.
    """

    tracking_tolerance: float = 0.15
    patience: float = 0.1
    temperature: float = 60.0
    vitals_interval: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.tracking_tolerance < math.inf:
            raise InputError(f"--max-lag {self.tracking_tolerance:g} is not a valid limit. Give rad or m above 0.")
        if not 0 < self.temperature < math.inf:
            raise InputError(f"--temperature {self.temperature:g} is not a valid limit. Give °C above 0.")


class GuardedRobot:
    """Robot whose readings and commands are checked during an excitation; see `hardware.protocol.Robot`.

    Args:
        robot: the robot.
        plan: excitation plan, which has the limits of position, speed and torque and the expected tracking error.
        options: allowed temperature, and allowed tracking error in addition to the expected one.

    Attributes:
        reason: why the excitation must stop, or "".
        lost: whether the robot no longer answers, or gave an impossible answer.
    """

    def __init__(self, robot: Robot, plan: ExcitationPlan, options: GuardOptions) -> None:
        self._robot, self._plan, self._options = robot, plan, options
        self._reading: dict[str, float] | None = None
        self._sent: Array | None = None
        self._late = np.zeros(len(plan.joints))
        self._next_look = -np.inf
        self._squares: list[Array] = []
        self._doubted = False
        self._reads = [f"{joint}.{POSITION}" for joint in plan.joints]
        self.reason, self.lost = "", False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._robot, name)

    @property
    def robot(self) -> Robot:
        """This object, with the type `Robot` for type checkers."""
        return cast("Robot", self)

    def get_observation(self) -> dict[str, float]:
        """Return the robot's reading, or its last one if it no longer answers or a value is not a number.

        Raises:
            RobotLostError: If there is no last reading.
        """
        try:
            reading = self._robot.get_observation()
            self._require_numbers(reading, self._reads, "the reading")
        except BaseException as error:  # any error of a driver: keep the recorded data
            self._handle_loss(error)
            if self._reading is None:
                raise RobotLostError(f"{self._robot.origin} does not answer: {describe_error(error)}.") from error
            return self._reading
        before, self._reading = self._reading, reading
        self._check_reading(before)
        return reading

    def send_action(self, action: Mapping[str, float]) -> dict[str, float]:
        """Send an action; return the action that the robot reports as sent.

        If the robot no longer answers or reports an impossible action, return the requested action and set ``reason``.
        """
        given = dict(action)
        try:
            sent = self._robot.send_action(dict(action))
            self._require_possible(given, self._require_numbers(sent, list(given), "the command"))
        except BaseException as error:  # noqa: BLE001  # as above
            self._handle_loss(error)
            return given
        return sent

    def rest_position(self) -> Array:
        """Return the position to hold after a stop, ``(n,)`` in rad or m.

        Normally it is the last reading, so that a blocked joint is no longer pushed towards its last command. If a
        reading was impossible, it is the last command, so that a joint with a failed encoder is not sent to a wrong
        position.
        """
        return self.positions() if self._sent is None or not self._doubted else self._sent

    def _check_reading(self, before: Mapping[str, float] | None) -> None:
        """Detect an impossible reading: far outside a joint's range, or too far from the reading ``before``.

        No error is raised. After a reading far outside (by more than a quarter of the range), ``reason`` and ``lost``
        are set, which stops the excitation. After one too far from ``before``, the excitation goes on, but
        `rest_position` returns the last command. With velocity and torque control nothing is checked.
        """
        limits = self._plan.limits
        if self._plan.control != "position":
            return
        here, length = self.positions(), range_length(limits.low, limits.high)
        j = find_out_of_range_joint(here, limits.low, limits.high)
        if j is not None:
            self._handle_loss(
                ValueError(
                    f"{self._plan.joints[j]} reads {here[j]:.4g}, but its range is {limits.low[j]:.4g} to "
                    f"{limits.high[j]:.4g}"
                )
            )
        if before is None:
            return
        there = self._to_si([before[key] for key in self._reads])
        seconds = 2.0 / self._plan.hz  # one period, plus the duration of a reading
        if (
            find_unreachable_joint(here, there, speed=limits.speed / SPEED_SHARE, seconds=seconds, length=length)
            is not None
        ):
            self._doubted = True

    def _require_numbers(self, answer: Mapping[str, Any], keys: list[str], what: str) -> Array:
        values = joint_values(answer, keys)
        if not np.isfinite(values).all():
            wrong = keys[int(np.argmin(np.isfinite(values)))]
            raise ValueError(f"{what} of {wrong.rpartition('.')[0]} is not a number")
        return values

    def _require_possible(self, given: Mapping[str, float], sent: Array) -> None:
        """Raise an error if the driver reports a sent command that cannot result from the command ``given``.

        A driver's own limits may shorten a command; see `find_misreported_joint`.
        """
        limits, requested = self._plan.limits, np.array(list(given.values()))
        if self._plan.control != "position":
            requested, sent = (self._command_units.to_si(values) for values in (requested, sent))
            possible = [requested, np.zeros_like(requested)]
        else:
            requested, sent = self._to_si(requested), self._to_si(sent)
            possible = [requested] if self._reading is None else [requested, self.positions()]
            possible += [] if self._sent is None else [self._sent]
        j = find_misreported_joint(sent, possible, COMMAND_SLACK * range_length(limits.low, limits.high))
        if j is not None:
            raise ValueError(
                f"the driver reports that it sent {sent[j]:.4g} to {self._plan.joints[j]}; the command was "
                f"{requested[j]:.4g}"
            )

    def positions(self) -> Array:
        """Return the last readings in rad or m, ``(n,)``."""
        reading = self._reading or self.get_observation()
        return self._to_si([reading[key] for key in self._reads])

    @property
    def _command_units(self) -> UnitMap:
        return self._robot.units.of_commands(self._plan.control)

    def _to_si(self, values: ArrayLike) -> Array:
        return self._robot.units.to_si(values)

    def guarded_commands(self, commands: Iterable[Array]) -> Generator[Array]:
        """Yield commands within position and speed limits until there is a reason to stop.

        Args:
            commands: commands ``(n,)`` in SI units, one per control step.

        Yields:
            Commands ``(n,)`` in the robot's units.
        """
        limits, hz = self._plan.limits, self._plan.hz
        follows = self._plan.control == "position"
        for frame, row in enumerate(commands):
            if self._sent is not None and not self.reason:
                self._read_vitals(self._sent)
            if self.reason and frame:  # always send the first, because a recording needs a frame
                return
            before = self._sent if follows and self._sent is not None else row
            wanted = before + np.clip(row - before, -limits.speed / hz, limits.speed / hz)
            self._sent = np.clip(wanted, np.minimum(limits.low, before), np.maximum(limits.high, before))
            yield self._command_units.from_si(self._sent)

    def clear_last_command(self) -> None:
        """Clear the last command, so that the next one starts at the robot's position."""
        self._sent, self._late = None, np.zeros(len(self._plan.joints))

    def _read_vitals(self, sent: Array) -> None:
        if self._plan.control == "position":
            error = np.abs(sent - self.positions())
            allowed = 1.5 * self._plan.tracking_error + self._options.tracking_tolerance
            self._late = np.where(error > allowed, self._late + 1.0 / self._plan.hz, 0.0)
            worst = int(np.argmax(self._late))
            if self._late[worst] > self._options.patience:
                self.reason = (
                    f"{self._plan.joints[worst]} is {error[worst]:.2f} from its command for {self._late[worst]:.2f} s, "
                    f"{allowed[worst]:.2f} is allowed: blocked, overloaded, or another robot than the plan's"
                )
        now = self._robot.clock.now()
        if isinstance(self._robot, DriveHealth) and now >= self._next_look and not self.reason:
            self._next_look = now + self._options.vitals_interval
            try:
                vitals = {key: to_float(value) for key, value in self._robot.get_vitals().items()}
            except BaseException as error:  # noqa: BLE001  # any error of a driver, as for readings
                self._handle_loss(error)
                return
            self._check_vitals(vitals)

    def _check_vitals(self, vitals: Mapping[str, float]) -> None:
        """Set ``reason`` if a temperature, or the root mean square of the last ten torques, is above its limit."""
        for joint in self._plan.joints:
            heat = vitals.get(f"{joint}.temperature", -np.inf)
            if heat > self._options.temperature:
                self.reason = f"{joint} is {heat:.0f} °C hot, {self._options.temperature:.0f} °C are allowed"
                return
        torque = np.array([vitals.get(f"{joint}.torque", 0.0) for joint in self._plan.joints])
        self._squares = [*self._squares[-9:], torque**2]
        effort = np.sqrt(np.mean(self._squares, axis=0))
        over = np.flatnonzero(effort > self._plan.limits.torque)
        if len(self._squares) > 1 and len(over):
            j = int(over[0])
            self.reason = (
                f"{self._plan.joints[j]} has needed {effort[j]:.2f} N·m (root mean square), "
                f"{self._plan.limits.torque[j]:.2f} are allowed"
            )

    def _handle_loss(self, error: BaseException) -> None:
        self.reason, self.lost = self.reason or f"the robot does not answer: {describe_error(error)}", True


# Windows has no SIGHUP, the signal for a closed terminal or a lost connection.
_STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stoppable(Protocol):
    """Object that stops soon after its ``reason`` is set."""

    reason: str


@contextmanager
def stop_on_signals(guarded: Stoppable) -> Generator[None]:
    """Return a context manager that stops ``guarded`` at Ctrl-C, at SIGTERM or when the terminal closes.

    The recorded data are kept. The second signal ends the program. A signal that is ignored, such as SIGHUP under
    ``nohup``, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {one: signal.getsignal(one) for one in _STOPPING}
    before = {one: handler for one, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}

    def restore() -> None:
        for one, handler in before.items():
            signal.signal(one, handler)

    def stop(*_: object) -> None:
        guarded.reason = guarded.reason or "stopped by hand"
        restore()

    for one in before:
        signal.signal(one, stop)
    try:
        yield
    finally:
        restore()
