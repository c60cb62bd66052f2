"""Provide a Gymnasium `Env` with one world, made from the vector environment with one environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.envs.batch import WorldBatch
from twinloop.envs.vector import TwinVectorEnv


class TwinEnv(gymnasium.Env[Any, NDArray[np.floating]]):
    """Gymnasium environment with one world.

    `EnvOptions` describes the keyword arguments. `TwinVectorEnv` describes the results of a step and the infos.
    ``reset(seed=s)`` starts run s with episode 0, or with the episode number in ``options["episodes"]``. ``reset()``
    starts the next episode.

    Raises:
        TwinloopError: If an option is invalid, or the twin does not fit the goal.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        if "autoreset_mode" in options:
            raise InputError("A single environment has no autoreset. Leave autoreset_mode out, or use make_vec.")
        self._vector = TwinVectorEnv(1, **options, autoreset_mode=AutoresetMode.DISABLED)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": self._vector.metadata["render_fps"]}
        self.render_mode = self._vector.render_mode
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; return the first observation and the infos. See `TwinVectorEnv.reset` for the arguments."""
        super().reset(seed=seed)
        observation, infos = self._vector.reset(seed=seed, options=options)
        return _drop_world_axis(observation), _drop_info_axis(infos)

    def step(self, action: NDArray[np.floating]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Run one control step.

        Returns:
            Observation, reward, terminated, truncated and infos, as in `TwinVectorEnv.step` but for one environment.
        """
        observation, reward, terminated, truncated, infos = self._vector.step(np.asarray(action)[None])
        return (
            _drop_world_axis(observation),
            float(reward[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            _drop_info_axis(infos),
        )

    def render(self) -> NDArray[np.uint8] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return an RGB image, ``(height, width, 3)`` uint8, or None if ``render_mode`` is None."""
        images = self._vector.render()
        return None if images is None else images[0]

    def close(self) -> None:
        """Close the renderer and release its memory."""
        self._vector.close()

    @property
    def worlds(self) -> WorldBatch:
        """Batch with the one running world: true state, command, episode number and drawn parameters."""
        return self._vector.worlds

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Name of each element of a flat observation, such as ``elbow_flex/reading``."""
        return self._vector.observation_names

    @property
    def task(self) -> str:
        """Name of the task (the option ``goal``)."""
        return self._vector.task

    @property
    def task_description(self) -> str:
        """Instruction in words, for a language-conditioned policy."""
        return self._vector.task_description


def _drop_world_axis(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {name: _drop_world_axis(value) for name, value in observation.items()}
    return observation[0]


def _drop_info_axis(infos: dict[str, Any]) -> dict[str, Any]:
    """Return the infos of the only environment as single values, excluding the masks of Gymnasium's vector infos."""
    return {
        name: _drop_info_axis(value) if isinstance(value, dict) else value[0]
        for name, value in infos.items()
        if not name.startswith("_")
    }
