"""Define the arrays that a policy reads, check them, and predict in groups of one fixed size; torch is not needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.core.contract import IMAGES, Contract
from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.policies.settings import CommonSettings
from twinloop.policies.statistics import LAST_COMMAND, MEMORY, action_size, vector_sizes

# Rows that a network processes at once when it acts. Always the same number, so that matrix products sum in the same
# order and an episode gets the same commands alone and among hundreds; fewer with images, which are slower. Our choice.
_TILE, _TILE_IMAGES = 16, 4

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ObservationLayout:
    """Names, shapes and types of the arrays that a policy reads.

    Attributes:
        contract: contract of the policy.
        settings: settings of the policy.
    """

    contract: Contract
    settings: CommonSettings

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of columns of each input vector, by key."""
        return vector_sizes(self.contract, last_command=self.settings.last_command)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Keys that an observation must have: vectors first, then images, then the policy's memory."""
        memory = (MEMORY,) if self.settings.memory_size else ()
        return (*self.sizes, *(IMAGES + name for name in self.contract.cameras), *memory)

    @property
    def tile(self) -> int:
        """Number of samples that a network processes at once when it acts."""
        return _TILE_IMAGES if self.contract.cameras else _TILE

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of one sample of an array."""
        if key == LAST_COMMAND:
            commands = (action_size(self.contract),)
            return (self.settings.n_obs_steps, *commands) if self.settings.command_history else commands
        if key == MEMORY:
            return (1 + self.settings.memory_size,)
        if key in self.sizes:
            return (self.settings.count_steps(key), self.sizes[key])
        return (self.settings.count_steps(key), *self.contract.cameras[key.removeprefix(IMAGES)], 3)

    def check(self, observation: Mapping[str, Any]) -> int:
        """Return the number of samples of an observation (arrays or tensors) after checking its arrays.

        Raises:
            InputError: If an array is missing, or has another shape or type.
        """
        missing = [key for key in self.keys if key not in observation]
        if missing:
            raise InputError(
                f"The observation has no {', '.join(missing)}, which the policy needs. It has: "
                f"{', '.join(observation) or 'no arrays'}."
            )
        counts = {key: len(observation[key]) for key in self.keys}
        for key in self.keys:
            shape, wanted = tuple(observation[key].shape), self.shape(key)
            if shape[1:] != wanted:
                raise InputError(
                    f"{key} has shape {shape}; the policy expects (n, {', '.join(map(str, wanted))})."
                    + (self._describe_memory() if shape[1:] == wanted[1:] else "")
                )
            if key.startswith(IMAGES) and str(observation[key].dtype).removeprefix("torch.") != "uint8":
                raise InputError(f"{key} is {observation[key].dtype}; the policy expects images in uint8, 0 to 255.")
        if len(set(counts.values())) != 1:
            raise InputError(f"The observation's arrays have different numbers of rows: {counts}.")
        return next(iter(counts.values()))

    def _describe_memory(self) -> str:
        """Return a sentence on the history that observations of one step lack."""
        return (
            f" It remembers {self.settings.n_obs_steps} control steps: run it with PolicyLoop, which keeps them, and "
            "call its restart at the start of every episode."
        )

    def predict_in_tiles(
        self, observation: Mapping[str, Any], noise: NDArray | None, predict: Callable[..., tuple[NDArray, NDArray]]
    ) -> tuple[Array, Array]:
        """Predict in groups of ``tile`` samples; the last group is filled up with its last sample.

        Args:
            observation: arrays (or tensors on the CPU) by key.
            noise: standard normal numbers ``(n, noise_size)``; None for `fixed_noise`.
            predict: function from the arrays of one group and its noise (or None) to chunks and features.

        Returns:
            Chunks ``(n, chunk_size, k)`` with k commands per step, and features ``(n, d)``.

        Raises:
            InputError: If an array is missing, or has another shape or type.
        """
        count = self.check(observation)
        arrays = {key: np.asarray(observation[key]) for key in self.keys}
        draws = None if noise is None else np.asarray(noise, dtype=np.float32)
        made = list[tuple[NDArray, NDArray]]()
        for start in range(0, count, self.tile):
            rows = np.arange(start, start + self.tile).clip(max=count - 1)
            part = {key: values[rows] for key, values in arrays.items()}
            made.append(predict(part, None if draws is None else draws[rows]))
        chunk, features = (np.concatenate(parts)[:count].astype(np.float64) for parts in zip(*made, strict=True))
        return chunk, features


def fixed_noise(size: int) -> NDArray[np.float32]:
    """Return the standard normal numbers ``(1, size)`` of a prediction without given noise, the same for every call."""
    drawn = ndtri(uniforms(0, "policy/fixed", 0, size=size)) if size else np.empty((1, 0))
    return np.asarray(drawn, dtype=np.float32).reshape(1, size)
