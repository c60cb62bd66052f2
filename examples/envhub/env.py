"""A LeRobot EnvHub package: the file that `lerobot.envs.make_env("USER/REPO", trust_remote_code=True)` loads.

Put it at the root of a Hub repository, with `twinloop[gym]` in its requirements. Observations have LeRobot's names
(`agent_pos`, `pixels`). Actions are joint targets in the units of twinloop's datasets, so that a policy trained on a
generated dataset can be evaluated here without conversion. A seed always gives the same world.
"""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from twinloop.core.errors import UnknownNameError
from twinloop.envs import IDS, TwinVectorEnv

DEFAULT = "twinloop/PickAndPlace-SO101-v0"
CAMERAS = ("front", "wrist")


def make_env(n_envs: int = 1, use_async_envs: bool = False, cfg: Any = None) -> dict[str, dict[int, VectorEnv]]:
    """Return the environments of one task as `{suite: {task_id: vector environment}}`.

    Args:
        n_envs: Number of worlds.
        use_async_envs: Has no effect; the worlds run on threads of one process.
        cfg: An `EnvConfig`; its `task`, if it has one, is a registered id.
    """
    del use_async_envs
    name = getattr(cfg, "task", None) or DEFAULT
    if name not in IDS:
        raise UnknownNameError("environment", name, IDS)
    env = TwinVectorEnv(
        n_envs,
        **IDS[name],
        observation="lerobot",
        cameras=CAMERAS,
        action="dataset",
        reward="sparse",
        # LeRobot reads an episode's success from final_info, which only this mode has.
        autoreset_mode="SameStep",
        render_mode="rgb_array",
    )
    return {name: {0: env}}
