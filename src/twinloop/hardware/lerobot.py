"""Open LeRobot's robots through twinloop's robot protocol: ``lerobot:so101?port=/dev/ttyACM0&id=my_arm``.

The protocol is LeRobot's interface (lerobot 0.4 to 0.6, ``robots/robot.py``). This module adds the units of the values,
from the arm's calibration, and the clock, which a log needs. It also uses the safeguards of `lerobot_bus`. LeRobot is
imported when a robot is opened.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.extension import describe_error
from twinloop.core.records import Source
from twinloop.core.units import DEGREES, NORMALIZED, PERCENT, UnitMap
from twinloop.dataset.lerobot.calibration import MotorCalibration, calibrated_units, read_calibration
from twinloop.hardware.lerobot_bus import GuardedBus
from twinloop.hardware.protocol import POSITION, NotConnectedError, WallClock
from twinloop.twin import load_twin

# Robots by their short name: LeRobot's type, and the joints. The last joint is the gripper, in 0 to 100.
_SO_JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
_KINDS = {"so101": ("so101_follower", _SO_JOINTS), "so100": ("so100_follower", _SO_JOINTS)}
_CLASSES = {"so101": "SO101Follower", "so100": "SO100Follower"}
# Modules of the classes: one module since lerobot 0.4.4, one per arm before.
_MODULES = ("lerobot.robots.so_follower", "lerobot.robots.{type}")
_OPTIONS = ("port", "id", "use_degrees", "calibration", "units", "torque_off")
_CAMERA = "camera."
_REMEDY = "pip install 'lerobot[feetech]'"


def lerobot_names() -> list[str]:
    """Return the addresses of the supported LeRobot robots."""
    return [f"lerobot:{name}" for name in _KINDS]


class LerobotRobot:
    """A robot of LeRobot; see `hardware.protocol.Robot`.

    Args:
        robot: object with LeRobot's interface; disconnected.
        name: the type of robot, as in datasets.
        joints: joints in the order of the unit map.
        units: units of the values; None to compute them from the arm's calibration when needed.
        use_degrees: whether the arm's joints are in degrees; else in ±100. LeRobot's default is degrees since 0.4.4,
            and was ±100 before.
        origin: the address that opens this robot.
    """

    source: Source = "real"

    def __init__(
        self,
        robot: Any,
        *,
        name: str,
        joints: tuple[str, ...] = _SO_JOINTS,
        units: UnitMap | None = None,
        use_degrees: bool = True,
        origin: str = "lerobot",
    ) -> None:
        self._robot, self._joints, self._units, self._degrees = robot, joints, units, use_degrees
        self.name, self.origin, self.clock = name, origin, WallClock()
        self._bus = GuardedBus(robot, gripper=joints[-1])

    @property
    def observation_features(self) -> Mapping[str, Any]:
        """Keys and types of an observation; a camera has an image shape instead of a type, as in LeRobot."""
        offered: Mapping[str, Any] = self._robot.observation_features
        keys = [f"{joint}.{POSITION}" for joint in self._joints]
        missing = [key for key in keys if key not in offered]
        if missing:
            raise InputError(f"{self.origin} has no {', '.join(missing)}. It offers: {', '.join(offered)}.")
        return dict.fromkeys(keys, float) | {key: kind for key, kind in offered.items() if isinstance(kind, tuple)}

    @property
    def action_features(self) -> Mapping[str, type]:
        """Keys and types of an action, in the order of ``units``."""
        return {f"{joint}.{POSITION}": float for joint in self._joints}

    @property
    def is_connected(self) -> bool:
        """Whether the serial bus is open."""
        return bool(self._robot.is_connected)

    def connect(self, calibrate: bool = False) -> None:
        """Open the serial bus, configure the servos, and hold the pose; the port is closed again if this fails.

        Start LeRobot's manual calibration only if ``calibrate`` is true.
        """
        if self.is_connected:
            return
        try:
            self._robot.connect(calibrate=calibrate)
            if self.is_calibrated:
                here = self.get_observation()
                self._robot.send_action({key: here[key] for key in self.action_features})
        except BaseException:
            self._bus.close()
            raise

    @property
    def is_calibrated(self) -> bool:
        """Whether the servos hold the calibration that LeRobot has stored for this arm."""
        return bool(self._robot.is_calibrated)

    def calibrate(self) -> None:
        """Run LeRobot's manual calibration, a dialogue at the terminal."""
        self._robot.calibrate()

    def configure(self) -> None:
        """Do nothing: LeRobot configures when it connects, and a repetition would let the arm drop for a moment."""

    def get_observation(self) -> dict[str, Any]:
        """Return the present joint readings, in the units of ``units``, and camera images.

        Raises:
            ServoFaultError: If a servo reports a fault.
        """
        self._require_connection()
        answer = self._bus.read_fresh(self._robot.get_observation)
        self._bus.check_status(self.clock.now())
        features = self.observation_features.items()
        return {key: answer[key] if isinstance(kind, tuple) else float(answer[key]) for key, kind in features}

    def send_action(self, action: Mapping[str, float]) -> dict[str, float]:
        """Issue a command; return the command as sent.

        LeRobot's limit ``max_relative_target`` (largest distance of a command from the present position) is not set, so
        LeRobot does not clip the command to it.
        """
        self._require_connection()
        sent = self._robot.send_action({key: float(action[key]) for key in self.action_features})
        return {key: float(sent[key]) for key in self.action_features}

    def disconnect(self) -> None:
        """Close the bus; servos keep their torque and hold, unless the address contains ``torque_off=true``."""
        if not self.is_connected:
            return
        config = self._robot.config
        try:
            if config.disable_torque_on_disconnect and self._bus.disable_joint_torque(self._joints):
                config.disable_torque_on_disconnect = False  # done before, joint by joint
            self._robot.disconnect()
        finally:
            self._bus.close()

    @property
    def units(self) -> UnitMap:
        """Unit of every joint, from the calibration that LeRobot stores for this arm.

        Raises:
            InputError: If there is no calibration.
        """
        if self._units is None:
            self._units = _calibrated_units(self._robot, self._joints, use_degrees=self._degrees, origin=self.origin)
        return self._units

    def _require_connection(self) -> None:
        if not self.is_connected:
            raise NotConnectedError(f"{self.origin} is not connected. Call connect() first.")


