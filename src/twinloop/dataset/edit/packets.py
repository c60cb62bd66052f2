"""Compressed video from file to file without decoding: the packets of one episode, and the file that they go into."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

from twinloop.core.errors import DatasetError
from twinloop.dataset.video import open_video

_NEAR = 0.25  # of a frame's period: how far a picture may be from its time, as `DatasetReader.images` has it


@dataclass(frozen=True)
class Coding:
    """What must be alike for packets to share one file; ``delay`` is by how many frames decoding runs ahead."""

    codec: str
    pix_fmt: str
    width: int
    height: int
    extradata: bytes
    delay: int = 0


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The packets of one episode in decoding order, and the frame number that each shows."""

    coding: Coding
    packets: list[Any]
    frames: list[int]


class PacketReader:
    """One video file, open for taking packets out.

    Raises:
        DatasetError: it is missing, or no video.
    """

    def __init__(self, path: Path) -> None:
        import av

        self.path = path
        try:
            self._container = open_video(path)
            self.stream: Any = self._container.streams.video[0]
        except (av.error.FFmpegError, IndexError) as error:
            raise DatasetError(f"{path} cannot be read as a video ({error}). Restore the file.") from error

    @property
    def coding(self) -> Coding:
        """How the file is coded."""
        context = self.stream.codec_context
        return Coding(
            codec=stream_codec(self.stream),
            pix_fmt=str(context.pix_fmt),
            width=context.width,
            height=context.height,
            extradata=bytes(context.extradata or b""),
        )

    @property
    def frames(self) -> int:
        """Pictures in the file, as its container says."""
        return int(self.stream.frames)

    def cut(self, start_s: float, length: int, fps: Fraction) -> Cut | None:
        """The packets of the episode that begins at ``start_s``, if they can be had without their neighbours'.

        They can where the episode begins with a key frame, nothing before or after it comes between its packets, and
        there is exactly one packet for each frame. Otherwise None: these frames must be decoded.

        Raises:
            DatasetError: the file is damaged; names it.
        """
        import av

        base: Fraction = self.stream.time_base
        packets: list[Any] = []
        shown: list[int] = []
        try:
            self._container.seek(max(round((start_s + 1e-6) / base), 0), stream=self.stream, backward=True)
            for packet in self._container.demux(self.stream):
                if packet.pts is None or packet.dts is None:
                    break
                place = float((packet.pts * base - Fraction(start_s)) * fps)
                frame = round(place)
                if not packets and frame < 0:
                    continue
                first = not packets
                if abs(place - frame) > _NEAR or not 0 <= frame < length or (first and not _begins(packet, frame)):
                    return None
                packets.append(packet)
                shown.append(frame)
                if len(packets) == length:
                    break
        except av.error.FFmpegError as error:
            raise DatasetError(f"{self.path} is damaged ({error}). Restore the file.") from error
        if sorted(shown) != list(range(length)):
            return None
        delay = max(i - frame for i, frame in enumerate(shown))
        coding = self.coding
        return Cut(
            coding=Coding(coding.codec, coding.pix_fmt, coding.width, coding.height, coding.extradata, delay),
            packets=packets,
            frames=shown,
        )

    def close(self) -> None:
        """Close the file."""
        self._container.close()


def _begins(packet: Any, frame: int) -> bool:
    return bool(packet.is_keyframe) and frame == 0


def stream_codec(stream: Any) -> str:
    """The codec of a stream by its own name (``h264``, ``av1``), whichever decoder opened it."""
    return str(stream.codec_context.codec.canonical_name)


class PacketFile:
    """An MP4 file being made of packets, episode after episode."""

    def __init__(self, path: Path, reader: PacketReader, coding: Coding, fps: Fraction) -> None:
        import av

        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.coding, self.bytes, self.frames = path, coding, 0, 0
        self._base = 1 / fps
        self._container = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        self._stream: Any = self._container.add_stream_from_template(reader.stream, opaque=True)
        self._stream.time_base = self._base

    def add(self, cut: Cut) -> int:
        """Append an episode; returns the number of its first frame in this file."""
        start = self.frames
        for i, (packet, frame) in enumerate(zip(cut.packets, cut.frames, strict=True)):
            packet.stream = self._stream
            packet.time_base = self._base
            packet.pts, packet.dts, packet.duration = start + frame, start + i - self.coding.delay, 1
            self.bytes += packet.size
            self._container.mux(packet)
        self.frames += len(cut.packets)
        return start

    def close(self) -> None:
        """Write what makes it a file."""
        self._container.close()

    def __enter__(self) -> PacketFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
