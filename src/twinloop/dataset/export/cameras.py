"""Export the images of one camera: copy video packets if possible, otherwise re-encode the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.dataset.export.source import SourceV3, SourceV21, VideoClip
from twinloop.dataset.lerobot.statistics import image_stats, pixel_histogram, sample_indices
from twinloop.dataset.media.depth import (
    SUFFIX,
    DepthCoding,
    DepthEncoder,
    count_codes,
    decode_codes,
    depth_feature,
    depth_stats,
    is_depth,
)
from twinloop.dataset.media.image_sources import decode_cells
from twinloop.dataset.media.video_copy import CODEC_NAMES, CODECS, Encoding, PacketFile, PacketReader, transcode
from twinloop.dataset.spec import ENCODER

MOST_BYTES = 200_000_000  # of a video file, LeRobot's video_files_size_in_mb
_SHORT = 120  # frames; a clip up to this length is decoded at once, in a longer one each image is sought separately

Counts = tuple[NDArray[np.int64], int]
"""Pixel histogram of evenly spaced images, and the number of images.

The histogram has the shape ``(3, 256)`` (channel and 8-bit value), or ``(4096,)`` (code) for depth.
"""


@dataclass(frozen=True, kw_only=True)
class ClipLocation:
    """Location of an episode's images in the export: number of the video file, start and end time in this file in s."""

    file: int
    start_s: float
    stop_s: float


