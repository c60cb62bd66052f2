"""Frames of an exported robomimic file, named as the dataset that it was made from names them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.dataset import robomimic_layout as names


class PlayedRobomimic:
    """One robomimic file that `export` wrote, open for comparing; see `Played`."""

    def __init__(self, path: Path) -> None:
        h5py = names.import_h5py(f"{path} is an HDF5 file, and nothing here reads those.")
        try:
            self._file = h5py.File(path, "r")
            self._about = json.loads(self._file["data"].attrs[names.OURS])
        except (OSError, KeyError, ValueError) as error:
            raise DatasetError(f"{path} is no robomimic file that twinloop wrote ({error}).") from error
        self._demos = [self._file[f"data/demo_{i}"] for i in range(len(self._file["data"]))]

    @property
    def lengths(self) -> Sequence[int]:
        """Frames of each demonstration."""
        return [int(demo.attrs["num_samples"]) for demo in self._demos]

    @property
    def cameras(self) -> Sequence[str]:
        """Feature keys of the pictures that are there."""
        return [self._known[key]["feature"] for key in self._demos[0]["obs"] if key.endswith("_image")]

    def numbers(self, episode: int, frame: int) -> Mapping[str, NDArray[Any]]:
        """Action, observations and what else is there, of one frame."""
        demo = self._demos[episode]
        found = {"action": np.asarray(demo[names.OURS][names.ACTION][frame])}
        for key, known in self._known.items():
            if key in demo["obs"] and not key.endswith("_image"):
                found[known["feature"]] = np.asarray(demo["obs"][key][frame]).astype(known["dtype"])
        return found

    def picture(self, episode: int, camera: str, frame: int) -> NDArray[np.uint8]:
        """One picture."""
        return np.asarray(self._demos[episode]["obs"][names.observation_key(camera)][frame])

    @property
    def _known(self) -> dict[str, Any]:
        return self._about["observations"]


def play(path: Path) -> PlayedRobomimic:
    """Open an exported file.

    Raises:
        DatasetError: it is none that twinloop wrote.
        MissingDependencyError: h5py is not installed.
    """
    return PlayedRobomimic(path)
