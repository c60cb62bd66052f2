"""Call a robot's driver, which may be any user's code, from one thread, with a time limit, and check its answers.

Every exception of a driver, `SystemExit` included, becomes a `RobotLostError`. Joints, units and name are read once
before connecting and must be the same afterwards. Answers are converted strictly and in the same thread: a value whose
conversion fails or hangs counts as a failure of the driver. If the driver's clock fails or goes back, the computer's
clock replaces it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.extension import describe_error
from twinloop.core.records import Source
from twinloop.core.units import UnitMap
from twinloop.hardware.call_thread import CallThread
from twinloop.hardware.driver_answers import joint_values, to_float
from twinloop.hardware.protocol import COMMAND_KEYS, POSITION, TRACKED_PREFIX, Clock, Robot, WallClock

_ROUND_OFF_S = 1e-6
_FASTEST = 2.0  # largest speed of a real robot's clock relative to the computer's
_LONGEST_PAUSE_S = 0.5


class CheckedClock:
    """Clock of a driver, with checks: it never fails or goes back, and a real robot's clock never runs much too fast.

    After a fault of the driver's clock, the computer's clock is used; it continues from the last time of the driver's.

    Attributes:
        fault: why the driver's clock is no longer used, or "".

    Args:
        clock: clock of the driver.
        real: whether the robot is real, so that its time cannot pass faster than the computer's.
    """

    def __init__(self, clock: Clock, *, real: bool) -> None:
        self._clock, self._real, self.fault = clock, real, ""
        self._last, self._last_wall = -math.inf, time.perf_counter()
        self._woken: tuple[float, float] | None = None

    def now(self) -> float:
        """Return the time in s since a fixed moment; never less than before."""
        if not self.fault:
            self._read()
        if not self.fault:
            return self._last
        return self._last + time.perf_counter() - self._last_wall

    def wait_until(self, moment: float) -> None:
        """Wait until the clock's time is ``moment`` in s, or a little later."""
        self.now()  # detect a clock that went back, because it would sleep too long
        if not self.fault:
            try:
                self._clock.wait_until(moment)
            except KeyboardInterrupt:  # Ctrl-C, while it sleeps
                raise
            except BaseException as error:  # noqa: BLE001  # any exception of a driver, SystemExit included
                self._fail(f"its clock does not wait: {describe_error(error)}")
        if self.now() < moment - _ROUND_OFF_S:
            self._fail(f"its clock returns {moment - self._last:.3g} s before the moment waited for")
            time.sleep(max(0.0, moment - self.now()))
        self._sleep_if_fast()

    def _read(self) -> None:
        try:
            value = float(self._clock.now())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # as above
            self._fail(f"its clock does not answer: {describe_error(error)}")
            return
        if not math.isfinite(value) or value < self._last - _ROUND_OFF_S:
            self._fail(f"its clock went from {self._last:g} to {value:g} s")
            return
        self._last, self._last_wall = max(value, self._last), time.perf_counter()

    def _fail(self, reason: str) -> None:
        if not self.fault:
            self.fault, self._last = reason, self._last if math.isfinite(self._last) else 0.0

    def _sleep_if_fast(self) -> None:
        """Sleep if a real robot's time has passed faster than the computer's."""
        now, wall = self.now(), time.perf_counter()
        if self._real and self._woken is not None:
            needed = (now - self._woken[0]) / _FASTEST - (wall - self._woken[1])
            time.sleep(min(max(needed, 0.0), _LONGEST_PAUSE_S))
        self._woken = now, time.perf_counter()


@dataclass(frozen=True)
class _ThreadClock:
    """Clock whose waiting may call the robot, as that of `OwnRobot.step`, and is therefore done in the driver's thread.

    Attributes:
        clock: clock of the driver.
        wait: function that waits for a moment with this clock.
    """

    clock: Clock
    wait: Callable[[Clock, float], None]

    def now(self) -> float:
        """Return the time of the driver's clock in s."""
        return self.clock.now()

    def wait_until(self, moment: float) -> None:
        """Wait until the time ``moment`` in s.

        Raises:
            RobotLostError: If the driver's clock raised an error, or did not return in time.
        """
        self.wait(self.clock, moment)


_FAREWELL_S = 2.0  # longest wait for a running call before disconnecting


class RobotLostError(TwinloopError):
    """Error: a robot did not answer, or its answer violates the protocol."""


