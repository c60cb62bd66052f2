"""What stops an excitation: a joint that does not follow, heat, torque, a robot that no longer answers, a person."""

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
from twinloop.core.extension import raised
from twinloop.hardware.driver import RobotLostError
from twinloop.hardware.excite import ExcitationPlan
from twinloop.hardware.limits import SPEED_SHARE
from twinloop.hardware.protocol import POSITION, Robot
from twinloop.hardware.reports import (
    COMMAND_SLACK,
    joint_values,
    misreported,
    number,
    out_of_range,
    range_length,
    unreachable,
)

Array = NDArray[np.float64]


@runtime_checkable
class DriveHealth(Protocol):
    """What a robot may offer besides the protocol: how its drives are."""

    def get_vitals(self) -> Mapping[str, float]:
        """``<joint>.temperature`` in °C and ``<joint>.torque`` in N·m, of those joints that say so."""
        ...


@dataclass(frozen=True, kw_only=True)
class GuardOptions:
    """When an excitation is stopped.

    Attributes:
        following: rad or m that a joint may lag beyond one and a half times what the plan foresees.
        patience: s that it may do so for; an encoder's single wrong reading is no collision.
        temperature: °C. The STS3215 switches itself off at 70 (its register's default).
        look: s between looks at temperature and torque, which cost time on a servo bus.
    """

    following: float = 0.15
    patience: float = 0.1
    temperature: float = 60.0
    look: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.following < math.inf:
            raise InputError(f"--following {self.following:g} would stop nothing, or all. Give rad or m above 0.")
        if not 0 < self.temperature < math.inf:
            raise InputError(f"--temperature {self.temperature:g} would stop nothing, or all. Give °C above 0.")


