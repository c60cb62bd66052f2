"""Samples: a history of observations and the chunk of commands that followed, never across episodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import ACTION, IMAGES, STATE
from twinloop.policies.policy import IS_PAD
from twinloop.policies.statistics import LAST_COMMAND
from twinloop.train.data import Data, Ints
from twinloop.train.pictures import PictureCache


class Samples:
    """Batches of samples by the frames that they are of, as tensors on one device.

    Before an episode begins, its first observation stands; after it ends, its last command, marked in
    ``action_is_pad``.

    Args:
        data: all frames; its columns are copied to the device once.
        n_obs_steps: observations of a sample, the newest last.
        chunk_size: commands of a sample, the first issued at its frame.
        last_command: whether a sample has ``observation.last_command`` ``(n, k)``: what was issued the step before, at
            an episode's first frame the joints' readings, as if they were held.
        pictures: by camera, where the policy sees any.
        device: where the tensors are.
    """

    def __init__(
        self,
        data: Data,
        *,
        n_obs_steps: int,
        chunk_size: int,
        last_command: bool = False,
        pictures: Mapping[str, PictureCache] | None = None,
        device: str = "cpu",
    ) -> None:
        self._columns = {key: torch.from_numpy(np.ascontiguousarray(v)).to(device) for key, v in data.columns.items()}
        lengths = data.last - data.first + 1
        self._first = torch.from_numpy(np.repeat(data.first, lengths)).to(device)
        self._last = torch.from_numpy(np.repeat(data.last, lengths)).to(device)
        self._before = torch.arange(1 - n_obs_steps, 1, device=device)
        self._after = torch.arange(chunk_size, device=device)
        self._pictures, self._last_command, self.device = dict(pictures or {}), last_command, device

    def batch(self, frames: Ints) -> dict[str, Tensor]:
        """The samples of frames ``(n,)``.

        Returns:
            Each observation ``(n, n_obs_steps, …)`` by its key, ``action`` ``(n, chunk, k)`` and ``action_is_pad``
            ``(n, chunk)``; float32 in the dataset's units, pictures ``(n, n_obs_steps, h, w, 3)`` uint8.
        """
        at = torch.from_numpy(np.ascontiguousarray(frames)).to(self.device)
        first, last = self._first[at], self._last[at]
        past = torch.maximum(at[:, None] + self._before, first[:, None])
        ahead = at[:, None] + self._after
        is_pad = ahead > last[:, None]
        made = {key: values[past] for key, values in self._columns.items() if key != ACTION}
        made[ACTION] = self._columns[ACTION][torch.minimum(ahead, last[:, None])]
        made[IS_PAD] = is_pad
        if self._last_command:
            held = self._columns.get(STATE, self._columns[ACTION])[at]
            made[LAST_COMMAND] = torch.where((at == first)[:, None], held, self._columns[ACTION][(at - 1).clamp(min=0)])
        for camera, cache in self._pictures.items():
            made[IMAGES + camera] = torch.from_numpy(cache.read(past.cpu().numpy())).to(self.device)
        return made
