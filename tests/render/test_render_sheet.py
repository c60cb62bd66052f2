"""Contact sheet, PNG and video read back unchanged."""

from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from twinloop.core.errors import InputError
from twinloop.render import contact_sheet, write_png, write_video
from twinloop.render.sheet import png_bytes

COLOURS = np.array([[200, 30, 30], [30, 200, 30], [30, 30, 200], [200, 200, 30], [30, 200, 200]], dtype=np.uint8)


def plain_images(height: int, width: int) -> list[np.ndarray]:
    return [np.broadcast_to(colour, (height, width, 3)) for colour in COLOURS]


def test_a_png_is_the_same_array_again(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    write_png(tmp_path / "a" / "b.png", image)
    with Image.open(tmp_path / "a" / "b.png") as read:
        np.testing.assert_array_equal(np.asarray(read), image)
    with Image.open(io.BytesIO(png_bytes(image[..., 0]))) as read:
        np.testing.assert_array_equal(np.asarray(read), image[..., 0])


def test_a_sheet_holds_every_image_once_in_reading_order_with_ink_below_it() -> None:
    sheet = contact_sheet(plain_images(40, 60), [f"episode {i}" for i in range(5)], columns=2)
    centres = []
    for colour in COLOURS:
        rows, columns = np.nonzero((sheet == colour).all(axis=-1))
        assert len(rows) == 40 * 60
        centres.append((rows.mean(), columns.mean()))
        below = sheet[rows.max() + 1 : rows.max() + 20, columns.min() : columns.max()]
        assert below.min() < 120, "the label is drawn"
    assert centres == sorted(centres)


def test_a_label_longer_than_its_image_is_shortened() -> None:
    sheet = contact_sheet(plain_images(20, 60)[:2], ["a label that cannot fit below sixty pixels", ""])
    assert (sheet[27:, 66:] == [250, 250, 248]).all(), "nothing runs into the next cell"


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ([], [], "0 images, 0 labels"),
        (plain_images(4, 4), ["one"], "5 images, 1 labels"),
        ([np.zeros((4, 4, 3), np.uint8), np.zeros((4, 5, 3), np.uint8)], ["a", "b"], r"\(4, 4, 3\), \(4, 5, 3\)"),
    ],
)
def test_a_sheet_that_cannot_be_made_is_refused(images: list, labels: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        contact_sheet(images, labels)


def test_a_video_reads_back_frame_for_frame(tmp_path: Path) -> None:
    path = tmp_path / "short.mp4"
    write_video(path, plain_images(48, 64), fps=30)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt, stream.average_rate) == ("h264", "yuv420p", 30)
        frames = [frame.to_ndarray(format="rgb24").astype(int) for frame in container.decode(stream)]
    assert len(frames) == 5
    for frame, colour in zip(frames, COLOURS, strict=True):
        assert np.abs(frame - colour).max() < 20


def test_the_same_frames_give_the_same_bytes_and_odd_sides_lose_one_row(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_video(tmp_path / name, iter(plain_images(49, 65)), fps=15)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with av.open(str(tmp_path / "a")) as container:
        assert (container.streams.video[0].height, container.streams.video[0].width) == (48, 64)


def test_a_video_without_frames_or_with_mixed_sizes_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="A video needs at least one"):
        write_video(tmp_path / "none.mp4", [], fps=30)
    with pytest.raises(InputError, match="A video needs frames of one size"):
        write_video(tmp_path / "mixed.mp4", [plain_images(8, 8)[0], plain_images(8, 16)[0]], fps=30)
    assert list(tmp_path.iterdir()) == []
