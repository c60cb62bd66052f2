"""What pictures of an episode look like, in a few numbers a frame: read once, small enough to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.recording import Recording
from twinloop.encoders.sharpness import block_means, sharpness

Array = NDArray[np.floating[Any]]

_CHUNK = 64  # frames in memory at a time: 55 MB of 640 × 480
_BLOCKS = 24  # rows of the grid on which change is seen: blocks average an encoder's and a sensor's noise away
_THUMB = 8  # rows and columns of the mean picture
_GREY = np.full(3, 1 / 3, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class Looks:
    """One camera of one episode.

    ``level`` ``(T,)`` is the mean brightness of each picture, ``contrast`` ``(T,)`` the standard deviation within it,
    both 0 to 255; ``change`` ``(T − 1,)`` by how much the block of a grid that changed most did; ``sharpness`` ``(T,)``
    the logarithm of the energy of brightness steps from pixel to pixel over that over four pixels, which light and
    contrast do not move; ``thumb`` ``(8, 8, 3)`` the mean picture.
    """

    level: Array
    contrast: Array
    change: Array
    sharpness: Array
    thumb: Array


def looks_of(recording: Recording, camera: str) -> Looks:
    """What a camera saw.

    Raises:
        TwinloopError: the pictures cannot be read.
    """
    return recording.fact(f"looks/{camera}", lambda asked: _looks(asked, camera))


def _looks(recording: Recording, camera: str) -> Looks:
    parts: list[tuple[Array, ...]] = []
    before: Array | None = None
    for begin in range(0, recording.frames, _CHUNK):
        pictures = recording.pictures(camera, range(begin, min(begin + _CHUNK, recording.frames)))
        grey = pictures.astype(np.float32) @ _GREY
        grid = block_means(grey, max(1, grey.shape[1] // _BLOCKS))
        joined = grid if before is None else np.concatenate([before, grid])
        change = np.abs(np.diff(joined, axis=0)).max(axis=(1, 2), initial=0.0)
        parts.append((grey.mean(axis=(1, 2)), grey.std(axis=(1, 2)), change, sharpness(grey), _summed(pictures)))
        before = grid[-1:]
    level, contrast, change, sharp = (np.concatenate([part[i] for part in parts]).astype(float) for i in range(4))
    thumb = _thumb(np.sum([part[4] for part in parts], axis=0) / recording.frames)
    return Looks(level=level, contrast=contrast, change=change, sharpness=sharp, thumb=thumb)


def _summed(pictures: NDArray[np.uint8]) -> Array:
    return pictures.sum(axis=0, dtype=np.uint32).astype(np.float64)


def _thumb(mean: Array) -> Array:
    """A picture ``(h, w, 3)`` in few rows and columns; what is left over at the edges is cut off."""
    tall, wide = (max(1, size // _THUMB) for size in mean.shape[:2])
    rows, columns = min(_THUMB, mean.shape[0] // tall), min(_THUMB, mean.shape[1] // wide)
    cut = mean[: rows * tall, : columns * wide]
    return cut.reshape(rows, tall, columns, wide, 3).mean(axis=(1, 3))
