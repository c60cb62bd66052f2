"""A LeRobot folder frame by frame, for comparing an export with its source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.dataset.exporters.source import open_source
from twinloop.dataset.picture_sources import decoded_cells

RENUMBERED = ("episode_index", "index", "task_index")  # what an export counts anew


class PlayedFolder:
    """A LeRobot folder frame by frame; episodes are counted from 0 in the folder's order."""

    def __init__(self, path: Path | str, *, pictures: bool = True) -> None:
        self._source = open_source(path, pictures=pictures)
        self._episodes = list(self._source.episodes)

    @property
    def lengths(self) -> list[int]:
        """Frames of each episode."""
        return [self._source.length(episode) for episode in self._episodes]

    @property
    def cameras(self) -> list[str]:
        """Features with pictures."""
        return [*self._source.video_keys, *self._source.image_keys]

    def numbers(self, episode: int, frame: int) -> Mapping[str, NDArray[Any]]:
        """Numeric features, without those that an export counts anew."""
        keys = [key for key in self._source.numeric_keys() if key not in RENUMBERED]
        table = self._source.frames(self._episodes[episode], keys)
        return {key: np.asarray(table[key][frame].as_py(), dtype=_kind(table[key].type)).reshape(-1) for key in keys}

    def picture(self, episode: int, camera: str, frame: int) -> NDArray[np.uint8]:
        """One picture."""
        number = self._episodes[episode]
        if camera in self._source.image_keys:
            cell = self._source.frames(number, [camera])[camera].slice(frame, 1).to_pylist()
            return decoded_cells(cell, where=f"{self._source.path}: {camera} of episode {number}")[0]
        return self._source.clip(number, camera).pictures([frame])[0]


def _kind(type_: pa.DataType) -> Any:
    while pa.types.is_nested(type_):
        type_ = type_.value_type
    return type_.to_pandas_dtype()