@dataclass(frozen=True, kw_only=True)
class RobotDescription:
    """Properties of a robot that must not change after it is connected; see `hardware.protocol.Robot`."""

    name: str
    origin: str
    source: Source
    units: UnitMap
    observation_features: Mapping[str, Any]
    action_features: Mapping[str, Any]

    @classmethod
    def read(cls, robot: Robot) -> RobotDescription:
        """Read the properties from a driver.

        Raises:
            InputError: If the properties contradict each other. The message describes the contradiction.
        """
        found = cls(
            name=str(robot.name),
            origin=str(robot.origin),
            source=robot.source,
            units=robot.units,
            observation_features=dict(robot.observation_features),
            action_features=dict(robot.action_features),
        )
        problem = found._find_contradiction()
        if problem:
            raise InputError(f"{found.origin} breaks the protocol of robots: {problem}. See hardware.protocol.Robot.")
        return found

    @property
    def joint_keys(self) -> list[str]:
        """Keys of the joints' readings, such as ``elbow_flex.pos``, in the order of ``units``."""
        return [f"{joint}.{POSITION}" for joint in self.units.names]

    @property
    def tracked_keys(self) -> list[str]:
        """Keys of the values from a scene tracker (``environment.NAME``): positions and headings of objects."""
        return [key for key in self.observation_features if key.startswith(TRACKED_PREFIX)]

    @property
    def cameras(self) -> dict[str, tuple[int, ...]]:
        """Image shapes ``(height, width, 3)`` by camera key.

        In ``observation_features``, a camera has its image shape as value; a joint or a tracked object has a type.
        """
        return {
            key: shape
            for key, shape in self.observation_features.items()
            if isinstance(shape, tuple) and len(shape) == 3
        }

    def _find_contradiction(self) -> str:
        """Return a description of the first contradiction between the properties, or ""."""
        joints = list(self.units.names)
        if len(set(joints)) < len(joints):
            return f"a joint occurs twice among {', '.join(joints)}"
        if self.source not in ("real", "sim"):
            return f"source is {self.source!r}, neither 'real' nor 'sim'"
        acted = list(self.action_features)
        if acted not in ([f"{joint}.{kind}" for joint in joints] for kind in COMMAND_KEYS.values()):
            return f"action_features are {', '.join(acted)}, while units has the joints {', '.join(joints)}"
        missing = [key for key in self.joint_keys if key not in self.observation_features]
        if missing:
            return f"observation_features lack {', '.join(missing)}"
        line = np.array([[unit.scale, unit.offset] for unit in self.units.joints], dtype=np.float64).T
        if self.units.known and not (np.isfinite(line).all() and line[0].all()):
            return "a joint's unit has a scale of 0, or a scale or an offset that is not a number"
        return ""


