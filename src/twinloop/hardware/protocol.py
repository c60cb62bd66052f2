"""What every robot offers: LeRobot's words, and the three things that a log needs besides them.

`check_robot` tells whoever writes a robot whether it keeps the protocol.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from twinloop.core.errors import CheckFailedError, InputError, TwinloopError
from twinloop.core.records import Source
from twinloop.core.units import UnitMap

POSITION, TORQUE = "pos", "torque"
SEEN = "environment."  # before the name of what a tracker of the scene sees


class NotConnectedError(InputError):
    """A robot was spoken to before `connect` or after `disconnect`."""


class Clock(Protocol):
    """The time a robot lives in: a real one sleeps through it, a virtual one is moved along by it."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        ...

    def wait_until(self, moment: float) -> None:
        """Return at ``moment`` or, as clocks do, a little later; at once where it has passed."""
        ...


class WallClock:
    """The computer's own clock."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Sleep until ``moment``."""
        time.sleep(max(0.0, moment - self.now()))


@runtime_checkable
class Robot(Protocol):
    """A robot as LeRobot speaks to one (lerobot 0.6.1, ``robots/robot.py``), plus ``clock``, ``units``, ``source``.

    Observations and actions are dictionaries of floats: ``<joint>.pos`` in the units that ``units`` maps to rad or m,
    ``<joint>.torque`` in N·m for the actions of a torque-controlled robot. Where a tracker watches the scene,
    observations go on with ``environment.NAME``: positions in m, headings as cosine and sine.
    """

    name: str

    @property
    def observation_features(self) -> Mapping[str, type]:
        """Keys and types of an observation: joints in the order of ``units``, then what a tracker sees."""
        ...

    @property
    def action_features(self) -> Mapping[str, type]:
        """Keys and types of an action, in the order of ``units``."""
        ...

    @property
    def is_connected(self) -> bool:
        """Whether it can be spoken to."""
        ...

    def connect(self, calibrate: bool = True) -> None:
        """Open the connection; calibrate where that is needed and asked for."""
        ...

    @property
    def is_calibrated(self) -> bool:
        """Whether readings mean what ``units`` says."""
        ...

    def calibrate(self) -> None:
        """Calibrate."""
        ...

    def configure(self) -> None:
        """Write the settings that the robot needs."""
        ...

    def get_observation(self) -> dict[str, float]:
        """What the robot reads now."""
        ...

    def send_action(self, action: Mapping[str, float]) -> dict[str, float]:
        """Issue a command; returns the one sent, which is within limits."""
        ...

    def disconnect(self) -> None:
        """Close the connection."""
        ...

    @property
    def clock(self) -> Clock:
        """The time the robot lives in."""
        ...

    @property
    def units(self) -> UnitMap:
        """The unit of every joint, in column order."""
        ...

    @property
    def source(self) -> Source:
        """``real``, or ``sim`` for a robot that is computed."""
        ...

    @property
    def origin(self) -> str:
        """The name by which logs say where they come from, such as ``virtual:so101_tabletop?seed=3``."""
        ...


_SUFFIXES = (f".{POSITION}", f".{TORQUE}")
_HOLD_S = 0.2
_ROUND_OFF_S = 1e-6
_NEAR = 0.1  # rad or m; an arm at rest may read to be a few degrees beyond its own limits


def check_robot(robot: Robot) -> None:
    """Connect a robot, let it hold still for a moment, disconnect it, and look whether it keeps the protocol's laws.

    The robot is told to stay where it reads to be (zero torque, where it takes torques), so a real one moves by no more
    than its sag. It must be disconnected before, and is so afterwards, whatever happens.

    Raises:
        CheckFailedError: a law that does not hold, by name.
    """
    missing = _missing(robot)
    _require(not missing, f"{type(robot).__name__} lacks {', '.join(missing)}")
    _require(not robot.is_connected, "it is connected; hand it over disconnected")
    _check_features(robot)
    _check_silence(robot)
    robot.connect()
    try:
        _require(robot.is_connected, "connect() returns, but is_connected is False")
        _require(robot.is_calibrated, "it is not calibrated after connect(); readings would mean nothing")
        robot.configure()
        _check_talk(robot)
    finally:
        robot.disconnect()
    _require(not robot.is_connected, "disconnect() returns, but is_connected is True")
    _check_silence(robot)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise CheckFailedError(f"This robot breaks the protocol: {what}. See hardware.protocol.Robot.")


def _missing(robot: object) -> list[str]:
    wanted = [name for name in dir(Robot) if not name.startswith("_")] + ["name"]
    return sorted({name for name in wanted if not hasattr(type(robot), name) and not hasattr(robot, name)})


def _check_features(robot: Robot) -> None:
    """The same joints, in the same order, in observations, actions and units."""
    joints = list(robot.units.names)
    for kind in ("observation_features", "action_features"):
        features = getattr(robot, kind)
        for key, value in features.items():
            known = key.endswith(_SUFFIXES) or (key.startswith(SEEN) and kind == "observation_features")
            _require(known, f"the key {key!r} of {kind} is not <joint>.pos or <joint>.torque")
            _require(value is float, f"{key!r} of {kind} is {value!r}, not float")
        named = [key.rpartition(".")[0] for key in features if not key.startswith(SEEN)]
        _require(named == joints, f"{kind} speaks of {named}, units of {joints}")


def _check_silence(robot: Robot) -> None:
    """A robot that is not connected reads nothing and says so in the engine's own errors."""
    try:
        robot.get_observation()
    except TwinloopError:
        return
    _require(False, "get_observation() answers while it is not connected")


def _check_talk(robot: Robot) -> None:
    """Readings are finite, the action sent is of the keys of the one given, and time moves when waited for."""
    first = _read(robot)
    for _ in range(3):
        action = {key: first.get(key, 0.0) for key in robot.action_features}
        given = dict(action)
        sent = robot.send_action(action)
        _require(action == given, "send_action() changes the dictionary it is handed")
        _require(list(sent) == list(given), f"send_action() returns {list(sent)}, given {list(given)}")
        _require(all(map(math.isfinite, sent.values())), "send_action() returns a value that is not finite")
        _require(_near(robot, given, sent), f"send_action() returns {sent}, far from what it was given: {given}")
        again = robot.send_action(sent)
        same = np.allclose(list(again.values()), list(sent.values()), rtol=0, atol=1e-9)
        _require(bool(same), "an action that was sent is changed when it is sent again")
        before = robot.clock.now()
        robot.clock.wait_until(before + _HOLD_S / 3)
        _require(
            robot.clock.now() >= before + _HOLD_S / 3 - _ROUND_OFF_S, "its clock returns before the moment waited for"
        )
        moved = robot.clock.now()
        robot.clock.wait_until(before)
        _require(robot.clock.now() < moved + _HOLD_S, "its clock waits for a moment that has passed")
        _read(robot)


def _read(robot: Robot) -> dict[str, float]:
    reading = robot.get_observation()
    _require(list(reading) == list(robot.observation_features), f"an observation has the keys {list(reading)}")
    _require(all(map(math.isfinite, reading.values())), "a reading is not finite")
    return reading


def _near(robot: Robot, given: dict[str, float], sent: dict[str, float]) -> bool:
    """Whether a command that holds still comes back as it was given, but for limits of the robot's own."""
    values = [np.array(list(each.values())) for each in (given, sent)]
    if all(key.endswith(f".{POSITION}") for key in given):
        values = [robot.units.to_si(each) for each in values]
    return bool(np.abs(values[1] - values[0]).max() <= _NEAR)
