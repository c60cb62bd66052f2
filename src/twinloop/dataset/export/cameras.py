"""Export the images of one camera: copy video packets if possible, otherwise re-encode the images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.dataset.export.source import SourceV3, SourceV21, VideoClip
from twinloop.dataset.lerobot.statistics import pixel_histogram, sample_indices
from twinloop.dataset.media.image_sources import decode_cells
from twinloop.dataset.media.video_copy import Encoding, PacketFile, PacketReader, transcode

MOST_BYTES = 200_000_000  # of a video file, LeRobot's video_files_size_in_mb
_SHORT = 120  # frames; a clip up to this length is decoded at once, in a longer one each image is sought separately
_REENCODING = Encoding(codec="h264")

Counts = tuple[NDArray[np.int64], int]
"""Pixel histogram of evenly spaced images, shape ``(3, 256)`` (channel and 8-bit value), and the number of images."""


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

    Raises:
        DatasetError: If a video file is damaged.
    """

    def __init__(self, source: SourceV3 | SourceV21, key: str, episodes: Sequence[int], scratch: Path) -> None:
        self.key, self._source, self._scratch = key, source, scratch
        self._fps = Fraction(source.fps).limit_denominator(100_000)
        self._reader: PacketReader | None = None
        self._file: PacketFile | None = None
        self._number = -1
        self._obstacle = self._find_copy_obstacle(episodes)

    @property
    def copies_packets(self) -> bool:
        """Whether video packets are copied unchanged. If false, all images are re-encoded."""
        return not self._obstacle

    @property
    def note(self) -> str:
        """Note for the user if the camera is re-encoded; empty if packets are copied."""
        return (
            f"{self.key} was re-encoded as H.264, crf {_REENCODING.quality}, because {self._obstacle}"
            if self._obstacle
            else ""
        )

    def histogram(self, episode: int) -> Counts:
        """Compute the pixel histogram of evenly spaced images (at most 12) of an episode."""
        clip = self._source.clip(episode, self.key)
        chosen = sample_indices(clip.frames)
        if clip.frames <= _SHORT:
            return pixel_histogram(clip.decode_frames(chosen.tolist())), len(chosen)
        counts = np.zeros((3, 256), dtype=np.int64)
        for frame in chosen.tolist():
            counts += pixel_histogram(clip.decode_frames([frame]))
        return counts, len(chosen)

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

    def describe_feature(self, feature: dict[str, Any]) -> dict[str, Any]:
        """Return the camera's feature entry of ``info.json`` with the properties of the written video.

        Args:
            feature: Entry of the source.
        """
        given = feature.get("info") or feature.get("video_info") or {}
        properties = {
            "video.height": self._coding.height,
            "video.width": self._coding.width,
            "video.codec": self._coding.codec if self.copies_packets else _REENCODING.codec,
            "video.pix_fmt": self._coding.pix_fmt if self.copies_packets else "yuv420p",
            "video.is_depth_map": bool(given.get("video.is_depth_map", False)),
            "video.fps": self._source.info["fps"],
            "video.channels": 3,
            "has_audio": False,
        }
        rest = {name: value for name, value in given.items() if name not in properties}
        plain = {name: value for name, value in feature.items() if name not in ("info", "video_info")}
        return {**plain, "info": {**properties, **rest}}

    def _add(self, episode: int, named: Any, *, alone: bool) -> tuple[int, int]:
        clip = self._source.clip(episode, self.key)
        if not self.copies_packets:
            path = self._scratch / f"{self.key}-{episode}.mp4"
            transcode(clip.path, clip.start_s, clip.frames, path, _REENCODING, self._fps)
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
