"""Copy the video of an episode to another file: either its encoded packets unchanged, or decoded and encoded again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.dataset.media.depth import PIXELS as DEPTH_PIXELS
from twinloop.dataset.media.depth import reencode_codes
from twinloop.dataset.media.video import KEY_FRAME_EVERY, decode_from, open_video

_NEAR = 0.25  # most time between a frame and its nominal time, in frame periods, as in `DatasetReader.images`


@dataclass(frozen=True)
class CodecParameters:
    """Coding parameters of a video. Packets can be copied into one file only if these are equal.

    Attributes:
        codec: Name of the codec, such as ``h264``.
        pix_fmt: Pixel format, such as ``yuv420p``.
        width: Width in px.
        height: Height in px.
        extradata: Header data of the codec.
        delay: Decoder delay in frames.
    """

    codec: str
    pix_fmt: str
    width: int
    height: int
    extradata: bytes
    delay: int = 0


@dataclass(frozen=True, kw_only=True)
class EpisodePackets:
    """Encoded packets of one episode.

    Attributes:
        coding: Coding parameters of the packets.
        packets: PyAV packets in decoding order.
        frames: Frame number in the episode of each packet.
    """

    coding: CodecParameters
    packets: list[Any]
    frames: list[int]


class PacketReader:
    """Reader of the encoded packets of one video file.

    Raises:
        DatasetError: If the file is missing or not a video.
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
    def coding(self) -> CodecParameters:
        """Coding parameters of the file."""
        context = self.stream.codec_context
        return CodecParameters(
            codec=stream_codec(self.stream),
            pix_fmt=str(context.pix_fmt),
            width=context.width,
            height=context.height,
            extradata=bytes(context.extradata or b""),
        )

    @property
    def frames(self) -> int:
        """Number of frames according to the file's header; 0 if it does not give the number."""
        return int(self.stream.frames)

    def cut(self, start_s: float, length: int, fps: Fraction) -> EpisodePackets | None:
        """Return the packets of an episode, if they can be copied independently of neighbouring episodes.

        This requires that the episode starts with a key frame, that no packet of another episode is between its
        packets, and that each frame has exactly one packet.

        Args:
            start_s: Time in the file at which the episode starts, in seconds.
            length: Number of frames of the episode.
            fps: Frames per second.

        Returns:
            The packets; None if they cannot be copied, so that the frames must be decoded.

        Raises:
            DatasetError: If the file is damaged.
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
                if (
                    abs(place - frame) > _NEAR
                    or not 0 <= frame < length
                    or (first and not _starts_episode(packet, frame))
                ):
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
        return EpisodePackets(
            coding=CodecParameters(coding.codec, coding.pix_fmt, coding.width, coding.height, coding.extradata, delay),
            packets=packets,
            frames=shown,
        )

    def close(self) -> None:
        """Close the file."""
        self._container.close()


def _starts_episode(packet: Any, frame: int) -> bool:
    return bool(packet.is_keyframe) and frame == 0


def stream_codec(stream: Any) -> str:
    """Return the name of a stream's codec, such as ``h264`` or ``av1``, independent of the decoder in use."""
    return str(stream.codec_context.codec.canonical_name)


class PacketFile:
    """MP4 file that is written from copied packets, one episode after the other.

    Args:
        path: File to write.
        reader: Open video whose stream settings are copied.
        coding: Coding parameters of all packets.
        fps: Frames per second.
    """

    def __init__(self, path: Path, reader: PacketReader, coding: CodecParameters, fps: Fraction) -> None:
        import av

        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.coding, self.bytes, self.frames = path, coding, 0, 0
        self._base = 1 / fps
        self._container = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        self._stream: Any = self._container.add_stream_from_template(reader.stream, opaque=True)
        self._stream.time_base = self._base

    def add(self, cut: EpisodePackets) -> int:
        """Append the packets of an episode; return the number of its first frame in this file."""
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
        """Write the file's index and close the file."""
        self._container.close()

    def __enter__(self) -> PacketFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


