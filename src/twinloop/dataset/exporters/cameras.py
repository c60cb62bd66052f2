"""One camera of a dataset on its way out: its packets copied where they can be, its pictures encoded where not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.dataset.exporters.packets import Clip, Coding, track
from twinloop.dataset.exporters.source import SourceV3, SourceV21
from twinloop.dataset.picture_sources import decoded_cells
from twinloop.dataset.spec import CameraSpec
from twinloop.dataset.statistics import pixel_histogram, sample_indices
from twinloop.dataset.video import Piece, decode, encode_pieces

_AT_ONCE = 64  # pictures in memory while a clip is encoded; our choice
_TOLERANCE = 0.25  # of a frame's period, as `DatasetReader.images`


class Camera:
    """The clips of one camera over the chosen episodes.

    Packets are copied when all clips are of one codec and size and each can be decoded by itself; else every clip of
    the camera is encoded again (H.264, as our writer does), so that a camera never has two codecs.

    Args:
        source: the dataset.
        key: the feature.
        episodes: those that are exported.
        scratch: a folder for clips that are encoded again.
    """

    def __init__(self, source: SourceV3 | SourceV21, key: str, episodes: Sequence[int], scratch: Path) -> None:
        self.key, self._source, self._scratch = key, source, scratch
        clips = [source.clip(episode, key) for episode in episodes]
        codings = [track(clip.path).coding for clip in clips]
        self._why = _refused(clips, codings)
        self._coding = codings[0]

    @property
    def copied(self) -> bool:
        """Whether packets are copied as they are."""
        return not self._why

    @property
    def note(self) -> str:
        """What a reader of the export must know; empty where packets are copied."""
        return "" if self.copied else f"{self.key} was encoded again as H.264, crf 23: {self._why}"

    def clip(self, episode: int) -> Clip:
        """An episode's clip, ready to be copied."""
        clip = self._source.clip(episode, self.key)
        return clip if self.copied else self._encoded(episode, clip)

    def histogram(self, episode: int) -> tuple[NDArray[np.int64], int]:
        """Pixel counts ``(3, 256)`` of some of an episode's pictures, evenly spread, and of how many."""
        clip = self._source.clip(episode, self.key)
        return counted(clip, sample_indices(clip.frames))

    def feature(self, feature: dict[str, Any]) -> dict[str, Any]:
        """The feature's entry of ``info.json``, with what is true of the written video."""
        coding = self._coding if self.copied else None
        told = {
            "video.height": self._coding.height,
            "video.width": self._coding.width,
            "video.codec": coding.codec if coding else "h264",
            "video.pix_fmt": coding.pixel_format if coding else "yuv420p",
            "video.is_depth_map": False,
            "video.fps": self._source.info["fps"],
            "video.channels": 3,
            "has_audio": False,
        }
        given = feature.get("info") or feature.get("video_info") or {}
        rest = {name: value for name, value in given.items() if name not in told or name == "video.is_depth_map"}
        plain = {name: value for name, value in feature.items() if name not in ("info", "video_info")}
        return {**plain, "info": {**told, **rest}}

    def _encoded(self, episode: int, clip: Clip) -> Clip:
        path = self._scratch / f"{self.key}-{episode}.mp4"
        camera = CameraSpec(name="camera", height=self._coding.height, width=self._coding.width)
        encode_pieces(_pieces(clip), [camera], {"camera": path}, fps=round(clip.fps))
        return Clip(path=path, start_s=0.0, frames=clip.frames, fps=clip.fps)


class TableCamera:
    """A camera whose pictures lie in the table, encoded one by one; they are copied with their column."""

    def __init__(self, source: SourceV3 | SourceV21, key: str) -> None:
        self.key, self._source = key, source

    def histogram(self, episode: int, table: pa.Table) -> tuple[NDArray[np.int64], int]:
        """Pixel counts ``(3, 256)`` of some of an episode's pictures, evenly spread, and of how many."""
        chosen = sample_indices(table.num_rows)
        cells = table[self.key].take(pa.array(chosen)).to_pylist()
        pictures = decoded_cells(cells, where=f"{self._source.path}: {self.key} of episode {episode}")
        return pixel_histogram(pictures), len(chosen)


def counted(clip: Clip, frames: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Pixel counts of a clip's frames, and of how many."""
    total = np.zeros((3, 256), dtype=np.int64)
    for frame in frames:
        total += pixel_histogram(_pictures(clip, int(frame), int(frame) + 1))
    return total, len(frames)


def _refused(clips: Sequence[Clip], codings: Sequence[Coding]) -> str:
    """Why packets cannot be copied; empty where they can."""
    kinds = sorted({f"{c.codec} {c.width}x{c.height} {c.pixel_format}" for c in codings})
    if len(kinds) > 1:
        return f"its files are of several kinds ({', '.join(kinds)})"
    cut = [clip for clip in clips if track(clip.path).span(clip) is None]
    if cut:
        return f"{len(cut)} of {len(clips)} episodes do not begin with a key frame of their own"
    return ""


def _pieces(clip: Clip) -> Iterator[Piece]:
    for start in range(0, clip.frames, _AT_ONCE):
        stop = min(start + _AT_ONCE, clip.frames)
        yield Piece(frames={"camera": _pictures(clip, start, stop)}, start=start, length=clip.frames)


def _pictures(clip: Clip, start: int, stop: int) -> NDArray[np.uint8]:
    return decode(clip.path, clip.times()[start:stop], tolerance_s=_TOLERANCE / clip.fps)
