"""LeRobot's robots behind the protocol, by a class that implements its interface (``robots/robot.py``).

LeRobot's driver on an emulated bus is tested in ``test_lerobot_arm.py``.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.hardware import check_robot, open_robot
from twinloop.hardware.lerobot import LerobotRobot
from twinloop.hardware.protocol import NotConnectedError
from twinloop.release.running_robot import TimedRobot, offered_contract
from twinloop.twin import load_twin

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
TICKS = 4095
PYTHON = os.environ.get("TWINLOOP_LEROBOT_PYTHON", "")


@dataclass
class MotorCalibration:
    id: int
    drive_mode: int
    homing_offset: int
    range_min: int
    range_max: int


@dataclass
class SO101FollowerConfig:
    port: str
    id: str | None = None
    use_degrees: bool = True
    disable_torque_on_disconnect: bool = True
    cameras: dict | None = None
    calibration_dir: Path | None = None


class SO101Follower:
    """An arm of ticks: what LeRobot's bus makes of them, its errors, and that torque comes on at the last goal."""

    config_class, name = SO101FollowerConfig, "so_follower"

    def __init__(self, config: SO101FollowerConfig) -> None:
        self.config, self.id = config, config.id
        sweep = dict.fromkeys(JOINTS, (900, 3100)) | {"gripper": (2000, 3500), "wrist_roll": (0, 4095)}
        self.calibration = {
            joint: MotorCalibration(number, 0, 12, low, high)
            for number, (joint, (low, high)) in enumerate(sweep.items(), start=1)
        }
        self._ticks = dict.fromkeys(JOINTS, 2100.0)
        self._open, self.log = False, []

    @property
    def observation_features(self) -> dict:
        return {f"{joint}.pos": float for joint in JOINTS} | {"front": (48, 64, 3)}

    @property
    def action_features(self) -> dict:
        return {f"{joint}.pos": float for joint in JOINTS}

    @property
    def is_connected(self) -> bool:
        return self._open

    def connect(self, calibrate: bool = True) -> None:
        if self._open:
            raise RuntimeError("DeviceAlreadyConnectedError")
        self.log.append(("connect", calibrate))
        self._open = True

    @property
    def is_calibrated(self) -> bool:
        return self._open and bool(self.calibration)

    def calibrate(self) -> None:
        self.log.append(("calibrate",))

    def configure(self) -> None:
        self.log.append(("configure",))

    def get_observation(self) -> dict:
        if not self._open:
            raise RuntimeError("DeviceNotConnectedError")
        values = {f"{joint}.pos": np.float32(self._value(joint)) for joint in JOINTS}
        return {**values, "front": np.zeros((48, 64, 3), dtype=np.uint8)}

    def send_action(self, action: dict) -> dict:
        self.log.append(("send", dict(action)))
        for key, value in action.items():
            self._ticks[key.removesuffix(".pos")] = self._tick(key.removesuffix(".pos"), value)
        return dict(action)

    def disconnect(self) -> None:
        self.log.append(("disconnect", self.config.disable_torque_on_disconnect))
        self._open = False

    def _value(self, joint: str) -> float:
        motor = self.calibration[joint]
        if joint == "gripper":
            return (self._ticks[joint] - motor.range_min) / (motor.range_max - motor.range_min) * 100
        if self.config.use_degrees:
            return (self._ticks[joint] - (motor.range_min + motor.range_max) / 2) * 360 / TICKS
        return (self._ticks[joint] - motor.range_min) / (motor.range_max - motor.range_min) * 200 - 100

    def _tick(self, joint: str, value: float) -> float:
        motor = self.calibration[joint]
        span = motor.range_max - motor.range_min
        if joint == "gripper":
            return motor.range_min + value / 100 * span
        if self.config.use_degrees:
            return value * TICKS / 360 + (motor.range_min + motor.range_max) / 2
        return motor.range_min + (value + 100) / 200 * span


@pytest.fixture
def lerobot(monkeypatch):
    """LeRobot as far as it is imported, with the class above in its place."""
    module = ModuleType("lerobot.robots.so_follower")
    module.SO101Follower, module.SO101FollowerConfig = SO101Follower, SO101FollowerConfig
    for name in ("lerobot", "lerobot.robots"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "lerobot.robots.so_follower", module)


def arm(options: str = "") -> LerobotRobot:
    robot = open_robot(f"lerobot:so101?port=/dev/ttyACM0&id=left{options}")
    assert isinstance(robot, LerobotRobot)
    return robot


class WithoutCameras(SO101Follower):
    @property
    def observation_features(self) -> dict:
        return self.action_features

    def get_observation(self) -> dict:
        return {key: value for key, value in super().get_observation().items() if key != "front"}


def test_it_keeps_the_protocols_laws():
    config = SO101FollowerConfig(port="/dev/ttyACM0", disable_torque_on_disconnect=False)
    check_robot(LerobotRobot(WithoutCameras(config), name="so101_follower"))