# Encoder, its default quality and its options. The default qualities of H.264 and HEVC are those of x264 and
# x265, quality and preset of AV1 are LeRobot's (0.4.4, `encode_video_frames`). One thread each: several episodes are
# encoded at a time, and the bytes do not depend on the number of processors. H.264's macroblock tree is off: with
# it x264 165 wrote different bytes in 5 of 6,900 runs on a busy processor with AVX-512, without it in none of 4,500; it
# distributes bits over the frames between key frames, which are few here.
_ENCODERS = {
    "h264": ("libx264", 23, {"preset": "veryfast", "bf": "0", "mbtree": "0", "threads": "1"}),
    "av1": ("libsvtav1", 30, {"preset": "12", "svtav1-params": "lp=1"}),
    "hevc": (
        "libx265",
        28,
        {"preset": "fast", "x265-params": "bframes=0:open-gop=0:pools=none:frame-threads=1:log-level=error"},
    ),
}
CODECS = tuple(_ENCODERS)
CODEC_NAMES = {"h264": "H.264", "hevc": "HEVC", "av1": "AV1"}
PIXELS = "yuv420p"  # the written pixel format
_READABLE = ("yuv420p", "yuvj420p", "yuv422p", "yuv444p")  # 8-bit colour; 12- or 16-bit depth would lose bits


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Settings for encoding a video.

    Attributes:
        codec: ``h264``, ``hevc`` or ``av1``.
        gop: Largest number of frames from one key frame to the next.
        crf: Constant rate factor; lower values mean better quality and larger files. None: the codec's default.
        height: Height in px; None keeps the size of the source. Give both ``height`` and ``width``, or neither.
        width: Width in px.
    """

    codec: str
    gop: int = KEY_FRAME_EVERY
    crf: int | None = None
    height: int | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        if self.codec not in _ENCODERS:
            raise UnknownNameError("codec", self.codec, _ENCODERS)
        if self.gop < 1:
            raise InputError(f"A key frame every {self.gop} frames is impossible: give at least 1.")
        if self.crf is not None and not 0 <= self.crf <= 63:
            raise InputError(f"The quality (crf) {self.crf} is out of range: h264 and hevc take 0 to 51, av1 0 to 63.")
        if (self.height is None) != (self.width is None):
            raise InputError("Give both height and width of the images, or neither.")
        if (
            self.height is not None
            and self.width is not None
            and (self.height % 2 or self.width % 2 or min(self.height, self.width) < 16)
        ):
            raise InputError(f"Images of {self.width}x{self.height}: yuv420p video needs even sides of at least 16.")

    @property
    def quality(self) -> int:
        """Constant rate factor (crf) in use."""
        return _ENCODERS[self.codec][1] if self.crf is None else self.crf

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON-compatible dictionary, as stored in the metadata of an edited dataset."""
        size = {} if self.height is None else {"height": self.height, "width": self.width}
        return {"codec": self.codec, "gop": self.gop, "crf": self.quality, **size}

    def options(self) -> tuple[str, dict[str, str]]:
        """Return the name of FFmpeg's encoder and its options."""
        name, _, options = _ENCODERS[self.codec]
        options = {**options, "crf": str(self.quality), "g": str(self.gop)}
        if self.codec == "hevc":
            options["x265-params"] += f":keyint={self.gop}:min-keyint=1"
        return name, options


def transcode(source: Path, start_s: float, length: int, target: Path, encoding: Encoding, fps: Fraction) -> None:
    """Decode the frames of one episode, and encode them into a new file; depth stays lossless HEVC.

    Args:
        source: Video file that contains the episode.
        start_s: Time in ``source`` at which the episode starts, in seconds.
        length: Number of frames of the episode.
        target: File to write.
        encoding: Settings of the encoder.
        fps: Frames per second.

    Raises:
        DatasetError: If the source lacks some of the frames; the message gives the time.
        InputError: If the frames are not 8-bit colour.
    """
    import av

    if _pixel_format(source) == DEPTH_PIXELS:
        reencode_codes(source, start_s, length, target, fps)
        return
    os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 writes its settings to standard error otherwise; 1 is errors only
    name, options = encoding.options()
    target.parent.mkdir(parents=True, exist_ok=True)
    base = 1 / fps
    with restore_priority(), av.open(str(target), "w", format="mp4") as container:
        stream: Any = None
        for number, frame in enumerate(_episode_frames(source, start_s, length, fps)):
            if stream is None:
                stream = container.add_stream(name, rate=fps, options=options)
                stream.width, stream.height = encoding.width or frame.width, encoding.height or frame.height
                stream.pix_fmt, stream.codec_context.time_base = PIXELS, base
                stream.codec_context.color_range, stream.codec_context.colorspace = frame.color_range, frame.colorspace
                stream.codec_context.thread_count = 1
            image = frame.reformat(width=stream.width, height=stream.height, format=PIXELS)
            image.pts, image.time_base = number, base
            image.pict_type = av.video.frame.PictureType.I if number == 0 else av.video.frame.PictureType.NONE
            container.mux(stream.encode(image))
        container.mux(stream.encode(None))


def _pixel_format(path: Path) -> str:
    with open_video(path) as container:
        return str(container.streams.video[0].codec_context.pix_fmt)


@contextmanager
def restore_priority() -> Iterator[None]:
    """Restore the thread's scheduling policy at the end of the ``with`` block.

    Run as root, the encoder SVT-AV1 leaves the calling thread in real-time mode.
    """
    if not hasattr(os, "sched_getscheduler"):  # Linux only, as is the effect of SVT-AV1
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != policy:
            os.sched_setscheduler(0, policy, parameters)


def _episode_frames(source: Path, start_s: float, length: int, fps: Fraction) -> Iterator[Any]:
    """Yield the decoded frames of an episode, in order.

    Args:
        source: Video file that contains the episode.
        start_s: Time in ``source`` at which the episode starts, in seconds.
        length: Number of frames of the episode.
        fps: Frames per second.

    Raises:
        DatasetError: If the source lacks a frame; the message gives the time.
        InputError: If the frames are not 8-bit colour.
    """
    wanted = 0
    for time_s, frame in decode_from(source, start_s):
        place = (time_s - start_s) * float(fps)
        if frame.format.name not in _READABLE:
            raise InputError(
                f"{source} has {frame.format.name} images, which would be reduced to 8-bit colour. Leave them as they "
                "are: merge folders of one codec."
            )
        while wanted < length and abs(place - wanted) <= _NEAR:
            yield frame
            wanted += 1
        if wanted == length:
            return
        if place > wanted + _NEAR:
            break
    raise DatasetError(
        f"{source} has no frame at {start_s + wanted / float(fps):.4f} s, frame {wanted} of an episode of {length}. "
        "Restore the file, or leave the episode out."
    )
