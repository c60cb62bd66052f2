"""Draw annotations: convert numbers to colours, and draw boxes, names, axes and keypoints on an image."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.imaging import Intrinsics
from twinloop.dataset.annotations import CameraAnnotations, poses
from twinloop.render.annotate.boxes import box_corners

RgbImage = NDArray[np.uint8]
Point = NDArray[np.float64]
# Twelve edges of a box whose corners are numbered in binary, x the highest bit.
_EDGES = [(a, b) for a in range(8) for b in range(a + 1, 8) if (a ^ b).bit_count() == 1]
_AXES = ((230, 60, 60), (50, 190, 70), (60, 110, 240))  # x, y, z in red, green, blue
_BACKGROUND = np.array([24, 24, 28], dtype=np.uint8)
_BOXED = ("object", "target", "distractor")


def choose_colour(number: int) -> tuple[int, int, int]:
    """Return an RGB colour for the number of an object or class; black for 0.

    Hues differ by the golden ratio, so that neighbouring numbers have different colours.
    """
    import colorsys

    if not number:
        return (0, 0, 0)
    red, green, blue = colorsys.hsv_to_rgb(number * 0.61803399 % 1.0, 0.65 if number % 2 else 0.9, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def instance_image(instance: NDArray[Any]) -> RgbImage:
    """Convert an image of object or class numbers ``(H, W)`` to colours ``(H, W, 3)``."""
    table = np.array([choose_colour(i) for i in range(int(instance.max(initial=0)) + 1)], dtype=np.uint8)
    return table[instance]


def depth_image(depth: NDArray[np.float32], *, near: float | None = None, far: float | None = None) -> RgbImage:
    """Convert distances ``(H, W)`` in m to colours, from yellow (near) over red to blue (far); dark for no surface.

    Args:
        depth: distances, inf or nan for no surface.
        near, far: distances of the first and last colour in m. By default the 1st and 99th percentile of the image.
    """
    valid = np.isfinite(depth)
    low, high = np.percentile(depth[valid], [1, 99]) if valid.any() else (0.0, 1.0)
    low, high = low if near is None else near, high if far is None else far
    level = np.clip((np.where(valid, depth, 0.0) - low) / max(high - low, 1e-9), 0.0, 1.0)
    stops = np.array([[252, 240, 110], [240, 120, 50], [150, 40, 110], [30, 30, 110]], dtype=np.float64)
    place = np.linspace(0.0, 1.0, len(stops))
    colours = np.stack([np.interp(level, place, stops[:, i]) for i in range(3)], axis=-1)
    colours[~valid] = _BACKGROUND
    return np.rint(colours).astype(np.uint8)


def normals_image(normals: NDArray[np.float32]) -> RgbImage:
    """Convert normals ``(H, W, 3)`` in camera axes to colours (1 + x, 1 - y, 1 - z) / 2; dark for no surface.

    Surfaces that face the camera are blue.
    """
    colours = np.rint(127.5 * (1.0 + normals * [1.0, -1.0, -1.0])).astype(np.uint8)
    colours[(normals == 0.0).all(axis=-1)] = _BACKGROUND
    return colours


def flow_image(flow: NDArray[np.float32], *, largest: float | None = None) -> RgbImage:
    """Convert optical flow ``(H, W, 2)`` in px to colours; dark for no flow value (nan).

    Hue is the direction of the flow, and saturation its length.

    Args:
        flow: displacement to the right and down.
        largest: length of full saturation in px; by default the largest length in the image.
    """
    valid = np.asarray(np.isfinite(flow).all(axis=-1))
    vector = np.where(valid[..., None], flow, 0.0)
    length = np.hypot(vector[..., 0], vector[..., 1])
    part = np.clip(length / max(largest or float(length.max(initial=0.0)), 1e-9), 0.0, 1.0)
    hue = (np.arctan2(vector[..., 1], vector[..., 0]) / (2.0 * np.pi)) % 1.0
    wheel = np.abs((hue[..., None] * 6.0 + np.array([0.0, 4.0, 2.0])) % 6.0 - 3.0) - 1.0
    colours = 255.0 * (1.0 - part[..., None] * (1.0 - np.clip(wheel, 0.0, 1.0)))
    colours[~valid] = _BACKGROUND
    return np.rint(colours).astype(np.uint8)


def draw_annotations(
    image: RgbImage,
    annotations: CameraAnnotations,
    frame: int,
    *,
    masks: float = 0.35,
    boxes: bool = True,
    names: bool = True,
    axes: float = 0.03,
    keypoints: bool = True,
    scale: int = 1,
) -> RgbImage:
    """Return an image with its annotations drawn on it: masks, 2D boxes, 3D boxes, axes, keypoints.

    Args:
        image: image ``(H, W, 3)`` of the same camera and frame.
        annotations: annotations of the episode and camera, see `DatasetReader.annotations`.
        frame: number of the frame.
        masks: opacity of the objects' colours, 0 to 1.
        boxes: whether to draw the 2D boxes.
        names: whether to write name and visible share above each 2D box.
        axes: length of the drawn axes of objects in m; 0 for none.
        keypoints: whether to draw the visible keypoints.
        scale: factor by which the result is larger than the image, for legible lines and names.

    Raises:
        InputError: If the image has another size than its annotations.
    """
    from PIL import Image, ImageDraw, ImageFont

    pinhole = annotations.intrinsics[frame]
    if image.shape[:2] != (pinhole.height, pinhole.width):
        raise InputError(
            f"The image has {image.shape[0]}×{image.shape[1]} pixels, its annotations have "
            f"{pinhole.height}×{pinhole.width}. Give the image of the same camera."
        )
    base = image.astype(np.float64)
    if masks:
        instance = annotations.instance[frame]
        named = np.isin(instance, [i for i, name in annotations.class_of.items() if name in ("robot", *_BOXED)])
        base = np.where(named[..., None], (1.0 - masks) * base + masks * instance_image(instance), base)
    canvas = Image.fromarray(np.rint(base).astype(np.uint8)).resize((pinhole.width * scale, pinhole.height * scale))
    draw = ImageDraw.Draw(canvas)
    pen = _ImageDrawer(draw, ImageFont.load_default(size=max(11, 7 * scale)), scale)
    rows = annotations.objects.filter(
        pa.array([row == frame for row in annotations.objects["frame_index"].to_pylist()])
    )
    camera = poses(rows, "camera")
    for row, pose in zip(rows.to_pylist(), camera, strict=True):
        if row["class_name"] in _BOXED:
            pen.draw_object(row, pose, pinhole, boxes=boxes, names=names, axes=axes)
    if keypoints:
        points = annotations.keypoints.to_pylist()
        pen.draw_keypoints([row for row in points if row["frame_index"] == frame and row["visible"]])
    return np.asarray(canvas)


class _ImageDrawer:
    """Drawing tool for an image that was enlarged by a factor; positions are in pixels of the original image.

    Args:
        draw: Pillow's drawing object of the enlarged image.
        font: font of the labels.
        scale: factor of the enlargement.
    """

    def __init__(self, draw: Any, font: Any, scale: int) -> None:
        self._draw, self._font, self._scale = draw, font, scale

    def draw_object(
        self, row: Mapping[str, Any], pose: Point, pinhole: Intrinsics, *, boxes: bool, names: bool, axes: float
    ) -> None:
        colour = choose_colour(row["instance"])
        if row["box_size"] is not None:
            corners = box_corners(np.array(row["box_centre"]), np.array(row["box_size"]))
            pixels = pinhole.project(corners @ pose[:3, :3].T + pose[:3, 3])
            for first, second in _EDGES:
                self._line(pixels[first], pixels[second], colour, 1)
        if boxes and row["box"] is not None:
            left, top, right, bottom = row["box"]
            frame = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
            for first, second in itertools.pairwise(frame):
                self._line(np.array(first), np.array(second), (255, 255, 255), 1)
            if names:
                seen = "" if row["visibility"] is None else f" {100 * row['visibility']:.0f} %"
                self._label(left, top, row["name"] + seen, colour)
        if axes:
            ends = pinhole.project(np.concatenate([np.zeros((1, 3)), axes * np.eye(3)]) @ pose[:3, :3].T + pose[:3, 3])
            for end, axis_colour in zip(ends[1:], _AXES, strict=True):
                self._line(ends[0], end, axis_colour, 2)

    def draw_keypoints(self, rows: Sequence[Mapping[str, Any]]) -> None:
        reach = 1.2
        for row in rows:
            x, y = row["pixel"]
            spot = [self._scale * value for value in (x - reach, y - reach, x + reach, y + reach)]
            self._draw.ellipse(spot, fill=(255, 235, 60), outline=(30, 30, 30))

    def _line(self, first: Point, second: Point, colour: tuple[int, int, int], width: int) -> None:
        if np.isfinite(first).all() and np.isfinite(second).all():
            ends = [tuple((self._scale * end).tolist()) for end in (first, second)]
            self._draw.line(ends, fill=colour, width=max(1, width * self._scale // 2))

    def _label(self, x: float, y: float, text: str, colour: tuple[int, int, int]) -> None:
        left, top, right, bottom = self._font.getbbox(text)
        at = (self._scale * x, max(self._scale * y - (bottom - top) - 6, 0))
        self._draw.rectangle([at[0], at[1], at[0] + right - left + 6, at[1] + bottom - top + 6], fill=colour)
        self._draw.text((at[0] + 3 - left, at[1] + 3 - top), text, font=self._font, fill=(0, 0, 0))