class ExportCamera:
    """Writer of one camera's videos for the exported episodes.

    The images of one episode are a clip. Packets are copied if all clips have the same codec and size and each can be
    decoded separately. Otherwise all clips of the camera are re-encoded as H.264, so that a camera has one codec.

    Args:
        source: The dataset.
        key: Feature key of the camera.
        episodes: The exported episodes.
        scratch: Temporary folder for re-encoded clips.
        codec: Codec of the result; empty for that of the source, if packets can be copied.

    Raises:
        DatasetError: If a video file is damaged.
    """

    def __init__(
        self, source: SourceV3 | SourceV21, key: str, episodes: Sequence[int], scratch: Path, *, codec: str = ""
    ) -> None:
        self.key, self._source, self._scratch = key, source, scratch
        feature, where = source.features[key], str(source.path)
        self._depth = DepthCoding.of(feature, where=where) if is_depth(feature) else None
        self._fps = Fraction(source.fps).limit_denominator(100_000)
        self._reader: PacketReader | None = None
        self._file: PacketFile | None = None
        self._number = -1
        self._encoding = Encoding(codec=codec if codec in CODECS else "h264")
        self._obstacle = self._find_copy_obstacle(episodes)
        if not self._obstacle and codec in CODECS and self._depth is None and self._coding.codec != codec:
            self._obstacle = f"its packets are {self._coding.codec}"

    @property
    def copies_packets(self) -> bool:
        """Whether video packets are copied unchanged. If false, all images are re-encoded."""
        return not self._obstacle

    @property
    def note(self) -> str:
        """Note for the user if the camera is re-encoded; empty if packets are copied."""
        how = (
            f"as {CODEC_NAMES[self._encoding.codec]}, crf {self._encoding.quality}"
            if self._depth is None
            else "without loss"
        )
        return f"{self.key} was re-encoded {how}, because {self._obstacle}" if self._obstacle else ""

    def histogram(self, episode: int) -> Counts:
        """Compute the pixel histogram of evenly spaced images (at most 12) of an episode; of depth, the codes."""
        clip = self._source.clip(episode, self.key)
        chosen = sample_indices(clip.frames)
        if self._depth is not None:
            times = [clip.start_s + frame / clip.fps for frame in chosen.tolist()]
            return count_codes(decode_codes(clip.path, times, tolerance_s=0.25 / clip.fps)), len(chosen)
        if clip.frames <= _SHORT:
            return pixel_histogram(clip.decode_frames(chosen.tolist())), len(chosen)
        counts = np.zeros((3, 256), dtype=np.int64)
        for frame in chosen.tolist():
            counts += pixel_histogram(clip.decode_frames([frame]))
        return counts, len(chosen)

    def stats(self, counts: Counts) -> dict[str, Any]:
        """Return LeRobot's statistics of the camera from a histogram and its number of images."""
        return image_stats(*counts) if self._depth is None else depth_stats(*counts, self._depth)

    def write(self, episode: int, path: Path) -> None:
        """Write an episode's images into a separate video file."""
        self._add(episode, lambda _: path, alone=True)
        self.finish()

    def append(self, episode: int, stage: Path, template: str, *, chunk: int) -> ClipLocation:
        """Append an episode's images to the open video file; a new file is started if necessary.

        That is the case if the open file is full or has other codec parameters.

        Args:
            episode: Index of the episode in the source.
            stage: Temporary folder of the export.
            template: Path template of video files with ``chunk_index``, ``file_index`` and ``video_key``.
            chunk: Number of files per chunk folder.
        """

        def named(number: int) -> Path:
            values = {"chunk_index": number // chunk, "file_index": number % chunk, "video_key": self.key}
            return stage / template.format(**values)

        start, frames = self._add(episode, named, alone=False)
        return ClipLocation(
            file=self._number, start_s=float(start / self._fps), stop_s=float((start + frames) / self._fps)
        )

    def finish(self) -> None:
        """Close all open files."""
        for opened in (self._file, self._reader):
            if opened is not None:
                opened.close()
        self._file = self._reader = None

    def describe_feature(self, feature: Mapping[str, Any]) -> dict[str, Any]:
        """Return the camera's feature entry of ``info.json`` with the properties of the written video.

        Args:
            feature: Entry of the source.
        """
        given = feature.get("info") or feature.get("video_info") or {}
        copied, plain_coding = self.copies_packets or self._depth is not None, (self._encoding.codec, "yuv420p")
        codec, pixels = (self._coding.codec, self._coding.pix_fmt) if copied else plain_coding
        properties = {
            "is_depth_map": self._depth is not None,
            "video.height": self._coding.height,
            "video.width": self._coding.width,
            "video.codec": codec,
            "video.pix_fmt": pixels,
            "video.fps": self._source.info["fps"],
            "video.channels": 3 if self._depth is None else 1,
            "has_audio": False,
        }
        former = ("video.is_depth_map", *(() if copied else (f"video.{name}" for name in ENCODER)))
        rest = {name: value for name, value in given.items() if name not in properties and name not in former}
        plain = {name: value for name, value in feature.items() if name not in ("info", "video_info")}
        return {**plain, "info": {**properties, **rest}}

    def _add(self, episode: int, named: Any, *, alone: bool) -> tuple[int, int]:
        clip = self._source.clip(episode, self.key)
        if not self.copies_packets:
            path = self._scratch / f"{self.key}-{episode}.mp4"
            transcode(clip.path, clip.start_s, clip.frames, path, self._encoding, self._fps)
            clip = VideoClip(path=path, start_s=0.0, frames=clip.frames, fps=clip.fps)
        reader = self._open_reader(clip.path)
        cut = reader.cut(clip.start_s, clip.frames, self._fps)
        if cut is None:
            raise DatasetError(f"{clip.path} changed while it was exported. Export again when no program writes to it.")
        if alone or self._file is None or self._file.coding != cut.coding or self._file.bytes > MOST_BYTES:
            if self._file is not None:
                self._file.close()
            self._number += 1
            self._file = PacketFile(named(self._number), reader, cut.coding, self._fps)
        start = self._file.add(cut)
        if not self.copies_packets:
            clip.path.unlink()
        return start, clip.frames

    def _open_reader(self, path: Path) -> PacketReader:
        if self._reader is None or self._reader.path != path:
            if self._reader is not None:
                self._reader.close()
            self._reader = PacketReader(path)
        return self._reader

    def _find_copy_obstacle(self, episodes: Sequence[int]) -> str:
        """Return the reason why packets cannot be copied; empty if they can."""
        kinds: set[str] = set()
        whole = 0
        for episode in episodes:
            clip = self._source.clip(episode, self.key)
            reader = self._open_reader(clip.path)
            whole += reader.cut(clip.start_s, clip.frames, self._fps) is not None
            coding = self._coding = reader.coding
            kinds.add(f"{coding.codec} {coding.width}x{coding.height} {coding.pix_fmt}")
        if len(kinds) > 1:
            return f"its files have several codecs or sizes ({', '.join(sorted(kinds))})"
        if whole < len(episodes):
            return f"{len(episodes) - whole} of {len(episodes)} episodes do not begin with a key frame"
        return ""


class AnnotatedDepthCamera:
    """Writer of a depth feature from the depth annotations of a camera, for the exported episodes.

    Args:
        source: Dataset that twinloop rendered with the annotation ``depth``.
        camera: Name of the camera.

    Raises:
        DatasetError: If the dataset has no annotations.
        UnknownNameError: If it has none of this camera.
    """

    note = ""

    def __init__(self, source: SourceV3, camera: str) -> None:
        self.key, self._source, self._camera = f"observation.images.{camera}{SUFFIX}", source, camera
        self._fps, self._coding = Fraction(source.fps).limit_denominator(100_000), DepthCoding()
        self._encoder: DepthEncoder | None = None
        self._number, self._path = -1, Path()
        _, self._height, self._width = source.reader.annotations(0, camera).depth.shape
        self._decoded: tuple[int, NDArray[np.uint16]] | None = None

    def histogram(self, episode: int) -> Counts:
        """Count the codes of evenly spaced images (at most 12) of an episode."""
        codes = self._codes(episode)
        chosen = sample_indices(len(codes))
        return count_codes(codes[chosen]), len(chosen)

    def stats(self, counts: Counts) -> dict[str, Any]:
        """Return LeRobot's statistics of the depth in mm."""
        return depth_stats(*counts, self._coding)

    def append(self, episode: int, stage: Path, template: str, *, chunk: int) -> ClipLocation:
        """Append an episode's images to the open video file, or to a new one if that is full; see `ExportCamera`."""
        if self._encoder is None or self._path.stat().st_size > MOST_BYTES:
            self.finish()
            self._number += 1
            values = {"chunk_index": self._number // chunk, "file_index": self._number % chunk, "video_key": self.key}
            self._path = stage / template.format(**values)
            self._encoder = DepthEncoder(self._path, height=self._height, width=self._width, fps=self._fps)
        start = self._encoder.frames
        self._encoder.add(self._codes(episode))
        stop = self._encoder.frames
        return ClipLocation(file=self._number, start_s=float(start / self._fps), stop_s=float(stop / self._fps))

    def finish(self) -> None:
        """Close the open file."""
        if self._encoder is not None:
            self._encoder.close()
        self._encoder = None

    def describe_feature(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Return the camera's feature entry of ``info.json``."""
        return depth_feature(self._height, self._width, self._source.info["fps"], self._coding)

    def _codes(self, episode: int) -> NDArray[np.uint16]:
        if self._decoded is None or self._decoded[0] != episode:
            self._decoded = episode, self._coding.encode(self._source.reader.annotations(episode, self._camera).depth)
        return self._decoded[1]


class TableCamera:
    """Camera whose images are stored in a column of the data table, not as a video. The export copies the column."""

    def __init__(self, source: SourceV3 | SourceV21, key: str) -> None:
        self.key, self._source = key, source

    def histogram(self, episode: int, table: pa.Table) -> Counts:
        """Compute the pixel histogram of evenly spaced images (at most 12) of an episode, and the number of images.

        The histogram has the shape ``(3, 256)`` (channel and 8-bit value).

        Args:
            episode: Index of the episode in the source, for error messages.
            table: The episode's frames.
        """
        chosen = sample_indices(table.num_rows)
        cells = table[self.key].take(pa.array(chosen)).to_pylist()
        images = decode_cells(cells, where=f"{self._source.path}: {self.key} of episode {episode}")
        return pixel_histogram(images), len(chosen)

    def stats(self, counts: Counts) -> dict[str, Any]:
        """Return LeRobot's statistics of the camera from a histogram and its number of images."""
        return image_stats(*counts)
