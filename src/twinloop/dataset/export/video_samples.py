"""Copy the images of an episode as encoded video samples without decoding; a decoder can decode them in order."""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.dataset.export.source import VideoClip
from twinloop.dataset.media.video_copy import EpisodePackets, PacketFile, PacketReader

# Bitstream filters that convert MP4 packets to self-contained ones, by codec; AV1 needs none.
_FILTERS = {"h264": "h264_mp4toannexb", "hevc": "hevc_mp4toannexb", "av1": None}
FORMATS = {"h264": "h264", "hevc": "h265", "av1": "av1"}  # Foxglove's names
_JPEG_QUALITY = 92  # about 40 dB PSNR on rendered images; LeRobot's video has 35 to 40


@dataclass(frozen=True, kw_only=True)
class VideoSamples:
    """Encoded video samples of one episode and camera, one per frame.

    Attributes:
        format: Foxglove's name of the codec, such as ``h264``.
        data: The samples, in order of the frames.
    """

    format: str
    data: list[bytes]


def copy_samples(clip: VideoClip) -> VideoSamples | None:
    """Copy the packets of a clip as samples that can be decoded without other data.

    H.264 and H.265 samples are in the Annex B format, with parameter sets before key frames.

    Returns:
        The samples, or None if they cannot be copied: the codec is not in `FORMATS`, a frame depends on a later one, or
        the episode does not begin with a key frame.

    Raises:
        DatasetError: If the file is damaged.
    """
    import av
    from av.bitstream import BitStreamFilterContext

    reader = PacketReader(clip.path)
    try:
        codec = reader.coding.codec
        cut = cut_packets(reader, clip) if codec in FORMATS else None
        if cut is None or cut.coding.delay:
            return None
        name = _FILTERS[codec]
        change = BitStreamFilterContext(name, reader.stream) if name else None
        data = [b"".join(map(bytes, change.filter(packet))) if change else bytes(packet) for packet in cut.packets]
    except av.error.FFmpegError as error:
        raise DatasetError(f"{clip.path} cannot be read as a video ({error}). Restore it.") from error
    finally:
        reader.close()
    return VideoSamples(format=FORMATS[codec], data=data)


def episode_file(clip: VideoClip) -> bytes | None:
    """Return the packets of a clip as the bytes of an MP4 file; None if they depend on packets of other episodes.

    Raises:
        DatasetError: If the file is damaged.
    """
    reader = PacketReader(clip.path)
    try:
        cut = cut_packets(reader, clip)
        if cut is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "episode.mp4"
            with PacketFile(path, reader, cut.coding, _rate(clip)) as file:
                file.add(cut)
            return path.read_bytes()
    finally:
        reader.close()


def cut_packets(reader: PacketReader, clip: VideoClip) -> EpisodePackets | None:
    """Return the packets of a clip; None if they cannot be copied without packets of other episodes."""
    return reader.cut(clip.start_s, clip.frames, _rate(clip))


def _rate(clip: VideoClip) -> Fraction:
    return Fraction(clip.fps).limit_denominator(100_000)


def encode_jpeg(image: NDArray[np.uint8]) -> bytes:
    """Return an image ``(height, width, 3)`` as JPEG bytes; equal pixels give equal bytes."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=_JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()
