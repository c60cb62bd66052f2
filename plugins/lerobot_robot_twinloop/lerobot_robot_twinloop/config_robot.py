"""Options of the robot type ``twinloop``."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot.robots import RobotConfig


@RobotConfig.register_subclass("twinloop")
@dataclass
class TwinloopRobotConfig(RobotConfig):
    """Options of a simulated robot; ``--robot.type=twinloop``.

    Attributes:
        address: Address of the robot, as for ``twinloop run --robot``: ``twin:NAME``, ``virtual:NAME?seed=3`` or
            ``path/to/file.py:Class``.
        step_hz: Commands per second; each command then simulates ``1 / step_hz`` s, on a slow computer too. Give the
            frame rate of the LeRobot command. With 0, the simulated time follows the computer's clock.
        scene_s: Duration of a scene in simulated s; then the objects get new poses and the robot is at home. For
            ``lerobot-record``, give ``episode_time_s`` + ``reset_time_s``. With 0, a scene ends 3 s after the task is
            solved.
        tracked: Whether observations contain the tracked poses of the objects, as ``environment.NAME.pos``.
        robot_type: Robot type that datasets store; empty for that of the twin. To merge with recordings of a real
            SO-101, give ``so_follower``, its name in LeRobot.
    """

    address: str = "twin:so101_tabletop"
    step_hz: float = 0.0
    scene_s: float = 0.0
    tracked: bool = False
    robot_type: str = ""