@pytest.mark.parametrize("degrees", [True, False])
def test_readings_mean_the_same_angle_whichever_unit_they_come_in(lerobot, degrees):
    robot = arm(f"&use_degrees={str(degrees).lower()}")
    robot.connect()
    reading = robot.get_observation()
    values = np.array([reading[f"{joint}.pos"] for joint in JOINTS])
    angles = robot.units.to_si(values)
    middle = np.array([2000.0, 2000.0, 2000.0, 2000.0, 2047.5, 2750.0])
    np.testing.assert_allclose(angles, (2100 - middle) * 2 * math.pi / TICKS, atol=1e-6)
    unit = "deg" if degrees else "range_m100_100"
    assert [row.unit for row in robot.units.joints] == [unit] * 5 + ["range_0_100"]
    assert robot.name == "so101_follower"
    assert robot.source == "real"


def test_mixed_up_units_are_a_difference_that_is_shown(lerobot):
    wanted = offered_contract(arm(), hz=30.0)
    [first, *_] = wanted.find_differences(offered_contract(arm("&use_degrees=false"), hz=30.0))
    assert first == "action of shoulder_pan: the policy uses deg, but range_m100_100 is given"


def test_it_holds_where_it_is_when_it_connects_and_when_it_goes(lerobot):
    robot = arm()
    robot.connect()
    log = robot._robot.log
    assert log[0] == ("connect", False)
    kind, held = log[1]
    assert kind == "send"
    assert held == pytest.approx({key: robot.get_observation()[key] for key in held})
    robot.configure()
    assert ("configure",) not in log
    robot.disconnect()
    robot.disconnect()
    assert log[-1] == ("disconnect", False)
    assert len(log) == 3
    with pytest.raises(NotConnectedError, match="is not connected"):
        robot.get_observation()
    released = arm("&torque_off=true")
    released.connect()
    released.disconnect()
    assert released._robot.log[-1] == ("disconnect", True)


def test_a_runner_sees_joints_and_images(lerobot):
    robot = arm()
    contract = offered_contract(robot, hz=30.0)
    assert contract.cameras == {"front": (48, 64)}
    assert contract.state == robot.units
    spoken = TimedRobot(robot, patience_s=5.0)
    spoken.connect()
    seen = spoken.read_observation()
    assert seen.arrays["observation.images.front"].shape == (48, 64, 3)
    sent = spoken.send(seen.reading + 1.0)
    np.testing.assert_allclose(sent, seen.reading + 1.0, rtol=1e-6)
    np.testing.assert_allclose(spoken.read_observation().reading, sent, rtol=1e-5)
    spoken.disconnect()


def test_units_come_from_a_file_or_a_twin_where_that_is_said(lerobot, tmp_path):
    rows = {
        joint: {"id": 1, "drive_mode": 0, "homing_offset": 0, "range_min": 1000, "range_max": 3000} for joint in JOINTS
    }
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(rows))
    assert arm(f"&calibration={path}").units.source == str(path)
    assert arm("&units=so101_tabletop").units.joints == load_twin("so101_tabletop").units.joints


def test_an_arm_without_a_calibration_is_refused(lerobot, monkeypatch):
    robot = arm()
    robot._robot.calibration = {}
    with pytest.raises(InputError, match=r"LeRobot has no calibration of lerobot:so101.*lerobot-calibrate.*id"):
        _ = robot.units
    monkeypatch.setattr(SO101Follower, "is_calibrated", False)
    spoken = TimedRobot(arm(), patience_s=5.0)
    with pytest.raises(InputError, match="is not calibrated, so its readings mean nothing"):
        spoken.connect()
    spoken.disconnect()


@pytest.mark.parametrize(
    ("address", "error", "said"),
    [
        ("lerobot:so102?port=x", UnknownNameError, "Unknown LeRobot robot 'so102'. Nearest existing: so10"),
        ("lerobot:so101", InputError, r"has no port. Write lerobot:so101\?port=/dev/ttyACM0"),
        ("lerobot:so101?port=x&degrees=1", UnknownNameError, "Unknown option 'degrees' .*use_degrees"),
        ("lerobot:so101?port=x&use_degrees=1", InputError, "use_degrees=1 is neither true nor false"),
        (
            "lerobot:so101?port=x&camera.front=0",
            InputError,
            r"not a camera. Write for example camera.front=/dev/video0:640x",
        ),
    ],
)
def test_addresses_are_checked(address, error, said):
    with pytest.raises(error, match=said):
        open_robot(address)


@pytest.mark.slow
@pytest.mark.skipif(not Path(PYTHON).is_file(), reason="TWINLOOP_LEROBOT_PYTHON names no interpreter with LeRobot")
def test_lerobots_own_driver_finds_its_servos_on_an_emulated_bus():
    """`test_lerobot_arm.py` in the interpreter that has LeRobot."""
    ready = subprocess.run([PYTHON, "-c", "import pytest, scservo_sdk, twinloop"], capture_output=True, check=False)
    if ready.returncode != 0:
        pytest.skip(f"{PYTHON} lacks twinloop, pytest or feetech-servo-sdk: scripts/lerobot_env.sh adds them")
    words = [
        PYTHON,
        "-m",
        "pytest",
        "-q",
        "-m",
        "slow",
        str(Path(__file__).parents[1] / "hardware" / "test_lerobot_arm.py"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_without_lerobot_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lerobot", None)
    with pytest.raises(MissingDependencyError, match=r"so101_follower is a LeRobot robot.*pip install 'lerobot\["):
        open_robot("lerobot:so101?port=/dev/ttyACM0")
