"""LeRobot plugin: robots of twinloop for LeRobot's commands, and scripted experts as teleoperators.

Importing this package registers the robot type ``twinloop`` and the teleoperator type ``twinloop_expert``.
"""

from lerobot_robot_twinloop.config_expert import TwinloopExpertConfig
from lerobot_robot_twinloop.config_robot import TwinloopRobotConfig
from lerobot_robot_twinloop.expert import TwinloopExpert
from lerobot_robot_twinloop.robot import TwinloopRobot

__all__ = ["TwinloopExpert", "TwinloopExpertConfig", "TwinloopRobot", "TwinloopRobotConfig"]
