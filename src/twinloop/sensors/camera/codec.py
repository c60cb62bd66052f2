"""What compression on the way from a camera to a host leaves of its pictures."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.sensors.camera.model import CameraModel
from twinloop.sensors.camera.yuyv import through_yuyv

_KEY_EVERY = 30  # pictures; a second at 30 Hz


if TYPE_CHECKING:
    import av


class Codec(Protocol):
    """Pictures of one camera one after another, as they arrive."""

    def __call__(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The next picture ``(height, width, 3)``, encoded and decoded."""
        ...


def open_codec(model: CameraModel, *, fast: bool = False) -> Codec | None:
    """The codec of a camera, before its first picture; none where pictures arrive as they are.

    ``fast`` says that what can be is done in machine code, with the same result.
    """
    if model.codec == "none":
        return None
    if model.codec == "h264":
        return Video(crf=model.video_crf)
    if model.codec == "yuyv":
        return lambda picture: through_yuyv(picture, fast=fast)
    quality = round(model.jpeg_quality)
    return lambda picture: through_jpeg(picture, quality=quality)


def through_jpeg(picture: NDArray[np.uint8], *, quality: int) -> NDArray[np.uint8]:
    """A picture after JPEG with half as many columns of colour (4:2:2), as cameras send it over USB."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=quality, subsampling="4:2:2")
    buffer.seek(0)
    return np.asarray(Image.open(buffer))


class Video:
    """H.264 of one camera, encoded without delay: each picture leans on those before it since the last key frame."""

    def __init__(self, *, crf: float) -> None:
        self._crf = crf
        self._coders: tuple[av.VideoCodecContext, av.VideoCodecContext] | None = None
        self._count = 0

    def __call__(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The next picture ``(height, width, 3)``, encoded and decoded.

        Raises:
            InputError: a side is odd.
        """
        if self._coders is None:
            self._coders = self._open(*picture.shape[:2])
        import av

        encoder, decoder = self._coders
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts = self._count
        self._count += 1
        (decoded,) = [seen for packet in encoder.encode(frame) for seen in decoder.decode(packet)]
        return np.asarray(decoded.to_ndarray(format="rgb24"), dtype=np.uint8)

    def _open(self, height: int, width: int) -> tuple[av.VideoCodecContext, av.VideoCodecContext]:
        import av

        if height % 2 or width % 2:
            raise InputError(
                f"H.264 cannot hold pictures of {width}x{height}: it shares colour between four pixels. Take even "
                "sides, or another codec."
            )
        encoder = av.CodecContext.create("libx264", "w")
        encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
        encoder.time_base, encoder.framerate = Fraction(1, 30), Fraction(30)
        encoder.options = {"preset": "veryfast", "tune": "zerolatency", "crf": f"{self._crf:g}", "threads": "1"}
        encoder.options |= {"g": str(_KEY_EVERY), "profile": "baseline"}
        decoder = av.CodecContext.create("h264", "r")
        decoder.thread_count, decoder.thread_type = 1, "NONE"
        return encoder, decoder
