"""Video without decoding: a span of frames out of one file, spans of several files into one, packet by packet.

A span can be copied where its first frame is a key frame and nothing outside it is needed to decode it. LeRobot's own
files are so (an episode begins with a key frame), and so are ours.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.dataset.snapshot import writing_to

_GRID = 0.25  # of a frame's period: how far a picture may lie from its nominal time, as `DatasetReader.images`


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Frames of one episode in a video file: ``frames`` many from ``start_s`` on, ``fps`` per second."""

    path: Path
    start_s: float
    frames: int
    fps: float

    def times(self) -> list[float]:
        """When each frame is shown, in the file's seconds."""
        return [self.start_s + frame / self.fps for frame in range(self.frames)]


@dataclass(frozen=True, kw_only=True)
class Coding:
    """What a decoder is set up with; clips that share it can follow each other in one file."""

    codec: str
    width: int
    height: int
    pixel_format: str
    set_up: bytes
    delay: int  # frames by which decoding runs ahead of showing


@dataclass(frozen=True, kw_only=True)
class Track:
    """A file's packets in the order in which they are decoded: when each is shown in s, and whether it is a key."""

    coding: Coding
    shown_s: NDArray[np.float64]
    key: NDArray[np.bool_]

    def span(self, clip: Clip) -> slice | None:
        """The packets of a clip, or None where they cannot be decoded by themselves.

        Raises:
            DatasetError: the file does not hold the clip's frames.
        """
        place = (self.shown_s - clip.start_s) * clip.fps
        rank = np.rint(place)
        inside = np.flatnonzero((np.abs(place - rank) <= _GRID) & (rank >= 0) & (rank < clip.frames))
        found = len(np.unique(rank[inside]))
        if found < clip.frames:
            raise DatasetError(
                f"{clip.path} has {found} of the {clip.frames} frames from {clip.start_s:.3f} s on that the dataset's "
                "metadata names. Restore the file, or leave that episode out with --episodes."
            )
        first, last = int(inside[0]), int(inside[-1]) + 1
        whole = last - first == clip.frames == len(inside)
        return slice(first, last) if whole and self.key[first] and rank[first] == 0 else None


def track(path: Path) -> Track:
    """What the packets of a file are, from one pass without decoding.

    Raises:
        DatasetError: missing, damaged, or without pictures.
    """
    return _track(path, path.stat().st_mtime_ns if path.is_file() else 0)


@functools.lru_cache(maxsize=64)
def _track(path: Path, _changed: int) -> Track:
    import av

    shown, decoded, keys = [], [], []
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            base = stream.time_base or Fraction(1, 1)
            for packet in container.demux(stream):
                if packet.pts is None or packet.dts is None or not packet.size:
                    continue
                shown.append(float(packet.pts * base))
                decoded.append(float(packet.dts * base))
                keys.append(bool(packet.is_keyframe))
            rate = float(stream.average_rate or 1)
            context = stream.codec_context
            coding = Coding(
                codec=context.name if context.name != "libdav1d" else "av1",
                width=context.width,
                height=context.height,
                pixel_format=str(context.pix_fmt),
                set_up=bytes(context.extradata or b""),
                delay=round(max(np.subtract(shown, decoded), default=0.0) * rate),
            )
    except (av.error.FFmpegError, IndexError, OSError) as error:
        raise DatasetError(f"{path} cannot be read as a video ({error}). Restore it or leave it out.") from error
    return Track(coding=coding, shown_s=np.array(shown), key=np.array(keys, dtype=np.bool_))


class Joined:
    """One MP4 file that clips of the same coding are copied into, one after the other.

    Raises:
        DatasetError: the disk is full, or the file cannot be written.
    """

    def __init__(self, path: Path, fps: float) -> None:
        import av

        self.path, self.frames, self.bytes = path, 0, 0
        self._step = 1 / Fraction(fps).limit_denominator(100_000)
        with writing_to(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        self._stream: Any = None
        self._coding: Coding | None = None

    def takes(self, coding: Coding) -> bool:
        """Whether a clip of that coding can follow what is there."""
        return self._coding is None or self._coding == coding

    def add(self, clip: Clip) -> float:
        """Copy a clip that `Track.span` found; returns where it begins, in s."""
        begin = self.frames
        with writing_to(self.path):
            for packet in self._packets(clip):
                self._container.mux(packet)
        self.frames += clip.frames
        return float(begin * self._step)

    def close(self) -> None:
        """Finish the file."""
        with writing_to(self.path):
            self._container.close()

    def _packets(self, clip: Clip) -> Iterator[Any]:
        """The clip's packets with the times that they have here."""
        import av

        span = track(clip.path).span(clip)
        if span is None:
            raise DatasetError(f"{clip.path}: the frames from {clip.start_s:.3f} s on do not begin with a key frame.")
        with av.open(str(clip.path)) as source:
            stream = source.streams.video[0]
            if self._stream is None:
                self._stream, self._coding = (
                    self._container.add_stream_from_template(stream, opaque=True),
                    track(clip.path).coding,
                )
            base = stream.time_base or Fraction(1, 1)
            source.seek(max(int((clip.start_s + 1e-6) / base), 0), stream=stream, backward=True)
            left = clip.frames
            for packet in source.demux(stream):
                if packet.pts is None or packet.dts is None or not packet.size:
                    continue
                place = (float(packet.pts * base) - clip.start_s) * clip.fps
                if left == clip.frames and place < -_GRID:
                    continue  # frames between the key frame that was sought and the clip
                ahead = round((packet.pts - packet.dts) * base / self._step)
                packet.stream, packet.time_base = self._stream, self._step
                packet.pts = self.frames + round(place)
                packet.dts = packet.pts - ahead
                self.bytes += packet.size
                yield packet
                left -= 1
                if not left:
                    return