def open_lerobot(name: str, options: Mapping[str, str], *, origin: str) -> LerobotRobot:
    """Open a LeRobot robot by its short name, without connecting.

    Args:
        name: short name, such as ``so101``.
        options: ``port``; ``id``, by which LeRobot finds the arm's calibration; ``use_degrees``; ``calibration``, a
            calibration file to use instead, also in LeRobot; ``units``, a twin whose unit map replaces the
            calibration's; ``torque_off``, to disable torque at disconnection; ``camera.NAME=DEVICE:WIDTHxHEIGHT:FPS``.
        origin: the whole address, for messages and logs.

    Raises:
        UnknownNameError: If the robot or an option does not exist.
        InputError: If the port is missing, or an option has an invalid value.
        MissingDependencyError: If LeRobot is not installed.
    """
    if name not in _KINDS:
        raise UnknownNameError("LeRobot robot", name, _KINDS)
    for key in options:
        if key not in _OPTIONS and not key.startswith(_CAMERA):
            raise UnknownNameError("option", key, (*_OPTIONS, f"{_CAMERA}NAME"), where=origin)
    if "port" not in options:
        raise InputError(f"{origin} has no port. Write {origin}?port=/dev/ttyACM0&id=my_arm.")
    kind, joints = _KINDS[name]
    use_degrees = _parse_flag(options, "use_degrees", default=True)
    given: dict[str, Any] = {"port": options["port"], "id": options.get("id"), "use_degrees": use_degrees}
    given["disable_torque_on_disconnect"] = _parse_flag(options, "torque_off", default=False)
    if "calibration" in options:
        path = Path(options["calibration"])
        read_calibration(path)  # raises an error for a damaged or missing file; LeRobot ignores a missing one
        given |= {"id": path.stem, "calibration_dir": path.absolute().parent}
    cameras = {key.removeprefix(_CAMERA): value for key, value in options.items() if key.startswith(_CAMERA)}
    if cameras:
        given["cameras"] = {key: _parse_camera(key, value) for key, value in cameras.items()}
    robot = _create_robot(name, kind, given)
    units = _parse_units(options, joints, use_degrees=use_degrees)
    return LerobotRobot(robot, name=kind, joints=joints, units=units, use_degrees=use_degrees, origin=origin)


