"""Build training samples: an observation history and the chunk of commands that follows, within one episode.

Images are decoded once into a memory-mapped file, from which later batches read them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import ACTION, IMAGES
from twinloop.core.errors import DatasetError, InputError
from twinloop.core.progress import track
from twinloop.dataset.media.image_sources import open_images
from twinloop.policies.policy import IS_PAD
from twinloop.policies.settings import CommonSettings
from twinloop.policies.statistics import LAST_COMMAND
from twinloop.train.data import Ints, TrainingFrames
from twinloop.train.sources import ListedEpisode

Images = NDArray[np.uint8]
_AT_ONCE = 256  # frames decoded at a time, 60 MB of 240x320


class ImageCache:
    """Decoded images of one camera for all N training frames, ``(N, height, width, 3)`` uint8, in a memory-mapped file.

    An episode is decoded when one of its frames is first read. Later reads use the file, which the operating system
    keeps in memory while there is room.

    Args:
        data: all training frames.
        camera: name of the camera, as in ``observation.images.CAMERA``.
        size: (height, width) in pixels.

    Raises:
        InputError: If the disk has too little space for the file.
    """

    def __init__(self, data: TrainingFrames, camera: str, size: tuple[int, int]) -> None:
        self._data, self._camera, self._size = data, camera, size
        shape = (data.frames, *size, 3)
        try:
            with tempfile.TemporaryFile(prefix="twinloop-images-") as file:
                os.posix_fallocate(
                    file.fileno(), 0, max(1, int(np.prod(shape)))
                )  # writing to a memory map on a full disk would kill the process
                self._images: NDArray[np.uint8] = np.memmap(file, dtype=np.uint8, mode="r+", shape=shape)
        except OSError as error:
            weight = np.prod(shape) / 2**30
            raise InputError(
                f"The images of {camera} need {weight:.1f} GiB of disk space, which is not free ({error.strerror}). "
                "Set TMPDIR to a folder with more space, or render smaller images."
            ) from error
        self._there = np.zeros(len(data.episodes), dtype=np.bool_)
        self._sets: dict[Path, Mapping[str, Callable[[Sequence[int]], Images]]] = {}

    def read(self, frames: Ints) -> Images:
        """Return the images of frames: for frame indices ``(…)``, an array ``(…, height, width, 3)``.

        Raises:
            DatasetError: If images are missing, damaged or of another size. The message names the episode.
        """
        for episode in np.unique(self._data.episode_of(frames)):
            if not self._there[episode]:
                self._decode(int(episode))
        return self._images[frames]

    def fill(self) -> None:
        """Decode all episodes that are not decoded yet, with a progress bar."""
        for episode in track(np.flatnonzero(~self._there).tolist(), label=f"decoding {self._camera}"):
            self._decode(episode)

    def _decode(self, episode: int) -> None:
        listed, first = self._data.episodes[episode], int(self._data.first[episode])
        length = int(self._data.last[episode]) - first + 1
        read = self._reader(listed)
        for start in range(0, length, _AT_ONCE):
            rows = range(start, min(start + _AT_ONCE, length))
            images = read(list(rows))
            if images.shape != (len(rows), *self._size, 3):
                raise DatasetError(
                    f"{IMAGES}{self._camera} of {listed.where} has shape {images.shape}, but should have "
                    f"{(len(rows), *self._size, 3)}. Render the dataset again."
                )
            self._images[first + start : first + start + len(rows)] = images
        self._there[episode] = True

    def _reader(self, listed: ListedEpisode) -> Callable[[Sequence[int]], Images]:
        if listed.folder not in self._sets:
            episodes = open_images(listed.folder, self._camera).episodes
            self._sets[listed.folder] = {episode.name: episode.read for episode in episodes}
        return self._sets[listed.folder][f"episode {listed.index}"]


def open_caches(data: TrainingFrames) -> dict[str, ImageCache]:
    """Return one image cache per camera of the data's contract, by camera; empty if the policy uses no images."""
    return {camera: ImageCache(data, camera, size) for camera, size in data.contract.cameras.items()}


class SampleBatches:
    """Source of batches: samples as tensors on one device, selected by frame.

    Before the start of an episode, its first observation is repeated. After its end, its last command is repeated and
    marked in ``action_is_pad``.

    Args:
        data: all frames; its columns are copied to the device once.
        settings: settings of the policy: observations and commands per sample, and whether it has
            ``observation.last_command``, the command of the previous step. At the first frame of an episode this is the
            measured joint positions, as if they were held.
        images: image cache per camera, if the policy uses images.
        device: torch device of the tensors.
    """

    def __init__(
        self,
        data: TrainingFrames,
        *,
        settings: CommonSettings,
        images: Mapping[str, ImageCache] | None = None,
        device: str = "cpu",
    ) -> None:
        self._columns = {key: torch.from_numpy(np.ascontiguousarray(v)).to(device) for key, v in data.columns.items()}
        lengths = data.last - data.first + 1
        self._first = torch.from_numpy(np.repeat(data.first, lengths)).to(device)
        self._last = torch.from_numpy(np.repeat(data.last, lengths)).to(device)
        self._before = torch.arange(1 - settings.n_obs_steps, 1, device=device)
        self._after = torch.arange(settings.chunk_size, device=device)
        held = data.held_commands(np.arange(data.frames)) if settings.last_command else None
        self._held = None if held is None else torch.from_numpy(held).to(device)
        self._images, self.device, self._settings = dict(images or {}), device, settings

    def batch(self, frames: Ints) -> dict[str, Tensor]:
        """Return the samples of the given frames ``(n,)``.

        Returns:
            Each observation ``(n, steps, …)`` by its key, ``action`` ``(n, chunk_size, k)`` for k joints, and
            ``action_is_pad`` ``(n, chunk_size)``. Values are float32 in the dataset's units; images are ``(n,
            steps, h, w, 3)`` uint8.
        """
        at = torch.from_numpy(np.ascontiguousarray(frames)).to(self.device)
        first, last = self._first[at], self._last[at]
        past = torch.maximum(at[:, None] + self._before, first[:, None])
        ahead = at[:, None] + self._after
        is_pad = ahead > last[:, None]
        count = self._settings.count_steps
        made = {key: values[past[:, -count(key) :]] for key, values in self._columns.items() if key != ACTION}
        made[ACTION] = self._columns[ACTION][torch.minimum(ahead, last[:, None])]
        made[IS_PAD] = is_pad
        if self._held is not None:
            made[LAST_COMMAND] = self._held[past if self._settings.command_history else at]
        for camera, cache in self._images.items():
            made[IMAGES + camera] = torch.from_numpy(cache.read(past[:, -count(IMAGES + camera) :].cpu().numpy())).to(
                self.device
            )
        return made
