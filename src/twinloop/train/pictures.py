"""Pictures of the frames that are trained on: decoded once, then read from a file that memory maps."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.console import track
from twinloop.core.contract import IMAGES
from twinloop.core.errors import DatasetError, InputError
from twinloop.dataset.media.picture_sources import open_pictures
from twinloop.train.data import Data, Ints
from twinloop.train.sources import Listed

Pictures = NDArray[np.uint8]
_AT_ONCE = 256  # frames decoded at a time, 60 MB of 240x320


class PictureCache:
    """One camera's pictures of all frames of a `Data`, ``(N, height, width, 3)`` uint8 in a file.

    An episode is decoded when one of its frames is first asked for; from then on its pictures are read from the file,
    which the operating system keeps in memory as far as there is room.

    Args:
        data: whose frames.
        camera: as in ``observation.images.CAMERA``.
        size: (height, width) in pixels.
        folder: for the file, which is gone with the cache; by default the system's folder for such files.

    Raises:
        InputError: the file would not fit on the disk.
    """

    def __init__(self, data: Data, camera: str, size: tuple[int, int], *, folder: Path | None = None) -> None:
        self._data, self._camera, self._size = data, camera, size
        shape = (data.frames, *size, 3)
        try:
            with tempfile.TemporaryFile(prefix="twinloop-pictures-", dir=folder) as file:
                os.posix_fallocate(
                    file.fileno(), 0, max(1, int(np.prod(shape)))
                )  # a map of a full disk ends the process
                self._pictures: NDArray[np.uint8] = np.memmap(file, dtype=np.uint8, mode="r+", shape=shape)
        except OSError as error:
            weight = np.prod(shape) / 2**30
            raise InputError(
                f"The pictures of {camera} take {weight:.1f} GiB of disk and there is not as much ({error.strerror}). "
                "Name a roomier folder with TMPDIR, or render smaller pictures."
            ) from error
        self._there = np.zeros(len(data.episodes), dtype=np.bool_)
        self._sets: dict[Path, Mapping[str, Callable[[Sequence[int]], Pictures]]] = {}

    def read(self, frames: Ints) -> Pictures:
        """Pictures ``(…, height, width, 3)`` of frames ``(…)``.

        Raises:
            DatasetError: pictures are missing, damaged, or of another size; names the episode.
        """
        for episode in np.unique(self._data.episode_of(frames)):
            if not self._there[episode]:
                self._decode(int(episode))
        return self._pictures[frames]

    def fill(self) -> None:
        """Decode whatever is not there yet, with a bar."""
        for episode in track(np.flatnonzero(~self._there).tolist(), label=f"decoding {self._camera}"):
            self._decode(episode)

    def _decode(self, episode: int) -> None:
        listed, first = self._data.episodes[episode], int(self._data.first[episode])
        length = int(self._data.last[episode]) - first + 1
        read = self._reader(listed)
        for start in range(0, length, _AT_ONCE):
            rows = range(start, min(start + _AT_ONCE, length))
            pictures = read(list(rows))
            if pictures.shape != (len(rows), *self._size, 3):
                raise DatasetError(
                    f"{IMAGES}{self._camera} of {listed.where} is {pictures.shape}, and should be "
                    f"{(len(rows), *self._size, 3)}. Render the dataset again."
                )
            self._pictures[first + start : first + start + len(rows)] = pictures
        self._there[episode] = True

    def _reader(self, listed: Listed) -> Callable[[Sequence[int]], Pictures]:
        if listed.folder not in self._sets:
            episodes = open_pictures(listed.folder, self._camera).episodes
            self._sets[listed.folder] = {episode.name: episode.read for episode in episodes}
        return self._sets[listed.folder][f"episode {listed.index}"]


def open_caches(data: Data, folder: Path | None = None) -> dict[str, PictureCache]:
    """A cache for each camera of the data's contract; empty where the policy sees no pictures."""
    return {camera: PictureCache(data, camera, size, folder=folder) for camera, size in data.contract.cameras.items()}
