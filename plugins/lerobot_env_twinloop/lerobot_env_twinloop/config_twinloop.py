"""Options of the environment type ``twinloop``, which make the vector environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gymnasium.vector import VectorEnv
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig
from lerobot.utils.constants import ACTION, OBS_ENV_STATE, OBS_IMAGES, OBS_STATE

from twinloop.envs import TwinVectorEnv

_RANDOMIZATION: dict[str, Any] = {"default": "default", "none": None}
_KINDS = {"agent_pos": (FeatureType.STATE, OBS_STATE), "environment_state": (FeatureType.ENV, OBS_ENV_STATE)}


@EnvConfig.register_subclass("twinloop")
@dataclass
class TwinloopEnv(EnvConfig):
    """Options of the worlds; ``--env.type=twinloop``.

    Attributes:
        task: Name of a task, or the user's class ``path/to/file.py:Class``.
        twin: Name of a twin, or its file.
        cameras: Cameras whose images a policy gets.
        environment_state: Whether a policy gets the tracked poses of the objects, as in datasets that were generated
            with ``environment_state: true``.
        randomization: ``default`` (all parameters with a default range vary), ``none`` (nominal worlds), or the folder
            of a run of ``twinloop identify``, whose estimate and uncertainty the worlds are drawn from.
        height: Height of the images in px.
        width: Width of the images in px.
        camera: Camera of the videos; empty for the first one of the twin.
        episode_length: Control steps of an episode; 0 for those of the task.
        nthread: Threads that simulate; 0 for all cores.
        fps: Control rate; the twin's, whatever is given.
    """

    task: str | None = "pick_and_place"
    twin: str = "so101_tabletop"
    cameras: list[str] = field(default_factory=list[str])
    environment_state: bool = False
    randomization: str = "default"
    height: int = 240
    width: int = 320
    camera: str = ""
    episode_length: int = 0
    nthread: int = 0

    def __post_init__(self) -> None:
        """Set the rate and the features that the worlds have."""
        env = self._make_env(1)
        self.fps = env.metadata["render_fps"]
        self.features = {ACTION: PolicyFeature(type=FeatureType.ACTION, shape=env.single_action_space.shape)}
        self.features_map = {ACTION: ACTION}
        for key, space in env.single_observation_space.spaces.items():
            if key in _KINDS:
                self._add_feature(key, _KINDS[key][0], space.shape, _KINDS[key][1])
        for camera in self.cameras:
            key = f"{OBS_IMAGES}.{camera}"
            self._add_feature(key, FeatureType.VISUAL, (self.height, self.width, 3), key)
        env.close()

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of `twinloop.envs.TwinVectorEnv`."""
        name = self.randomization
        return {
            "twin": self.twin,
            "goal": self.task,
            "randomization": _RANDOMIZATION.get(name, {"identified": name}),
            "observation": "lerobot",
            "action": "dataset",
            "reward": "sparse",
            "cameras": tuple(self.cameras),
            "environment_state": self.environment_state,
            "height": self.height,
            "width": self.width,
            "camera": self.camera or None,
            "render_mode": "rgb_array",
            "max_episode_steps": self.episode_length or None,
            "nthread": self.nthread,
            "autoreset_mode": "SameStep",  # LeRobot reads success from final_info, which only this mode has
        }

    def create_envs(self, n_envs: int, use_async_envs: bool = False) -> dict[str, dict[int, VectorEnv]]:
        """Return one batch of ``n_envs`` worlds; they run on threads, so ``use_async_envs`` has no effect."""
        return {self.type: {0: self._make_env(n_envs)}}

    def _add_feature(self, key: str, kind: FeatureType, shape: tuple[int, ...], name: str) -> None:
        self.features[key], self.features_map[key] = PolicyFeature(type=kind, shape=shape), name

    def _make_env(self, n_envs: int) -> TwinVectorEnv:
        return TwinVectorEnv(n_envs, **self.gym_kwargs)
