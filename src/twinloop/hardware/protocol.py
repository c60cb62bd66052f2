"""Define the protocol of every robot: LeRobot's interface, plus clock, units and source, which logs need.

`check_robot` tests whether an implementation follows the protocol.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import CheckFailedError, InputError, TwinloopError, UnknownNameError
from twinloop.core.records import Source
from twinloop.core.units import CommandKind, UnitMap

POSITION = "pos"
# End of an action's keys, by the kind of commands.
COMMAND_KEYS: Mapping[CommandKind, str] = MappingProxyType(
    {"position": POSITION, "velocity": "vel", "torque": "torque"}
)
TRACKED_PREFIX = "environment."  # prefix of tracked objects' keys


class NotConnectedError(InputError):
    """Error: a robot was used before `connect` or after `disconnect`."""


class Clock(Protocol):
    """Clock of a robot: a real robot's clock sleeps until a time, a virtual robot's clock simulates until that time."""

    def now(self) -> float:
        """Return the time in s since a fixed moment."""
        ...

    def wait_until(self, moment: float) -> None:
        """Wait until the time ``moment`` in s, or a little longer; return at once if it has passed."""
        ...


class WallClock:
    """Clock of a real robot: the computer's monotonic clock, which starts at an arbitrary moment."""

    def now(self) -> float:
        """Return the time of the computer's monotonic clock, in s."""
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Sleep until the time ``moment``, in s."""
        time.sleep(max(0.0, moment - self.now()))


@runtime_checkable
class Robot(Protocol):
    """Robot with LeRobot's interface (lerobot 0.6.1, ``robots/robot.py``), plus clock, units, source and origin.

    Observations and actions are dictionaries of floats: ``<joint>.pos`` in the units that ``units`` maps to rad or m,
    ``<joint>.vel`` and ``<joint>.torque`` (N·m) for the actions of a robot that takes velocities or torques. With a
    scene tracker, observations also have ``environment.NAME``: positions in m, headings as cosine and sine. With
    cameras, they have images by camera name, ``(height, width, 3)``, RGB, uint8; their shape is the value in
    `observation_features`.

    Members that a robot may have in addition, and that ``twinloop run`` uses (`OwnRobot` describes them, too):

    - ``success()``: whether the task is done now, called after every control step; None if that is not known. A robot
      without this method does not determine outcomes, and they are unknown unless a person or a file gives them.
    - ``task``: object with ``name`` (compared with the policy's contract), ``nstep`` (control steps of an episode),
      ``instruction`` and ``success_version``, such as a `tasks.protocol.Task`. Without it, an episode has 20 s.
    - ``episode``: number of the next episode, set before a run that does not begin with episode 0. A robot whose
      ``source`` is ``sim`` is disconnected and connected between episodes, and makes the scene of the next number.
    - ``get_vitals()``: temperatures and torques of the drives, see `excite_guard.DriveHealth`.

    Attributes:
        name: LeRobot's name of the robot, stored in datasets and compared with the policy's contract.
    """

    name: str

    @property
    def observation_features(self) -> Mapping[str, type]:
        """Keys and types of an observation: joints in the order of ``units``, tracked objects, image shapes."""
        ...

    @property
    def action_features(self) -> Mapping[str, type]:
        """Keys and types of an action, in the order of ``units``."""
        ...

    @property
    def is_connected(self) -> bool:
        """Whether the robot is connected."""
        ...

    def connect(self, calibrate: bool = True) -> None:
        """Open the connection. If the robot is not calibrated and ``calibrate`` is true, calibrate it."""
        ...

    @property
    def is_calibrated(self) -> bool:
        """Whether the robot is calibrated, so that readings have the meaning given by ``units``."""
        ...

    def calibrate(self) -> None:
        """Calibrate the robot."""
        ...

    def configure(self) -> None:
        """Write the settings that the robot needs, for example to its servos."""
        ...

    def get_observation(self) -> dict[str, float]:
        """Return the present readings by key, as in `observation_features`."""
        ...

    def send_action(self, action: Mapping[str, float]) -> dict[str, float]:
        """Issue a command, by the keys of `action_features`; return it as sent, clipped to the robot's limits."""
        ...

    def disconnect(self) -> None:
        """Close the connection."""
        ...

    @property
    def clock(self) -> Clock:
        """Clock that defines the times in the robot's logs."""
        ...

    @property
    def units(self) -> UnitMap:
        """Unit of every joint, in column order."""
        ...

    @property
    def source(self) -> Source:
        """Origin of the data: ``real``, or ``sim`` for a simulated robot."""
        ...

    @property
    def origin(self) -> str:
        """Address of the robot, stored in its logs, such as ``virtual:so101_tabletop?seed=3``."""
        ...


def check_keys(action: Mapping[str, float], keys: Sequence[str], *, origin: str) -> None:
    """Raise an error for an action whose keys are not exactly the robot's action keys.

    Args:
        action: the action.
        keys: the robot's action keys.
        origin: address of the robot, for messages.

    Raises:
        UnknownNameError: If the action has an unknown key.
        InputError: If a key is missing.
    """
    for key in action:
        if key not in keys:
            raise UnknownNameError("action", key, keys, where=origin)
    missing = [key for key in keys if key not in action]
    if missing:
        raise InputError(f"The action for {origin} lacks {', '.join(missing)}. Give every joint: {', '.join(keys)}.")


def read_command(action: Mapping[str, float], keys: Sequence[str], *, origin: str) -> NDArray[np.float64]:
    """Return the values of an action in the order of the robot's action keys, after `check_keys`.

    Raises:
        UnknownNameError, InputError: See `check_keys`.
        InputError: If a value is not finite.
    """
    check_keys(action, keys, origin=origin)
    values = np.array([action[key] for key in keys], dtype=np.float64)
    if not np.isfinite(values).all():
        wrong = keys[int(np.flatnonzero(~np.isfinite(values))[0])].rpartition(".")[0]
        raise InputError(f"The command of {wrong} is not finite. Send numbers, or nothing to hold the last command.")
    return values


_SUFFIXES = tuple(f".{key}" for key in COMMAND_KEYS.values())
_HOLD_S = 0.2
_ROUND_OFF_S = 1e-6
_NEAR_PERCENT = 10.0  # the same where the size of the units is unknown, as of ±100
_NEAR = 0.1  # rad or m; the reading of an arm at rest may be a few degrees beyond its limits


def check_robot(robot: Robot) -> None:
    """Connect a robot, hold it still for a moment, disconnect it, and check that it follows the protocol.

    The robot is commanded to its measured position (zero torque with torque control), so a real robot moves by no more
    than its sag. It must be disconnected before the call, and is disconnected afterwards in every case.

    Raises:
        CheckFailedError: If the robot violates a rule of the protocol. The message describes the rule.
    """
    missing = _missing_members(robot)
    _require(not missing, f"{type(robot).__name__} lacks {', '.join(missing)}")
    _require(not robot.is_connected, "it is already connected; pass a disconnected robot")
    _check_features(robot)
    _check_disconnected(robot)
    robot.connect()
    try:
        _require(robot.is_connected, "connect() returns, but is_connected is False")
        _require(robot.is_calibrated, "it is not calibrated after connect(); readings would mean nothing")
        robot.configure()
        _check_connected(robot)
    finally:
        robot.disconnect()
    _require(not robot.is_connected, "disconnect() returns, but is_connected is True")
    _check_disconnected(robot)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise CheckFailedError(f"This robot breaks the protocol: {what}. See hardware.protocol.Robot.")


def _missing_members(robot: object) -> list[str]:
    wanted = [name for name in dir(Robot) if not name.startswith("_")] + ["name"]
    return sorted({name for name in wanted if not hasattr(type(robot), name) and not hasattr(robot, name)})


def _check_features(robot: Robot) -> None:
    """Check that observations, actions and units have the same joints in the same order."""
    joints = list(robot.units.names)
    for kind in ("observation_features", "action_features"):
        features = getattr(robot, kind)
        for key, value in features.items():
            if isinstance(value, tuple) and kind == "observation_features":  # the shape of a camera's images
                _require(len(value) == 3 and value[2] == 3, f"{key!r} has the shape {value}, not (height, width, 3)")
                continue
            known = key.endswith(_SUFFIXES) or (key.startswith(TRACKED_PREFIX) and kind == "observation_features")
            _require(known, f"the key {key!r} of {kind} is not <joint>.pos or <joint>.torque")
            _require(value is float, f"{key!r} of {kind} is {value!r}, not float")
        floats = [key for key, value in features.items() if value is float]
        named = [key.rpartition(".")[0] for key in floats if not key.startswith(TRACKED_PREFIX)]
        _require(named == joints, f"{kind} has the joints {named}, units has {joints}")


def _check_disconnected(robot: Robot) -> None:
    """Check that a disconnected robot raises a `TwinloopError` when it is read."""
    try:
        robot.get_observation()
    except TwinloopError:
        return
    _require(False, "get_observation() answers while it is not connected")


def _check_connected(robot: Robot) -> None:
    """Check readings, actions and the clock of a connected robot while it holds its measured position.

    Readings must be finite. `send_action` must return an action with the keys of its argument and about the same
    values, and must not change its argument. The clock must advance while it waits.

    Raises:
        CheckFailedError: If the robot violates a rule of the protocol.
    """
    first = _read(robot)
    for _ in range(3):
        action = {key: first.get(key, 0.0) for key in robot.action_features}
        given = dict(action)
        sent = robot.send_action(action)
        _require(action == given, "send_action() changes the dictionary that it is given")
        _require(list(sent) == list(given), f"send_action() returns {list(sent)}, given {list(given)}")
        _require(all(map(math.isfinite, sent.values())), "send_action() returns a value that is not finite")
        _require(_is_sent_as_given(robot, given, sent), f"send_action() returns {sent}, far from the given {given}")
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
    shapes = {key: value for key, value in robot.observation_features.items() if isinstance(value, tuple)}
    for key, shape in shapes.items():
        image = np.asarray(reading[key])
        _require(
            image.shape == shape and image.dtype == np.uint8,
            f"the image {key} is {image.dtype} {image.shape}, and observation_features has uint8 {shape}",
        )
    numbers = {key: value for key, value in reading.items() if key not in shapes}
    _require(all(map(math.isfinite, numbers.values())), "a reading is not finite")
    return numbers


def _is_sent_as_given(robot: Robot, given: dict[str, float], sent: dict[str, float]) -> bool:
    """Return whether the command that the robot reports as sent is within 0.1 rad, m or N·m of the given one.

    They may differ, because the robot limits commands to its range, and an arm at rest may be a few degrees beyond its
    range.
    """
    values = [np.array(list(each.values())) for each in (given, sent)]
    if not robot.units.known:
        return bool(np.abs(values[1] - values[0]).max() <= _NEAR_PERCENT)
    if all(key.endswith(f".{POSITION}") for key in given):
        values = [robot.units.to_si(each) for each in values]
    return bool(np.abs(values[1] - values[0]).max() <= _NEAR)
