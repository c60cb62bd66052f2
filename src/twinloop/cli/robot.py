"""Define ``twinloop robot``, which writes a class for the user's own robot, or checks a robot."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.robot import requests

ROBOT = Group(
    name="robot",
    description="Write a class for your own robot or simulator, or check a robot.",
    commands=(
        Command(
            "new",
            requests.RobotNewRequest,
            "twinloop.workflows.robot.robots:run_robot_new",
            example="twinloop robot new my_robot.py --twin my_twin.yaml",
        ),
        Command(
            "check",
            requests.RobotCheckRequest,
            "twinloop.workflows.robot.robots:run_robot_check",
            example="twinloop robot check my_robot.py:MyRobot",
        ),
    ),
)