class GuardedRobot:
    """A robot that is listened to: see `hardware.protocol.Robot`. ``reason`` says why it has to stop, or ""."""

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
        """Itself, as what it stands for."""
        return cast("Robot", self)

    def get_observation(self) -> dict[str, float]:
        """The robot's; its last one once it no longer answers, or answers with what is no number.

        Raises:
            RobotLostError: there is no last one.
        """
        try:
            reading = self._robot.get_observation()
            self._require_numbers(reading, self._reads, "the reading")
        except BaseException as error:  # whatever a driver raises, what was recorded is kept
            self._lose(error)
            if self._reading is None:
                raise RobotLostError(f"{self._robot.origin} does not answer: {raised(error)}.") from error
            return self._reading
        before, self._reading = self._reading, reading
        self._doubt(before)
        return reading

    def send_action(self, action: Mapping[str, float]) -> dict[str, float]:
        """The robot's; what was asked for once it no longer answers, or cannot have sent what it says."""
        given = dict(action)
        try:
            sent = self._robot.send_action(dict(action))
            self._require_possible(given, self._require_numbers(sent, list(given), "the command"))
        except BaseException as error:  # noqa: BLE001  # as above
            self._lose(error)
            return given
        return sent

    def rest(self) -> Array:
        """Return where to hold, ``(n,)`` in rad or m: at the reading, or at the last command where that cannot be.

        So a joint that was blocked is no longer pushed, and one whose encoder fails is not sent to where it is not.
        """
        return self.positions() if self._sent is None or not self._doubted else self._sent

    def _doubt(self, before: Mapping[str, float] | None) -> None:
        """Note a reading that the joints cannot have reached, or cannot have at all."""
        limits = self._plan.limits
        if self._plan.control == "torque":
            return
        here, length = self.positions(), range_length(limits.low, limits.high)
        j = out_of_range(here, limits.low, limits.high)
        if j is not None:
            self._lose(
                ValueError(
                    f"{self._plan.joints[j]} reads {here[j]:.4g}, and its range is {limits.low[j]:.4g} to "
                    f"{limits.high[j]:.4g}"
                )
            )
        if before is None:
            return
        there = self._si([before[key] for key in self._reads])
        seconds = 2.0 / self._plan.hz  # a period, and the time that a reading takes
        if unreachable(here, there, speed=limits.speed / SPEED_SHARE, seconds=seconds, length=length) is not None:
            self._doubted = True

    def _require_numbers(self, answer: Mapping[str, Any], keys: list[str], what: str) -> Array:
        values = joint_values(answer, keys)
        if not np.isfinite(values).all():
            wrong = keys[int(np.argmin(np.isfinite(values)))]
            raise ValueError(f"{what} of {wrong.rpartition('.')[0]} is not a number")
        return values

    def _require_possible(self, given: Mapping[str, float], sent: Array) -> None:
        """Refuse a driver that says it sent what it was neither given nor may have cut it to."""
        limits, asked = self._plan.limits, np.array(list(given.values()))
        if self._plan.control == "torque":
            possible = [asked, np.zeros_like(asked)]
        else:
            asked, sent = self._si(asked), self._si(sent)
            possible = [asked] if self._reading is None else [asked, self.positions()]
            possible += [] if self._sent is None else [self._sent]
        j = misreported(sent, possible, COMMAND_SLACK * range_length(limits.low, limits.high))
        if j is not None:
            raise ValueError(
                f"the driver reports that it sent {sent[j]:.4g} to {self._plan.joints[j]}; the command was "
                f"{asked[j]:.4g}"
            )

    def positions(self) -> Array:
        """The last readings in rad or m, ``(n,)``."""
        reading = self._reading or self.get_observation()
        return self._si([reading[key] for key in self._reads])

    def _si(self, values: ArrayLike) -> Array:
        return self._robot.units.to_si(values)

    def rows(self, commands: Iterable[Array]) -> Generator[Array]:
        """Commands in the robot's units, within limits and rate, until there is a reason to stop."""
        limits, hz = self._plan.limits, self._plan.hz
        swings = self._plan.control == "torque"
        for frame, row in enumerate(commands):
            if self._sent is not None and not self.reason:
                self._look(self._sent)
            if self.reason and frame:  # the first goes out in any case: a recording has a frame
                return
            before = row if self._sent is None or swings else self._sent
            wanted = before + np.clip(row - before, -limits.speed / hz, limits.speed / hz)
            self._sent = np.clip(wanted, np.minimum(limits.low, before), np.maximum(limits.high, before))
            yield self._sent if swings else self._robot.units.from_si(self._sent)

    def forget(self) -> None:
        """What was commanded before: the next command begins where the robot is."""
        self._sent, self._late = None, np.zeros(len(self._plan.joints))

    def _look(self, sent: Array) -> None:
        if self._plan.control == "position":
            error = np.abs(sent - self.positions())
            allowed = 1.5 * self._plan.following + self._options.following
            self._late = np.where(error > allowed, self._late + 1.0 / self._plan.hz, 0.0)
            worst = int(np.argmax(self._late))
            if self._late[worst] > self._options.patience:
                self.reason = (
                    f"{self._plan.joints[worst]} is {error[worst]:.2f} from its command for {self._late[worst]:.2f} s, "
                    f"{allowed[worst]:.2f} is allowed: blocked, overloaded, or another robot than the plan's"
                )
        now = self._robot.clock.now()
        if isinstance(self._robot, DriveHealth) and now >= self._next_look and not self.reason:
            self._next_look = now + self._options.look
            try:
                vitals = {key: number(value) for key, value in self._robot.get_vitals().items()}
            except BaseException as error:  # noqa: BLE001  # as of readings
                self._lose(error)
                return
            self._look_at(vitals)

    def _look_at(self, vitals: Mapping[str, float]) -> None:
        """Heat, and the root mean square of the torque over the last looks."""
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

    def _lose(self, error: BaseException) -> None:
        self.reason, self.lost = self.reason or f"the robot does not answer: {raised(error)}", True


# SIGHUP, of a terminal that closes or a connection that breaks, is not on Windows.
_STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stoppable(Protocol):
    """Something that ends soon after it is given a reason to."""

    reason: str


@contextmanager
def stopped_by_hand(guarded: Stoppable) -> Generator[None]:
    """Stop at Ctrl-C, at SIGTERM or when the terminal closes, and keep what was recorded.

    The second signal ends the program. A signal that is ignored, as SIGHUP is under ``nohup``, stays ignored.
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
