"""Provide Gymnasium environments with randomized worlds; importing this package registers them.

`TwinVectorEnv` is a vector environment: many worlds, one per environment, on a backend of `simulate`. `TwinEnv` is the
same with one world.
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
from twinloop.tasks.goals import ARM_GOALS
from twinloop.twin.robot_names import ARMS

__all__ = ["IDS", "EnvOptions", "TwinEnv", "TwinVectorEnv"]

IDS = {
    f"twinloop/{goal.title().replace('_', '')}-{arm}-v0": {"twin": twin, "goal": goal}
    for goal in ARM_GOALS
    for arm, twin in ARMS.items()
}
"""Registered environment ids, such as ``twinloop/NAME-ARM-v0``, with their options ``twin`` and ``goal``.

``twinloop/Task-v0`` is registered, too; it has neither, so that a twin must be given.
"""

for _id, _options in {**IDS, "twinloop/Task-v0": {}}.items():
    if _id not in gymnasium.registry:
        gymnasium.register(
            id=_id,
            entry_point="twinloop.envs.single:TwinEnv",
            vector_entry_point="twinloop.envs.vector:TwinVectorEnv",
            kwargs=_options,
        )
