"""Pixels of a result counted, where the counts of its sources do not add up to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.dataset import layout
from twinloop.dataset.edit.item import Item
from twinloop.dataset.edit.source import Source
from twinloop.dataset.edit.totals import PooledPictures
from twinloop.dataset.edit.videos import CameraFiles
from twinloop.dataset.pictures import decoded
from twinloop.dataset.progress import CameraSum, Progress
from twinloop.dataset.statistics import image_stats, pixel_histogram, sample_indices
from twinloop.dataset.video import open_video

_NEAR = 0.25  # of a frame's period, as `DatasetReader.images`


def known_counts(key: str, items: Sequence[Item]) -> list[CameraSum] | None:
    """The pixel counts of the sources of one camera, if together they are those of the result.

    They are where every source keeps its counts, has all of its episodes in the result, and each once.
    """
    taken: dict[int, tuple[Source, list[int]]] = {}
    for item in items:
        taken.setdefault(id(item.source), (item.source, []))[1].append(item.index)
    found: list[CameraSum] = []
    for source, indices in taken.values():
        path = source.path / layout.PROGRESS
        if sorted(indices) != list(range(len(source))) or not path.is_file():
            return None
        counts = Progress.load(source.path).cameras.get(key.removeprefix("observation.images."))
        if counts is None or not counts.sampled:
            return None
        found.append(counts)
    return found


def counted_video(path: Path, start_s: float, length: int, fps: Fraction) -> CameraSum:
    """Pixel counts of evenly spaced pictures of one episode in a video.

    Raises:
        DatasetError: the file is damaged or has no picture at one of the times; names both.
    """
    chosen = sample_indices(length)
    histogram = np.zeros((3, 256), dtype=np.int64)
    for pixels in _pictures(path, [start_s + float(frame / fps) for frame in chosen.tolist()], float(fps)):
        histogram = histogram + pixel_histogram(pixels[None])
    return CameraSum(sampled=len(chosen), histogram=histogram)


def _pictures(path: Path, times_s: Sequence[float], fps: float) -> Iterator[NDArray[np.uint8]]:
    """Single pictures at ascending times, each from the key frame before it unless it is reached sooner by going on."""
    import av

    try:
        with open_video(path) as container:
            stream: Any = container.streams.video[0]
            for time_s in times_s:
                container.seek(max(int((time_s + 1e-6) / stream.time_base), 0), stream=stream, backward=True)
                near = None
                for frame in container.decode(stream):
                    away = (float((frame.pts or 0) * stream.time_base) - time_s) * fps
                    if abs(away) <= _NEAR:
                        near = frame
                    if away > -_NEAR:
                        break
                if near is None:
                    raise DatasetError(f"{path} has no frame at {time_s:.4f} s. Restore the file.")
                yield near.to_ndarray(format="rgb24")
    except (av.error.FFmpegError, IndexError) as error:
        raise DatasetError(f"{path} cannot be read as a video ({error}). Restore the file.") from error


def counted_cells(column: pa.ChunkedArray, *, where: str) -> CameraSum | None:
    """Pixel counts of evenly spaced pictures in a column; None where it holds paths instead of pictures."""
    chosen = sample_indices(len(column))
    cells = column.take(pa.array(chosen)).to_pylist()
    if any(not isinstance(cell, dict) or not cell.get("bytes") for cell in cells):
        return None
    histogram = sum(
        (pixel_histogram(decoded(cell["bytes"], where=where)[None]) for cell in cells), np.zeros((3, 256), np.int64)
    )
    return CameraSum(sampled=len(chosen), histogram=histogram)


class PixelCounts:
    """Statistics of the pictures of every episode of a result, for its rows and for all of it.

    An episode whose pictures are the source's keeps the source's statistics. What is not known of it is counted: all of
    it where its pictures were encoded anew or the source says nothing, and the pixels where only their quantiles over
    the whole result are wanted.
    """

    def __init__(
        self,
        stage: Path,
        items: Sequence[Item],
        cameras: Mapping[str, CameraFiles],
        images: Sequence[str],
        columns: Sequence[str],
        fps: Fraction,
    ) -> None:
        """``columns`` are the names of the episode table's columns that come from the sources."""
        self._stage, self._cameras, self._fps = stage, cameras, fps
        self._encoded = {key: set(files.encoded) for key, files in cameras.items()}
        self.pooled = {key: PooledPictures() for key in (*cameras, *images)}
        self._counted: set[str] = set()
        for key in self.pooled:
            known = known_counts(key, items) if not self._encoded.get(key) else None
            if known is not None:
                for one in known:
                    self.pooled[key].count(one.histogram, one.sampled)
            elif f"stats/{key}/q50" in columns or f"stats/{key}/mean" not in columns or self._encoded.get(key):
                self._counted.add(key)

    def of(self, at: int, item: Item, frames: pa.Table) -> dict[str, Any]:
        """The ``stats/*`` cells of episode ``at`` that are not the source's any more."""
        cells: dict[str, Any] = {}
        for key in self.pooled:
            counts = self._count(key, at, item, frames) if key in self._counted else None
            if counts is None:
                continue
            self.pooled[key].count(counts.histogram, counts.sampled)
            if at in self._encoded.get(key, ()):
                stats = image_stats(counts.histogram, counts.sampled)
                cells |= {f"stats/{key}/{name}": value for name, value in stats.items()}
        return cells

    def pool(self, rows: pa.Table) -> None:
        """Count the finished rows of a block in."""
        for key, pooled in self.pooled.items():
            names = [name for name in rows.column_names if name.startswith(f"stats/{key}/")]
            for row in rows.select(names).to_pylist() if names else [{}] * len(rows):
                pooled.add({name.rpartition("/")[2]: value for name, value in row.items()})

    def _count(self, key: str, at: int, item: Item, frames: pa.Table) -> CameraSum | None:
        if key not in self._cameras:
            return counted_cells(frames[key], where=f"{item.where}: {key}")
        place = self._cameras[key].places[at]
        path = self._stage / layout.of_block(layout.VIDEO_PATH, place.file, video_key=key)
        return counted_video(path, place.start_s, item.length, self._fps)
