"""What any robot must hold to be driven and recorded here; offered to whoever writes one."""

from __future__ import annotations

import math

import numpy as np

from twinloop.core.errors import CheckFailedError, TwinloopError
from twinloop.hardware.protocol import POSITION, SEEN, TORQUE, Robot

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
        _require(_close(again, sent), "an action that was sent is changed when it is sent again")
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


def _close(one: dict[str, float], other: dict[str, float]) -> bool:
    return bool(np.allclose(list(one.values()), list(other.values()), rtol=0, atol=1e-9))