def _create_robot(name: str, kind: str, given: Mapping[str, Any]) -> Any:
    """Return LeRobot's robot object, from the module that contains its class in the installed version.

    Args:
        name: short name, such as ``so101``.
        kind: LeRobot's type of robot.
        given: fields of LeRobot's configuration class.
    """
    problem: ImportError | None = None
    for place in _MODULES:
        try:
            module = importlib.import_module(place.format(type=kind))
        except ImportError as error:
            problem = error
            continue
        config = getattr(module, f"{_CLASSES[name]}Config")(**given)
        return getattr(module, _CLASSES[name])(config)
    what = f"{kind} is a LeRobot robot, but LeRobot cannot be imported here ({problem})."
    raise MissingDependencyError(what, remedy=_REMEDY) from problem


def _parse_camera(name: str, text: str) -> Any:
    device, _, rest = text.partition(":")
    size, _, fps = rest.partition(":")
    width, _, height = size.partition("x")
    if not device or not all(part.isdecimal() for part in (width, height, fps)):
        raise InputError(
            f"{_CAMERA}{name}={text} is not a camera. Write for example {_CAMERA}{name}=/dev/video0:640x480:30."
        )
    try:
        module = importlib.import_module("lerobot.cameras.opencv")
    except ImportError as error:
        raise MissingDependencyError(f"Cameras are read by LeRobot ({error}).", remedy=_REMEDY) from error
    place = int(device) if device.isdecimal() else device
    return module.OpenCVCameraConfig(index_or_path=place, width=int(width), height=int(height), fps=int(fps))


def _parse_units(options: Mapping[str, str], joints: tuple[str, ...], *, use_degrees: bool) -> UnitMap | None:
    """Return the unit map that the options of an address define, or None to use LeRobot's calibration.

    Args:
        options: options of the address: ``units`` is a twin with a unit map; without it, ``calibration`` is the path of
            a calibration file.
        joints: names of the joints.
        use_degrees: whether joint values are in degrees; if not, they are from −100 to 100. The gripper's are from 0 to
            100 in both cases.
    """
    if "units" in options:
        return load_twin(options["units"]).unit_map(_unit_names(joints, use_degrees=use_degrees))
    if "calibration" in options:
        path = Path(options["calibration"])
        names = _unit_names(joints, use_degrees=use_degrees)
        return calibrated_units(read_calibration(path), joints, names, source=str(path))
    return None


def _calibrated_units(robot: Any, joints: tuple[str, ...], *, use_degrees: bool, origin: str) -> UnitMap:
    """Return the unit map from the calibration that LeRobot stores for an arm.

    Args:
        robot: LeRobot's robot object.
        joints: names of the joints.
        use_degrees: whether joint values are in degrees; if not, they are from −100 to 100. The gripper's are from 0 to
            100 in both cases.
        origin: address of the robot, for messages.

    Raises:
        InputError: If there is no calibration, or it cannot be read.
    """
    motors = getattr(robot, "calibration", None) or {}
    if not motors:
        raise InputError(
            f"LeRobot has no calibration of {origin}, so the units of its values are unknown. Calibrate it "
            "(`lerobot-calibrate`), give the id that it was calibrated under, or calibration=FILE."
        )
    try:
        names = [item.name for item in fields(MotorCalibration)]
        rows = {
            joint: MotorCalibration(**{name: getattr(motor, name) for name in names}) for joint, motor in motors.items()
        }
    except AttributeError as error:
        raise InputError(
            f"The calibration of {origin} cannot be read ({describe_error(error)}). Give calibration=FILE."
        ) from error
    units = _unit_names(joints, use_degrees=use_degrees)
    return calibrated_units(rows, joints, units, source=f"LeRobot's calibration of {origin}")


def _unit_names(joints: tuple[str, ...], *, use_degrees: bool) -> list[str]:
    """Return the units of the SO arms' joints: degrees or ±100, and 0 to 100 for the gripper."""
    return [PERCENT if joint == "gripper" else DEGREES if use_degrees else NORMALIZED for joint in joints]


def _parse_flag(options: Mapping[str, str], key: str, *, default: bool) -> bool:
    word = options.get(key, str(default)).lower()
    if word not in ("true", "false"):
        raise InputError(f"{key}={options[key]} is neither true nor false.")
    return word == "true"
