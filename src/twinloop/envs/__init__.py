"""Gymnasium environments in randomized worlds; importing this package registers them.

`TwinVectorEnv` is the environment: a batch of worlds on a backend of `simulate`. `TwinEnv` is the same with one world.
"""

from twinloop.core.errors import MissingDependencyError

try:
    import gymnasium
except ImportError as error:
    raise MissingDependencyError(
        "The environments of twinloop.envs need Gymnasium.", remedy='pip install "twinloop[gym]"'
    ) from error

from twinloop.envs.options import EnvOptions
from twinloop.envs.single import TwinEnv
from twinloop.envs.vector import TwinVectorEnv

__all__ = ["IDS", "EnvOptions", "TwinEnv", "TwinVectorEnv"]

IDS = {
    "twinloop/PickAndPlace-SO101-v0": {"twin": "so101_tabletop", "goal": "pick_and_place"},
    "twinloop/PickAndPlace-Panda-v0": {"twin": "panda_tabletop", "goal": "pick_and_place"},
    "twinloop/Reach-SO101-v0": {"twin": "so101_tabletop", "goal": "reach"},
    "twinloop/Reach-Panda-v0": {"twin": "panda_tabletop", "goal": "reach"},
}
"""Registered ids and the options that each stands for."""

for _id, _options in IDS.items():
    if _id not in gymnasium.registry:
        gymnasium.register(
            id=_id,
            entry_point="twinloop.envs.single:TwinEnv",
            vector_entry_point="twinloop.envs.vector:TwinVectorEnv",
            kwargs=_options,
        )
