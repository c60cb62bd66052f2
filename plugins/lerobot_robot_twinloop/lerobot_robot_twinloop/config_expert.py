"""Options of the teleoperator type ``twinloop_expert``."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot.teleoperators import TeleoperatorConfig


@TeleoperatorConfig.register_subclass("twinloop_expert")
@dataclass
class TwinloopExpertConfig(TeleoperatorConfig):
    """The scripted expert of the robot's task; ``--teleop.type=twinloop_expert``. It has no options."""
