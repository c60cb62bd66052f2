"""Compute the statistics of an edited dataset: exact for numbers, from sampled images for pixel quantiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.dataset.edit.rows import SourceEpisode, column_slices, read_chunks, stack_features
from twinloop.dataset.edit.source import EditSource
from twinloop.dataset.edit.videos import CameraFiles
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.progress import CameraSum, WriteProgress
from twinloop.dataset.lerobot.statistics import (
    QUANTILES,
    Moments,
    column_stats,
    image_stats,
    pixel_histogram,
    sample_indices,
    stream_quantiles,
    take_columns,
)
from twinloop.dataset.lerobot.tables import statistics_columns
from twinloop.dataset.media.depth import DepthCoding, count_codes, decode_codes, depth_stats, is_depth
from twinloop.dataset.media.images import decode_image
from twinloop.dataset.media.video import open_video

_POOLED = ("min", "max", "mean", "std", "count")


@dataclass(kw_only=True)
class FrameTotals:
    """Statistics over all frames written so far.

    Attributes:
        widths: Keys of the numeric features, each with its number of values per frame.
        moments: Count, extremes, mean and variance of the numeric features, per column; None before the first
            episode.
        images: Image statistics of each camera, by feature key.
    """

    widths: Mapping[str, int]
    moments: Moments | None = None
    images: dict[str, PooledImageStatistics] = field(default_factory=dict)

    def add(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, pa.Array]:
        """Add the numeric features of one episode; return its own ``stats/*`` columns of the episode table.

        Args:
            columns: Values of each feature, shape ``(T, width)``.
        """
        values = stack_features(columns)
        own = Moments.of(values)
        self.moments = own if self.moments is None else self.moments.merge(own)
        return statistics_columns(column_slices(self.widths), [values])

    def stats(self, paths: Sequence[Path], features: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of ``stats.json``; empty before the first episode.

        Args:
            paths: Written data files, from which the quantiles are computed.
            features: The features of ``info.json``.
        """
        if self.moments is None:
            return {}
        slices = column_slices(self.widths)
        wide = [
            name for name, where in slices.items() if self._needs_64_bits(where) and "int" in features[name]["dtype"]
        ]
        levels = stream_quantiles(lambda: read_chunks(paths, self.widths), self.moments.count, wide=wide)
        result: dict[str, Any] = {}
        for name, where in slices.items():
            shape = [int(side) for side in features[name].get("shape") or [1]]
            row = column_stats(take_columns(self.moments, where), levels[name])
            result[name] = row if len(shape) < 2 else {k: _reshape_values(k, v, shape) for k, v in row.items()}
        return {**result, **{key: pooled.stats() for key, pooled in self.images.items()}}

    def _needs_64_bits(self, where: slice) -> bool:
        """Return whether the columns ``where`` have values that are negative or at least 2^32.

        Quantiles of whole numbers then need 64-bit instead of 32-bit keys.
        """
        return self.moments is not None and (
            self.moments.low[where].min() < 0 or self.moments.high[where].max() >= 2.0**32
        )


def _reshape_values(name: str, values: list[Any], shape: Sequence[int]) -> list[Any]:
    return values if name == "count" else np.reshape(values, shape).tolist()


@dataclass(kw_only=True)
class PooledImageStatistics:
    """Image statistics of one camera over all episodes.

    Extremes, mean and standard deviation are merged exactly from the statistics of the episodes, which were computed
    before encoding. Quantiles cannot be merged; they come from the histogram of sampled images.

    Attributes:
        moments: Merged statistics of the episodes, with ``(3,)`` values for the colour channels.
        pixels: Histogram of sampled images.
        complete: Whether every episode had statistics. If not, all values come from the histogram.
        coding: Coding of depth, whose histogram counts codes; None for colour.
    """

    moments: Moments | None = None
    pixels: CameraSum | None = None
    complete: bool = True
    coding: DepthCoding | None = None

    def count_stats(self, counts: CameraSum) -> dict[str, Any]:
        """Return LeRobot's statistics of the images that a histogram counts."""
        if self.coding is None:
            return image_stats(counts.histogram, counts.sampled)
        return depth_stats(counts.histogram, counts.sampled, self.coding)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the image statistics of one episode (``min``, ``max``, ``mean``, ``std`` and ``count``).

        If one is missing, ``complete`` becomes false.
        """
        if any(row.get(name) is None for name in _POOLED):
            self.complete = False
            return
        count = int(np.ravel(row["count"])[0])
        low, high, mean, std = (np.ravel(row[name]).astype(np.float64) for name in _POOLED[:4])
        own = Moments(count=count, low=low, high=high, mean=mean, m2=std**2 * count)
        self.moments = own if self.moments is None else self.moments.merge(own)

    def add_histogram(self, histogram: NDArray[np.int64], sampled: int) -> None:
        """Add the pixel histogram of ``sampled`` images: ``(3, 256)`` (channel, value), of depth ``(4096,)`` (code)."""
        before = self.pixels
        self.pixels = CameraSum(
            sampled=sampled + (before.sampled if before else 0),
            histogram=histogram + (before.histogram if before else 0),
        )

    def stats(self) -> dict[str, Any]:
        """Return the camera's entry of ``stats.json``; empty if no statistics exist."""
        counted = self.count_stats(self.pixels) if self.pixels and self.pixels.sampled else {}
        if self.moments is None or not self.complete:
            return counted
        whole = column_stats(self.moments, {})
        pooled = {name: [[[value]] for value in whole[name]] for name in _POOLED[:4]}
        # Pixels decoded from a lossy video may exceed the extremes before encoding.
        low, high = self.moments.low, self.moments.high
        inside = {name: np.clip(np.ravel(counted[name]), low, high) for name in QUANTILES if name in counted}
        levels = {name: [[[value]] for value in values.tolist()] for name, values in inside.items()}
        return {**pooled, **levels, "count": whole["count"]}


_NEAR = 0.25  # of a frame's period, as `DatasetReader.images`


def find_stored_counts(key: str, items: Sequence[SourceEpisode]) -> list[CameraSum] | None:
    """Return the stored pixel histograms of the source datasets for one camera, if they are also valid for the result.

    They are valid if every source has a histogram and each of its episodes is in the result exactly once. Otherwise
    return None.

    Args:
        key: Feature key of the camera.
        items: All episodes of the result.
    """
    taken: dict[int, tuple[EditSource, list[int]]] = {}
    for item in items:
        taken.setdefault(id(item.source), (item.source, []))[1].append(item.index)
    found: list[CameraSum] = []
    for source, indices in taken.values():
        path = source.path / layout.PROGRESS
        if sorted(indices) != list(range(len(source))) or not path.is_file():
            return None
        counts = WriteProgress.load(source.path).cameras.get(key.removeprefix("observation.images."))
        if counts is None or not counts.sampled:
            return None
        found.append(counts)
    return found


def count_video_pixels(path: Path, start_s: float, length: int, fps: Fraction, *, depth: bool = False) -> CameraSum:
    """Compute the pixel histogram of evenly spaced images (at most 12) of one episode in a video file.

    Args:
        path: The video file.
        start_s: Time of the episode's first frame in the file, in s.
        length: Number of frames of the episode.
        fps: Frame rate in Hz.
        depth: Whether the images are depth, whose codes are counted.

    Raises:
        DatasetError: If the file is damaged or has no image at one of the times.
    """
    chosen = sample_indices(length)
    if depth:
        codes = decode_codes(
            path, [start_s + float(frame / fps) for frame in chosen.tolist()], tolerance_s=_NEAR / float(fps)
        )
        return CameraSum(sampled=len(chosen), histogram=count_codes(codes))
    histogram = np.zeros((3, 256), dtype=np.int64)
    for pixels in _decode_images(path, [start_s + float(frame / fps) for frame in chosen.tolist()], float(fps)):
        histogram = histogram + pixel_histogram(pixels[None])
    return CameraSum(sampled=len(chosen), histogram=histogram)


def _decode_images(path: Path, times_s: Sequence[float], fps: float) -> Iterator[NDArray[np.uint8]]:
    """Yield the images at ascending times in s. For each image, decoding starts at the preceding key frame."""
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


def count_column_pixels(column: pa.ChunkedArray, *, where: str) -> CameraSum | None:
    """Compute the pixel histogram of evenly spaced images (at most 12) in a table column of encoded images.

    Args:
        column: The encoded images, one per frame.
        where: Description of the column, for error messages.

    Returns:
        The histogram and the number of sampled images; None if a sampled cell has no encoded image.
    """
    chosen = sample_indices(len(column))
    cells = column.take(pa.array(chosen)).to_pylist()
    if any(not isinstance(cell, dict) or not cell.get("bytes") for cell in cells):
        return None
    histogram = sum(
        (pixel_histogram(decode_image(cell["bytes"], where=where)[None]) for cell in cells),
        np.zeros((3, 256), np.int64),
    )
    return CameraSum(sampled=len(chosen), histogram=histogram)


class PixelCounts:
    """Image statistics of an edited dataset and of its episodes.

    Episodes with copied images keep the statistics of their source. Pixels of sampled images are counted if images were
    re-encoded. They are also counted if the episode table has no statistics that can be merged, and the stored
    histograms of the sources are missing or do not have exactly the same episodes as the result.
    """

    def __init__(
        self,
        stage: Path,
        items: Sequence[SourceEpisode],
        cameras: Mapping[str, CameraFiles],
        images: Sequence[str],
        columns: Sequence[str],
        fps: Fraction,
    ) -> None:
        """Load the stored pixel histograms of the sources.

        Args:
            stage: Temporary folder of the edited dataset, with its videos.
            items: All episodes of the edited dataset.
            cameras: Written video files, by feature key.
            images: Keys of the features with images in the data table.
            columns: Names of the episode table's columns that are copied from the sources.
            fps: Frame rate in Hz.
        """
        self._stage, self._cameras, self._fps = stage, cameras, fps
        self._encoded = {key: set(files.encoded) for key, files in cameras.items()}
        features, where = items[0].source.features, str(items[0].source)
        depths = {key: DepthCoding.of(features[key], where=where) for key in cameras if is_depth(features[key])}
        self.pooled = {key: PooledImageStatistics(coding=depths.get(key)) for key in (*cameras, *images)}
        self._counted: set[str] = set()
        for key in self.pooled:
            known = find_stored_counts(key, items) if not self._encoded.get(key) else None
            if known is not None:
                for one in known:
                    self.pooled[key].add_histogram(one.histogram, one.sampled)
            elif f"stats/{key}/q50" in columns or f"stats/{key}/mean" not in columns or self._encoded.get(key):
                self._counted.add(key)

    def count_episode(self, at: int, item: SourceEpisode, frames: pa.Table) -> dict[str, Any]:
        """Add pixel histograms of one episode to the totals, for cameras without usable stored statistics.

        These include all cameras with re-encoded images.

        Args:
            at: Index of the episode in the edited dataset.
            item: The source episode.
            frames: Frames of the source episode.

        Returns:
            New image statistics of re-encoded cameras, by ``stats/*`` column of the episode table. They replace
            the values of the source.
        """
        cells: dict[str, Any] = {}
        for key in self.pooled:
            counts = self._count_pixels(key, at, item, frames) if key in self._counted else None
            if counts is None:
                continue
            self.pooled[key].add_histogram(counts.histogram, counts.sampled)
            if at in self._encoded.get(key, ()):
                stats = self.pooled[key].count_stats(counts)
                cells |= {f"stats/{key}/{name}": value for name, value in stats.items()}
        return cells

    def add_rows(self, rows: pa.Table) -> None:
        """Add the image statistics of a finished block (rows of the episode table) to the statistics of the dataset."""
        for key, pooled in self.pooled.items():
            names = [name for name in rows.column_names if name.startswith(f"stats/{key}/")]
            for row in rows.select(names).to_pylist() if names else [{}] * len(rows):
                pooled.add({name.rpartition("/")[2]: value for name, value in row.items()})

    def _count_pixels(self, key: str, at: int, item: SourceEpisode, frames: pa.Table) -> CameraSum | None:
        if key not in self._cameras:
            return count_column_pixels(frames[key], where=f"{item.where}: {key}")
        place = self._cameras[key].locations[at]
        path = self._stage / layout.block_path(layout.VIDEO_PATH, place.file, video_key=key)
        depth = self.pooled[key].coding is not None
        return count_video_pixels(path, place.start_s, item.length, self._fps, depth=depth)
