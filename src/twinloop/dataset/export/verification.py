"""Compare random frames of an export with its source, in numeric features and images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.core.plain import JsonRecord
from twinloop.core.seeds import generator
from twinloop.dataset.export.protocol import ExportReader
from twinloop.dataset.export.source import open_source
from twinloop.dataset.media.image_sources import decode_cells

RENUMBERED = ("episode_index", "index", "task_index")  # features that an export renumbers


class FolderReader:
    """Reader of single frames of a LeRobot folder; implements `ExportReader`.

    Episodes are counted from 0 in the folder's order, excluding episodes with missing files.

    Args:
        path: The folder.
        images: Whether to read videos.
    """

    def __init__(self, path: Path | str, *, images: bool = True) -> None:
        self._source = open_source(path, images=images)
        self._episodes = list(self._source.episodes)

    @property
    def lengths(self) -> list[int]:
        """Number of frames of each episode."""
        return [self._source.length(episode) for episode in self._episodes]

    @property
    def cameras(self) -> list[str]:
        """Keys of the features with images."""
        return [*self._source.video_keys, *self._source.image_keys]

    def read_numeric_features(self, episode: int, frame: int) -> Mapping[str, NDArray[Any]]:
        """Return the numeric features of one frame by feature key, excluding indices that an export renumbers."""
        keys = [key for key in self._source.numeric_keys() if key not in RENUMBERED]
        table = self._source.frames(self._episodes[episode], keys)
        return {
            key: np.asarray(table[key][frame].as_py(), dtype=_numpy_type(table[key].type)).reshape(-1) for key in keys
        }

    def read_image(self, episode: int, camera: str, frame: int) -> NDArray[np.uint8]:
        """Return one image ``(height, width, 3)`` of a camera."""
        number = self._episodes[episode]
        if camera in self._source.image_keys:
            cell = self._source.frames(number, [camera])[camera].slice(frame, 1).to_pylist()
            return decode_cells(cell, where=f"{self._source.path}: {camera} of episode {number}")[0]
        return self._source.clip(number, camera).decode_frames([frame])[0]


def _numpy_type(type_: pa.DataType) -> Any:
    while pa.types.is_nested(type_):
        type_ = type_.value_type
    return type_.to_pandas_dtype()


FRAMES = 10
LEAST_PSNR_DB = 30.0
"""Peak signal-to-noise ratio (PSNR) in dB below which two images are regarded as different.

