"""Encode and decode images as on the way from a camera to a computer: YUYV, JPEG or H.264."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.sensors.camera.model import CameraModel
from twinloop.sensors.compiled import compile_lazily, run_over_rows

if TYPE_CHECKING:
    import av


# Luma and colour differences with the ranges and weights of ITU-R BT.601, the default of USB video.
_FROM_RGB: NDArray[np.float64] = (
    np.array([[65.481, 128.553, 24.966], [-37.797, -74.203, 112.0], [112.0, -93.786, -18.214]]) / 255.0
)
_TO_RGB = np.asarray(np.linalg.inv(_FROM_RGB), dtype=np.float64)


def encode_decode_yuyv(image: NDArray[np.uint8], *, fast: bool = False) -> NDArray[np.uint8]:
    """Return an 8-bit RGB image after conversion to YUYV and back, shape ``(height, width, 3)``.

    Two neighbouring columns share their colour; in an odd width the last column keeps its own. If ``fast`` is true,
    compiled code computes the same result.
    """
    if fast:
        result = np.empty_like(image)
        run_over_rows(_convert_yuyv_rows, len(image), np.ascontiguousarray(image), result)
        return result
    values = _multiply_colours(image.astype(np.float64), _FROM_RGB)
    even = image.shape[1] // 2 * 2
    values[:, 0:even:2, 1:] = 0.5 * (values[:, 0:even:2, 1:] + values[:, 1:even:2, 1:])
    values[:, 1:even:2, 1:] = values[:, 0:even:2, 1:]
    return np.clip(np.rint(_multiply_colours(np.rint(values), _TO_RGB)), 0.0, 255.0).astype(np.uint8)


def _multiply_colours(values: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = [values[..., 0] * row[0] + values[..., 1] * row[1] + values[..., 2] * row[2] for row in matrix]
    return np.stack(rows, axis=-1)


@compile_lazily
def _convert_yuyv_rows(first, last, image, result):
    width = image.shape[1]
    luma, blue, red = np.empty(width), np.empty(width), np.empty(width)
    for y in range(first, last):
        line, converted = image[y], result[y]
        for x in range(width):
            r, g, b = line[x, 0], line[x, 1], line[x, 2]
            luma[x] = np.rint(r * _FROM_RGB[0, 0] + g * _FROM_RGB[0, 1] + b * _FROM_RGB[0, 2])
            blue[x] = r * _FROM_RGB[1, 0] + g * _FROM_RGB[1, 1] + b * _FROM_RGB[1, 2]
            red[x] = r * _FROM_RGB[2, 0] + g * _FROM_RGB[2, 1] + b * _FROM_RGB[2, 2]
        for x in range(0, width - 1, 2):
            blue[x] = blue[x + 1] = 0.5 * (blue[x] + blue[x + 1])
            red[x] = red[x + 1] = 0.5 * (red[x] + red[x + 1])
        for c in range(3):
            for x in range(width):
                value = luma[x] * _TO_RGB[c, 0] + np.rint(blue[x]) * _TO_RGB[c, 1] + np.rint(red[x]) * _TO_RGB[c, 2]
                converted[x, c] = min(max(np.rint(value), 0.0), 255.0)


_KEY_EVERY = 30  # images; a second at 30 Hz


class CameraCodec(Protocol):
    """Function that encodes and decodes a camera's images in sequence, and so adds compression artefacts."""

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the next image after encoding and decoding, shape ``(height, width, 3)``."""
        ...


def open_codec(model: CameraModel, *, fast: bool = False) -> CameraCodec | None:
    """Create the codec of a camera for a new sequence of images; None if the camera does not compress.

    If ``fast`` is true, compiled code is used where possible, with the same result.
    """
    if model.codec == "none":
        return None
    if model.codec == "h264":
        return H264Stream(crf=model.video_crf)
    if model.codec == "yuyv":
        return lambda image: encode_decode_yuyv(image, fast=fast)
    quality = round(model.jpeg_quality)
    return lambda image: encode_decode_jpeg(image, quality=quality)


def encode_decode_jpeg(image: NDArray[np.uint8], *, quality: int) -> NDArray[np.uint8]:
    """Return an 8-bit RGB image after JPEG compression with 4:2:2 colour subsampling, as cameras send it over USB.

    ``quality`` is that of the IJG library, 1 to 100.
    """
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality, subsampling="4:2:2")
    buffer.seek(0)
    return np.asarray(Image.open(buffer))


class H264Stream:
    """H.264 encoder and decoder of one camera without added delay.

    Each image is predicted from the previous ones since the last key frame, so images must come in order.
    """

    def __init__(self, *, crf: float) -> None:
        self._crf = crf
        self._coders: tuple[av.VideoCodecContext, av.VideoCodecContext] | None = None
        self._count = 0

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the next image after encoding and decoding, shape ``(height, width, 3)``.

        Raises:
            InputError: If the width or the height is odd.
        """
        if self._coders is None:
            self._coders = self._open(*image.shape[:2])
        import av

        encoder, decoder = self._coders
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts = self._count
        self._count += 1
        (decoded,) = [decoded_frame for packet in encoder.encode(frame) for decoded_frame in decoder.decode(packet)]
        return np.asarray(decoded.to_ndarray(format="rgb24"), dtype=np.uint8)

    def _open(self, height: int, width: int) -> tuple[av.VideoCodecContext, av.VideoCodecContext]:
        import av

        if height % 2 or width % 2:
            raise InputError(
                f"H.264 cannot encode images of {width}x{height}: four pixels share one colour. Use an even "
                "width and height, or another codec."
            )
        encoder = av.CodecContext.create("libx264", "w")
        encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
        encoder.time_base, encoder.framerate = Fraction(1, 30), Fraction(30)
        encoder.options = {"preset": "veryfast", "tune": "zerolatency", "crf": f"{self._crf:g}", "threads": "1"}
        encoder.options |= {"g": str(_KEY_EVERY), "profile": "baseline"}
        decoder = av.CodecContext.create("h264", "r")
        decoder.thread_count, decoder.thread_type = 1, "NONE"
        return encoder, decoder
