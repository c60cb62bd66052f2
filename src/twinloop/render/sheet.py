"""Write images for people: a labelled contact sheet, PNG files and short videos."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.files import write_bytes
from twinloop.render.protocol import check_size

_INK, _PAPER, _GAP = (32, 33, 36), (250, 250, 248), 6


def contact_sheet(images: Sequence[NDArray[np.uint8]], labels: Sequence[str], *, columns: int = 5) -> NDArray[np.uint8]:
    """Return one image ``(H, W, 3)`` with the given images in a grid, each with its label below.

    Args:
        images: images ``(h, w, 3)`` uint8 of one size.
        labels: one label per image; a label that is too wide is shortened.
        columns: largest number of images in a row.

    Raises:
        InputError: If there is no image, the number of labels differs, or the images have different sizes.
    """
    from PIL import Image, ImageDraw, ImageFont

    if not len(images) or len(images) != len(labels):
        raise InputError(f"A contact sheet needs one label per image: {len(images)} images, {len(labels)} labels.")
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        raise InputError(f"A contact sheet needs images of one size, these have {sorted(shapes)}.")
    height, width = images[0].shape[:2]
    font_size = max(11, width // 22)
    font = ImageFont.load_default(size=font_size)
    cell_height, cell_width = height + font_size + 2 * _GAP, width + _GAP
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * cell_width + _GAP, rows * cell_height + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        x, y = _GAP + i % columns * cell_width, _GAP + i // columns * cell_height
        sheet.paste(Image.fromarray(np.ascontiguousarray(image)), (x, y))
        draw.text((x, y + height + 2), _shorten_label(label, font, width), fill=_INK, font=font)
    return np.asarray(sheet)


def _shorten_label(label: str, font: object, width: int) -> str:
    """Return the label, shortened with … if it is wider than its image.

    Args:
        label: text of the label.
        font: Pillow font that draws it.
        width: width of the image in pixels.
    """
    measure = font.getlength  # pyright: ignore[reportAttributeAccessIssue]
    if measure(label) <= width:
        return label
    while label and measure(label + "…") > width:
        label = label[:-1]
    return label + "…"


def png_bytes(image: NDArray[np.uint8]) -> bytes:
    """Return the bytes of a PNG file with one image ``(H, W, 3)`` or ``(H, W)`` uint8."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def write_png(path: Path, image: NDArray[np.uint8]) -> None:
    """Write one image ``(H, W, 3)`` or ``(H, W)`` uint8 to a PNG file, atomically."""
    write_bytes(path, png_bytes(image))


def write_video(path: Path, frames: Iterable[NDArray[np.uint8]], *, fps: int, crf: int = 23) -> None:
    """Write an MP4 video (H.264, yuv420p, which browsers play) from frames ``(H, W, 3)`` of one size, atomically.

    One thread encodes, so that the same frames give the same bytes. yuv420p needs even sides, so an odd side loses its
    last row or column.

    Args:
        path: file to write.
        frames: uint8 sRGB images.
        fps: frames per second.
        crf: constant rate factor of x264, 0 to 51; a smaller number gives a better image and a larger file.

    Raises:
        InputError: If there are no frames, or frames of different sizes.
    """
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": str(crf), "preset": "veryfast", "threads": "1"}
        shape: tuple[int, ...] = ()
        for frame in frames:
            if not shape:
                shape = frame.shape
                check_size(*shape[:2])
                stream.height, stream.width = shape[0] // 2 * 2, shape[1] // 2 * 2
            if frame.shape != shape:
                raise InputError(f"A video needs frames of one size, got {shape} and then {frame.shape}.")
            even = np.ascontiguousarray(frame[: stream.height, : stream.width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))
        if not shape:
            raise InputError(f"No frames for {path}. A video needs at least one.")
        container.mux(stream.encode())
    write_bytes(path, buffer.getvalue())
