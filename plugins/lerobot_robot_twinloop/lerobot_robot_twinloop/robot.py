"""Show a robot of twinloop to LeRobot's commands."""

from __future__ import annotations

import time
from typing import Any

from lerobot.robots import Robot

from lerobot_robot_twinloop.config_robot import TwinloopRobotConfig
from twinloop.core.errors import InputError
from twinloop.hardware import open_robot
from twinloop.hardware.protocol import TRACKED_PREFIX

# LeRobot calls a robot at every frame, but not while it saves an episode. Our choice: three frames at 30 Hz.
_PAUSE_S = 0.1
_SOLVED_S = 3.0  # s between the solution of a task and the next scene; our choice, time to press a key
_LONGEST_S = 290.0  # s; a simulated episode of twinloop ends after 300 s
_POSITION = ".pos"  # ending of the values that LeRobot's commands give to a policy


class TwinloopRobot(Robot):
    """Simulated robot for LeRobot's commands; see `TwinloopRobotConfig`.

    While LeRobot does not call the robot, for example because it saves an episode, the simulated time stands still.
    """

    config_class = TwinloopRobotConfig
    name = "twinloop"

    def __init__(self, config: TwinloopRobotConfig) -> None:
        super().__init__(config)
        if config.step_hz < 0 or config.scene_s < 0:
            raise InputError("robot.step_hz and robot.scene_s are numbers from 0.")
        if config.scene_s > _LONGEST_S:
            raise InputError(f"robot.scene_s={config.scene_s:g} is too long. Give at most {_LONGEST_S:g} s.")
        self.config, self.robot = config, open_robot(config.address)
        if self.robot.source != "sim":
            raise InputError(
                f"{config.address} is a real robot, for which LeRobot has its own types. Give a simulated one."
            )
        self.name = self.robot_type = config.robot_type or self.robot.name
        self._scene = _Scene()

    @property
    def observation_features(self) -> dict[str, Any]:
        """Keys of an observation, with ``float``, or the shape of a camera's images."""
        return {self._shown(key): kind for key, kind in self.robot.observation_features.items() if self._shown(key)}

    @property
    def action_features(self) -> dict[str, type]:
        """Keys of an action, with ``float``."""
        return dict(self.robot.action_features)

    @property
    def cameras(self) -> dict[str, tuple[int, ...]]:
        """Image shapes of the cameras; LeRobot counts them."""
        return {key: kind for key, kind in self.robot.observation_features.items() if isinstance(kind, tuple)}

    @property
    def is_connected(self) -> bool:
        """Whether a scene is simulated."""
        return self.robot.is_connected

    @property
    def is_calibrated(self) -> bool:
        """Whether readings have the meaning of the robot's units."""
        return self.robot.is_calibrated

    def connect(self, calibrate: bool = True) -> None:
        """Start a scene."""
        self.robot.connect(calibrate)
        self.robot.get_observation()  # opens the renderer, which takes a second
        self._scene = _Scene()
        _CONNECTED[:] = [self]

    def disconnect(self) -> None:
        """End the scene."""
        self.robot.disconnect()

    def calibrate(self) -> None:
        """Calibrate the robot, which does nothing in a simulation."""
        self.robot.calibrate()

    def configure(self) -> None:
        """Configure the robot, which does nothing in a simulation."""
        self.robot.configure()

    def get_observation(self) -> dict[str, Any]:
        """Return the present readings and images by key."""
        self._follow_clock()
        return {self._shown(key): value for key, value in self.robot.get_observation().items() if self._shown(key)}

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        """Issue a command; return it as sent. Keys that are not joints are ignored."""
        self._follow_clock()
        sent = self.robot.send_action({key: float(action[key]) for key in self.robot.action_features})
        if self.config.step_hz:
            self._wait(1.0 / self.config.step_hz)
        return sent

    def expert_action(self) -> dict[str, float]:
        """Return the next command of the task's scripted expert.

        Raises:
            InputError: If the robot has no such expert.
        """
        if not hasattr(self.robot, "expert_action"):
            raise InputError(
                f"{self.robot.origin} has no scripted expert. Use a twin with a task: twin:NAME?task=TASK."
            )
        return self.robot.expert_action()

    def _shown(self, key: str) -> str:
        """Return LeRobot's key of a value, or an empty text for a value that is not shown."""
        if not key.startswith(TRACKED_PREFIX):
            return key
        return key + _POSITION if self.config.tracked else ""

    def _follow_clock(self) -> None:
        """Simulate the time since the last call, and start the next scene when it is due."""
        now = time.perf_counter()
        passed, self._scene.called = now - self._scene.called, now
        if not self.config.step_hz:
            self._wait(min(passed, _PAUSE_S))
        if self._is_over(paused=passed > _PAUSE_S):
            self.disconnect()
            self.connect()

    def _wait(self, seconds: float) -> None:
        self._scene.moment += seconds
        self.robot.clock.wait_until(self._scene.moment)

    def _is_over(self, *, paused: bool) -> bool:
        """Return whether the next scene is due; a pause ends a scene that is nearly over, since LeRobot saves then."""
        scene, limit = self._scene, self.config.scene_s
        if limit:
            return scene.moment >= limit or (paused and scene.moment >= 0.8 * limit)
        if scene.moment >= scene.checked + 1.0 and hasattr(self.robot, "success"):  # a check reads the whole episode
            scene.checked = scene.moment
            scene.solved = scene.solved or (scene.moment if self.robot.success() else 0.0)
        return scene.moment >= _LONGEST_S or bool(scene.solved and scene.moment >= scene.solved + _SOLVED_S)


class _Scene:
    """Times of the running scene: computer's clock at the last call, and simulated times in s since its start."""

    def __init__(self) -> None:
        self.called = time.perf_counter()
        self.moment = self.checked = self.solved = 0.0


_CONNECTED: list[TwinloopRobot] = []


def connected_robot() -> TwinloopRobot:
    """Return the robot that this process connected last.

    Raises:
        InputError: If there is none.
    """
    if not _CONNECTED:
        raise InputError("No robot of twinloop is connected. Give --robot.type=twinloop.")
    return _CONNECTED[0]
