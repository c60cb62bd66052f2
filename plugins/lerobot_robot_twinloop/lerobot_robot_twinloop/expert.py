"""Let the scripted expert of a task teleoperate the robot of the same LeRobot command."""

from __future__ import annotations

from typing import Any

from lerobot.teleoperators import Teleoperator

from lerobot_robot_twinloop.config_expert import TwinloopExpertConfig
from lerobot_robot_twinloop.robot import connected_robot


class TwinloopExpert(Teleoperator):
    """Teleoperator that gives the commands of the task's scripted expert, which knows the true state of the scene."""

    config_class = TwinloopExpertConfig
    name = "twinloop_expert"

    def __init__(self, config: TwinloopExpertConfig) -> None:
        super().__init__(config)
        self.config, self._connected = config, False

    @property
    def action_features(self) -> dict[str, type]:
        """Keys of an action: those of the robot."""
        return connected_robot().action_features

    @property
    def feedback_features(self) -> dict[str, type]:
        """Keys of feedback: none."""
        return {}

    @property
    def is_connected(self) -> bool:
        """Whether `connect` was called."""
        return self._connected

    @property
    def is_calibrated(self) -> bool:
        """Always true."""
        return True

    def connect(self, calibrate: bool = True) -> None:
        """Do nothing: the expert needs no device."""
        self._connected = True

    def disconnect(self) -> None:
        """Do nothing."""
        self._connected = False

    def calibrate(self) -> None:
        """Do nothing."""

    def configure(self) -> None:
        """Do nothing."""

    def get_action(self) -> dict[str, Any]:
        """Return the expert's next command for the connected robot."""
        return connected_robot().expert_action()

    def send_feedback(self, feedback: dict[str, Any]) -> None:
        """Do nothing: the expert feels no forces."""