Lossy coding of 8-bit camera images typically has 30 to 50 dB
(https://en.wikipedia.org/wiki/Peak_signal-to-noise_ratio, "typical values"); a wrong frame of a moving scene has less.
"""
_STREAM = "verify export"


@dataclass(frozen=True, kw_only=True)
class ExportVerification(JsonRecord):
    """Result of the comparison of an export's frames with those of the source.

    Attributes:
        frames: Number of compared frames.
        numbers: Keys of the compared numeric features.
        cameras: Feature keys of the compared cameras.
        largest_difference: Largest absolute difference of a number. Both values are rounded to float32 first, because
            LeRobot stores numbers in this type.
        psnr_db: Smallest peak signal-to-noise ratio (PSNR) of an image in dB; infinite if all images are equal.
        images_equal: Whether all compared images are equal.
        defects: Description of each difference that is not acceptable.
    """

    frames: int
    numbers: tuple[str, ...]
    cameras: tuple[str, ...]
    largest_difference: float
    psnr_db: float
    images_equal: bool
    defects: tuple[str, ...]
    json_names: ClassVar = {"largest_difference": "worst_number"}
    json_also = ("accepted",)

    @property
    def accepted(self) -> bool:
        """Whether there are no defects: numbers are equal as float32, and each image has a PSNR of at least 30 dB."""
        return not self.defects

    def __str__(self) -> str:
        words = [f"{self.frames} random frames: {len(self.numbers)} features equal"]
        if self.cameras:
            images = "equal" if self.images_equal else f"within {self.psnr_db:.1f} dB PSNR"
            words.append(f"images of {', '.join(self.cameras)} {images}")
        return "; ".join(words if self.accepted else [f"{self.frames} random frames", *self.defects])


def verify_export(
    source: ExportReader, export: ExportReader, episodes: Sequence[int], *, frames: int = FRAMES, seed: int = 0
) -> ExportVerification:
    """Compare random frames of an export with its source. Frames are drawn uniformly from all frames of the export.

    Args:
        source: Source of the export.
        export: The written export.
        episodes: For each episode of the export, the position of its source episode in ``source``.
        frames: Number of frames.
        seed: Seed of the random selection.

    Raises:
        DatasetError: If the export has another number of episodes, or no numeric feature in common with its source.
    """
    if len(export.lengths) != len(episodes):
        raise DatasetError(f"The export has {len(export.lengths)} episodes; {len(episodes)} were written.")
    defects = [
        f"episode {n} has {export.lengths[n]} frames, its source {source.lengths[e]}"
        for n, e in enumerate(episodes)
        if export.lengths[n] != source.lengths[e]
    ]
    seen = _ComparedFrames()
    for episode, frame in _draw_frames(export.lengths, frames, seed) if not defects else []:
        seen.compare(source, export, episodes[episode], episode, frame)
    if not defects and not seen.numbers:
        raise DatasetError("The export shares no numeric feature with its source: nothing could be compared.")
    return ExportVerification(
        frames=seen.frames,
        numbers=tuple(sorted(seen.numbers)),
        cameras=tuple(sorted(seen.cameras)),
        largest_difference=seen.worst,
        psnr_db=seen.psnr,
        images_equal=math.isinf(seen.psnr),
        defects=(*defects, *seen.defects),
    )


def psnr(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Return the peak signal-to-noise ratio of two 8-bit images in dB; infinite if they are equal."""
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return math.inf if error == 0 else 10 * math.log10(255.0**2 / error)


class _ComparedFrames:
    """Results of the frames compared so far: number of frames, largest difference, smallest PSNR and defects."""

    def __init__(self) -> None:
        self.frames, self.worst, self.psnr = 0, 0.0, math.inf
        self.numbers: set[str] = set()
        self.cameras: set[str] = set()
        self.defects: list[str] = []

    def compare(self, source: ExportReader, export: ExportReader, theirs: int, ours: int, frame: int) -> None:
        """Compare one frame in all features that both readers have; differences are added to ``defects``.

        Args:
            source: Reader of the source.
            export: Reader of the export.
            theirs: Position of the episode in ``source``.
            ours: Position of the episode in ``export``.
            frame: Index of the frame in the episode.
        """
        before, after, self.frames = (
            source.read_numeric_features(theirs, frame),
            export.read_numeric_features(ours, frame),
            self.frames + 1,
        )
        for key in before.keys() & after.keys():
            self.numbers.add(key)
            self._compare_numbers(key, before[key], after[key], f"frame {frame} of episode {ours}")
        for camera in set(source.cameras) & set(export.cameras):
            self.cameras.add(camera)
            one, other = source.read_image(theirs, camera, frame), export.read_image(ours, camera, frame)
            if one.shape != other.shape:
                self.defects.append(
                    f"{camera}: {other.shape[1]}x{other.shape[0]} images instead of {one.shape[1]}x{one.shape[0]}"
                )
                continue
            ratio = psnr(one, other)
            self.psnr = min(self.psnr, ratio)
            if ratio < LEAST_PSNR_DB:
                self.defects.append(f"{camera}: {ratio:.1f} dB at frame {frame} of episode {ours}")

    def _compare_numbers(self, key: str, before: NDArray[Any], after: NDArray[Any], where: str) -> None:
        if before.shape != after.shape:
            self.defects.append(f"{key} has {after.size} values instead of {before.size} at {where}")
            return
        one, other = before.astype(np.float32).astype(np.float64), after.astype(np.float32).astype(np.float64)
        both = np.isnan(one) & np.isnan(other)
        difference = np.abs(np.where(both, 0.0, one - other))
        worst = float(difference.max(initial=0.0)) if not np.isnan(difference).any() else math.inf
        self.worst = max(self.worst, worst)
        if worst:
            self.defects.append(f"{key} differs by {worst:.3g} at {where}")


def _draw_frames(lengths: Sequence[int], frames: int, seed: int) -> list[tuple[int, int]]:
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places = np.sort(generator(seed, _STREAM).choice(total, size=min(frames, total), replace=False))
    episodes = np.searchsorted(ends, places, side="right")
    starts = ends - np.asarray(lengths)
    return [(int(e), int(p - starts[e])) for e, p in zip(episodes, places, strict=True)]
