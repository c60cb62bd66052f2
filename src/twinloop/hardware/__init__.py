"""Open, drive and record robots, real or virtual, through one protocol (`hardware.protocol.Robot`).

A virtual robot is opened by a twin and a seed, the user's own robot by the path of a Python file.
"""

from twinloop.hardware.hidden import HiddenCell, fault_names, make_hidden_cell
from twinloop.hardware.own import OwnRobot
from twinloop.hardware.protocol import Clock, NotConnectedError, Robot, WallClock, check_robot
from twinloop.hardware.record import record
from twinloop.hardware.registry import open_robot, robot_names
from twinloop.hardware.virtual import VirtualRobot, virtual_log
from twinloop.hardware.virtual_cell import TwinCell, VirtualCell

__all__ = [
    "Clock",
    "HiddenCell",
    "NotConnectedError",
    "OwnRobot",
    "Robot",
    "TwinCell",
    "VirtualCell",
    "VirtualRobot",
    "WallClock",
    "check_robot",
    "fault_names",
    "make_hidden_cell",
    "open_robot",
    "record",
    "robot_names",
    "virtual_log",
]
