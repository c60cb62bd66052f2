"""LeRobot plugin: every task of twinloop as ``--env.type=twinloop``, all worlds in one batch."""

from lerobot_env_twinloop.config_twinloop import TwinloopEnv

__all__ = ["TwinloopEnv"]
