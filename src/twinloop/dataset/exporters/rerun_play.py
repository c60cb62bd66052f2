"""Frames of an exported Rerun recording, named as the dataset that it was made from names them."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.documents import parse_json
from twinloop.core.errors import DatasetError, MissingDependencyError
from twinloop.dataset.exporters.streams import PICTURES

APPLICATION = "twinloop"


class PlayedRerun:
    """The recordings that `export` wrote, open for comparing; see `Played`."""

    def __init__(self, path: Path) -> None:
        files = sorted(path.glob("*.rrd")) if path.is_dir() else [path]
        if not files:
            raise DatasetError(f"{path} holds no .rrd file.")
        self._recordings = [_Recording(file) for file in files]

    @property
    def lengths(self) -> Sequence[int]:
        """Frames of each episode."""
        return [int(recording.facts["frames"]) for recording in self._recordings]

    @property
    def cameras(self) -> Sequence[str]:
        """Feature keys of the pictures that are there."""
        first = self._recordings[0]
        keys = [key for key in first.facts["features"] if key.startswith(PICTURES)]
        return [key for key in keys if first.holds(_camera(key))]

    def numbers(self, episode: int, frame: int) -> Mapping[str, NDArray[Any]]:
        """Every numeric feature of one frame."""
        recording, found = self._recordings[episode], {}
        for key, entry in recording.facts["features"].items():
            if recording.holds(entity := f"/dataset/{_escaped(key)}"):
                found[key] = np.array(recording.scalars(entity)[frame], dtype=np.float64).astype(entry["dtype"])
        return found

    def picture(self, episode: int, camera: str, frame: int) -> NDArray[np.uint8]:
        """One picture."""
        return self._recordings[episode].pictures(_camera(camera))[frame]


class _Recording:
    """One file, whose chunks are read once."""

    def __init__(self, path: Path) -> None:
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        for entity, batch in _chunks(path):
            self._batches.setdefault(entity, []).append(batch)
        if "/features" not in self._batches:
            raise DatasetError(f"{path} was not exported by twinloop: it has no features.")
        self.facts: dict[str, Any] = parse_json(
            self._cells("/features", "TextDocument:text")[0][0], where=f"{path}: features"
        )

    def holds(self, entity: str) -> bool:
        """Whether there is anything of an entity."""
        return entity in self._batches

    def scalars(self, entity: str) -> list[list[float]]:
        """The numbers of an entity, in order of time."""
        return self._cells(entity, "Scalars:scalars")

    @functools.lru_cache(maxsize=2)  # noqa: B019 - the object lives as long as a comparison
    def pictures(self, entity: str) -> list[NDArray[np.uint8]]:
        """The pictures of an entity, in order of time."""
        if encoded := self._cells(entity, "EncodedImage:blob"):
            from PIL import Image

            return [np.asarray(Image.open(io.BytesIO(bytes(cell[0]))).convert("RGB")) for cell in encoded]
        shown = [cell[0] for cell in self._cells(entity, "VideoFrameReference:timestamp")]
        return _shown(bytes(self._cells(entity, "AssetVideo:blob")[0][0]), shown)

    def _cells(self, entity: str, component: str) -> list[Any]:
        """The values of each row of a component, in order of time."""
        rows: list[tuple[Any, Any]] = []
        for batch in self._batches[entity]:
            if component in batch.schema.names:
                cells = batch[component].to_pylist()
                times = (
                    batch["time"].to_numpy(zero_copy_only=False) if "time" in batch.schema.names else [0] * len(cells)
                )
                rows += [(time, cell) for time, cell in zip(times, cells, strict=True) if cell]
        return [cell for _, cell in sorted(rows, key=lambda row: row[0])]


def _shown(video: bytes, timestamps: Sequence[int]) -> list[NDArray[np.uint8]]:
    """The picture of a video at each time in ns."""
    import av

    with av.open(io.BytesIO(video)) as container:
        stream = container.streams.video[0]
        frames: dict[int, NDArray[np.uint8]] = {
            round(float((frame.pts or 0) * (stream.time_base or 1)) * 1e6): np.asarray(
                frame.to_ndarray(format="rgb24"), dtype=np.uint8
            )
            for frame in container.decode(stream)
        }
    at = np.array(sorted(frames))
    return [frames[int(at[np.argmin(np.abs(at - when / 1e3))])] for when in timestamps]


def _chunks(path: Path) -> Iterator[tuple[str, pa.RecordBatch]]:
    try:
        from rerun.chunk import RrdReader  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            "Rerun recordings are read by rerun-sdk 0.41 or newer, which is not installed.",
            remedy="pip install 'twinloop[rerun]'",
        ) from error
    for chunk in RrdReader(str(path)).stream():
        yield str(chunk.entity_path), chunk.to_record_batch()


def _escaped(name: str) -> str:
    import rerun  # pyright: ignore[reportMissingImports]

    return str(rerun.escape_entity_path_part(name))


def _camera(key: str) -> str:
    return f"/cameras/{_escaped(key.removeprefix(PICTURES))}"


def play(path: Path) -> PlayedRerun:
    """Open exported recordings.

    Raises:
        DatasetError: there is none that twinloop wrote.
        MissingDependencyError: rerun-sdk is not installed.
    """
    return PlayedRerun(path)