class RobotDriver:
    """Robot (`hardware.protocol.Robot`) that calls a driver, with time limits and checked answers.

    The properties of `RobotDescription` are also attributes of this object.

    Attributes:
        robot: the driver.
        patience_s: time limit of a call in s; may be changed.
        description: the properties of the robot, read before connecting.

    Args:
        robot: the driver.
        patience_s: time limit of a call in s. Connecting has no limit, because calibration takes time.

    Raises:
        InputError: If a property cannot be read, or the properties contradict each other.
    """

    def __init__(self, robot: Robot, *, patience_s: float) -> None:
        self.robot, self.patience_s = robot, patience_s
        self._thread = CallThread(f"robot {type(robot).__name__}")
        self._address = type(robot).__name__
        try:
            self.description: RobotDescription = self._call_without_limit(lambda: RobotDescription.read(robot))
            found = self.description
            self.name, self.units = found.name, found.units
            self.source: Source = found.source
            self._address = self.origin = found.origin
            self.observation_features, self.action_features = found.observation_features, found.action_features
            self.clock: CheckedClock = self._call_without_limit(self._read_clock)
        except BaseException:
            self._thread.close()
            raise
        if callable(getattr(robot, "get_vitals", None)):
            self.get_vitals = self._get_vitals

    @property
    def is_connected(self) -> bool:
        """Whether the robot is connected."""
        return bool(self.call(lambda: self.robot.is_connected))

    @property
    def is_calibrated(self) -> bool:
        """Whether the robot is calibrated."""
        return bool(self.call(lambda: self.robot.is_calibrated))

    def connect(self, calibrate: bool = True) -> None:  # noqa: ARG002  # the driver's own default is the right one
        """Connect and configure the robot. ``calibrate`` is not used: the driver's own default applies.

        Raises:
            InputError: If the robot is not calibrated, or connecting has changed its properties.
            RobotLostError: If the driver raised an error.
        """
        self._call_without_limit(self._connect, kind=RobotLostError)
        self.clock = self._call_without_limit(self._read_clock, kind=RobotLostError)

    def calibrate(self) -> None:
        """Calibrate the robot, without a time limit."""
        self._call_without_limit(self.robot.calibrate, kind=RobotLostError)

    def configure(self) -> None:
        """Do nothing, because `connect` also configures the robot."""

    def get_observation(self) -> dict[str, Any]:
        """Return an observation: floats by key, and camera images as copies.

        Raises:
            RobotLostError: If the driver raised an error, did not answer in time, or returned something else.
        """
        return self.call(lambda: self._convert_observation(self.robot.get_observation()))

    def send_action(self, action: Mapping[str, float]) -> dict[str, float]:
        """Issue a command; return the command that the driver reports as sent.

        Raises:
            RobotLostError: If the driver raised an error, did not answer in time, or returned no readable command.
        """
        given, keys = dict(action), list(self.action_features)
        return self.call(lambda: dict(zip(keys, self._convert_action(given, keys), strict=True)))

    def disconnect(self) -> None:
        """Disconnect the robot; first wait up to 2 s for a call that has not returned.

        Raises:
            RobotLostError: If the driver raised an error, or does not answer.
        """
        if self._thread.busy:
            self._thread.wait(_FAREWELL_S)
        self.call(self.robot.disconnect)

    def read_attribute(self, name: str) -> Any:
        """Return an attribute of the driver outside the protocol, such as a task, or None if the driver lacks it.

        Raises:
            InputError: If the attribute cannot be read.
        """
        return self._call_without_limit(lambda: getattr(self.robot, name, None))

    def close(self) -> None:
        """End the thread that calls the driver."""
        self._thread.close()

    def call(self, call: Callable[[], Any]) -> Any:
        """Run ``call`` in the driver's thread and return its result.

        Raises:
            RobotLostError: If the call raised an error, or did not return in time.
        """

        def as_lost(error: BaseException) -> TwinloopError:
            return error if isinstance(error, RobotLostError) else RobotLostError(self._no_answer_text(error))

        return self._run_call(call, self.patience_s, as_lost)

    def _get_vitals(self) -> dict[str, float]:
        """Return temperatures in °C and torques in N·m of the drives, by key; see `excite_guard.DriveHealth`."""
        vitals: Any = self.robot
        return self.call(lambda: {str(key): to_float(value) for key, value in dict(vitals.get_vitals()).items()})

    def _call_without_limit(self, call: Callable[[], Any], kind: type[TwinloopError] = InputError) -> Any:
        """Return the result of a call without a time limit.

        A `TwinloopError` is raised unchanged; any other exception is raised as ``kind``.
        """

        def as_ours(error: BaseException) -> TwinloopError:
            return error if isinstance(error, TwinloopError) else kind(self._no_answer_text(error))

        return self._run_call(call, np.inf, as_ours)

    def _run_call(
        self, call: Callable[[], Any], patience_s: float, as_ours: Callable[[BaseException], TwinloopError]
    ) -> Any:
        began = time.perf_counter()
        if self._thread.busy and self._thread.wait(0.0) is None:
            raise RobotLostError(f"{self._address} still has not answered.")
        self._thread.start(call)
        while (result := self._thread.wait(min(patience_s, 1.0))) is None:  # check for Ctrl-C once a second
            if time.perf_counter() - began > patience_s:
                raise RobotLostError(f"{self._address} has not answered for {patience_s:g} s.")
        if result.error is None:
            return result.value
        error = as_ours(result.error)
        raise error from (None if error is result.error else result.error)

    def _no_answer_text(self, error: BaseException) -> str:
        return f"{self._address} does not answer: {describe_error(error)}."

    def _connect(self) -> None:
        self.robot.connect()
        self.robot.configure()
        if not self.robot.is_calibrated:
            raise InputError(f"{self.origin} is not calibrated, so its readings mean nothing. Calibrate it first.")
        if RobotDescription.read(self.robot) != self.description:
            raise InputError(
                f"{self.origin} has other joints, units or cameras since it was connected. Open it again; its "
                "driver must report the same before and after."
            )

    def _read_clock(self) -> CheckedClock:
        clock, real = self.robot.clock, self.source == "real"
        if real and not isinstance(clock, WallClock):
            clock = _ThreadClock(clock, self._wait_for_clock)
        return CheckedClock(clock, real=real)

    def _wait_for_clock(self, clock: Clock, moment: float) -> None:
        """Let a clock wait in the driver's thread, with the time limit of a call in addition to the time to wait."""
        limit = max(0.0, moment - clock.now()) + self.patience_s
        self._run_call(lambda: clock.wait_until(moment), limit, lambda error: RobotLostError(describe_error(error)))

    def _convert_observation(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        try:
            keys = self.description.joint_keys + self.description.tracked_keys
            numbers = dict(zip(keys, joint_values(answer, keys).tolist(), strict=True))
            return numbers | {
                key: _copy_image(key, answer[key], shape) for key, shape in self.description.cameras.items()
            }
        except Exception as error:
            raise RobotLostError(
                f"{self.origin} gave an observation that cannot be read ({describe_error(error)})."
            ) from error

    def _convert_action(self, action: dict[str, float], keys: list[str]) -> list[float]:
        answer = self.robot.send_action(action)
        try:
            return joint_values(answer, keys).tolist()
        except Exception as error:
            raise RobotLostError(f"{self.origin} did not return the sent command ({describe_error(error)}).") from error


def _copy_image(key: str, value: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return a copy of a camera's image, because its driver may write the next image into the same memory.

    Args:
        key: key of the camera, for the error message.
        value: the image.
        shape: the expected shape, ``(height, width, 3)``.

    Raises:
        ValueError: If the image has another shape or is not uint8.
    """
    image = np.array(value)
    if image.shape != shape or image.dtype != np.uint8:
        raise ValueError(f"{key} is {image.dtype} of shape {image.shape}, not uint8 of shape {shape}")
    return image
