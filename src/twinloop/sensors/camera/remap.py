"""Apply a lens to a rendered image: the required view, and the source position of each pixel and colour."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RectBivariateSpline

from twinloop.core.errors import InputError
from twinloop.core.imaging import Intrinsics
from twinloop.sensors.camera.lens import Lens
from twinloop.sensors.compiled import compile_lazily, has_numba, run_over_rows

# Off the axis. A flat image of 2·80° has 11 times the width of one of 2·27°, and 33 times fewer pixels per degree in
# its middle than at its edge (tan 80° and 1 / cos² 80°).
WIDEST = math.radians(80.0)


def rendered_view(lens: Lens, target: Intrinsics, *, margin: float = 1.0, density: float = 1.0) -> Intrinsics:
    """Return the centred pinhole view of square pixels to render, which covers all pixels of the distorted image.

    Args:
        target: the distorted image; its principal point may be anywhere.
        margin: pixels of the view beyond those needed for bilinear interpolation of any channel of any pixel.
        density: pixels of the view per pixel of the target where the lens does not distort, in its centre.

    Returns:
        The smallest such view with an even width and height.

    Raises:
        InputError: the field of view exceeds `WIDEST`, or the lens folds within the image.
    """
    rays = np.concatenate([lens.rays(_border(target) / size) for size in lens.magnifications])
    # Testing the border is enough: a lens that does not fold maps the inside to the inside of the mapped border.
    angle = float(np.arctan2(np.hypot(rays[:, 0], rays[:, 1]), rays[:, 2]).max())
    if angle > WIDEST:
        raise InputError(
            f"This lens sees {math.degrees(angle):.4g}° off the axis, but a flat image is rendered up to "
            f"{math.degrees(WIDEST):.0f}°. Trace the lens's own rays instead (lens_rays), with the renderer warp."
        )
    focal = density * max(target.fx, target.fy)
    reach = np.abs(rays[:, :2] / rays[:, 2:]).max(axis=0) * focal + 0.5 + margin
    half = [max(1, math.ceil(pixels - 1e-9)) for pixels in reach]
    return Intrinsics(fx=focal, fy=focal, cx=half[0], cy=half[1], width=2 * half[0], height=2 * half[1])


def lens_rays(lens: Lens, target: Intrinsics) -> NDArray[np.float64]:
    """Return the directions of all pixel centres, unit vectors ``(height, width, 3)`` in camera axes, for green.

    Raises:
        InputError: the lens folds within the image.
    """
    return lens.rays(normalize_pixels(target, target.pixel_centres()))


def normalize_pixels(target: Intrinsics, pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return pixels ``(…, 2)`` relative to the principal point, in focal lengths."""
    return (pixels - [target.cx, target.cy]) / [target.fx, target.fy]


def _border(target: Intrinsics) -> NDArray[np.float64]:
    """Return normalized positions ``(n, 2)`` of the centres of the outermost pixels."""
    inside = np.ones((target.height, target.width), dtype=bool)
    inside[1:-1, 1:-1] = False
    return normalize_pixels(target, target.pixel_centres()[inside])


@dataclass(frozen=True, kw_only=True)
class Remap:
    """Map from each pixel to its source position in another image.

    ``column`` and ``row`` are ``(1 or 3, height, width)`` float32: one map for all channels, or one for red, green and
    blue. They count from the centre of the first pixel, so an integer is a pixel. ``source`` is the (height, width) of
    the source images.
    """

    column: NDArray[np.float32]
    row: NDArray[np.float32]
    source: tuple[int, int]

    @classmethod
    def of(cls, lens: Lens, view: Intrinsics, target: Intrinsics) -> Self:
        """Return the map from a rendered view to the distorted image.

        Args:
            view: pinhole of the rendered images, from `rendered_view`, or a larger one.
            target: pinhole of the distorted image.

        Raises:
            InputError: the lens folds within the image, or the view does not cover its field of view.
        """
        pixels = np.stack([_compute_source_positions(lens, view, target, size) for size in lens.magnifications])
        last = np.array([view.width - 1, view.height - 1])
        outside = ~((pixels >= -_SLACK) & (pixels <= last + _SLACK)).all(axis=-1)
        if outside.any():
            raise InputError(
                f"{outside.sum()} pixels look beyond the drawn view of {view.width}×{view.height} pixels. "
                "Render the view of rendered_view for this lens and image."
            )
        pixels = np.clip(np.round(pixels, _DECIMALS), 0.0, last).astype(np.float32)
        return cls(column=pixels[..., 0].copy(), row=pixels[..., 1].copy(), source=(view.height, view.width))

    @property
    def size(self) -> tuple[int, int]:
        """Size (height, width) of the distorted images."""
        return self.column.shape[1], self.column.shape[2]

    @cached_property
    def is_identity(self) -> bool:
        """Return whether every pixel maps to itself, so that nothing needs to be done."""
        _, height, width = self.column.shape
        column, row = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, None]
        return self.source == (height, width) and bool((self.column == column).all() and (self.row == row).all())

    def apply(self, pictures: NDArray[np.float32], *, rows: slice | None = None) -> NDArray[np.float32]:
        """Return distorted images ``(n, height, width, c)``, bilinear between the pixels of ``(n, h', w', c)``.

        ``rows`` selects rows of the result, without a step.

        Raises:
            InputError: images of another size, or without three channels for a lens with chromatic aberration.
        """
        self._check(pictures)
        maps, height, width = self.column.shape
        top, bottom, _ = (rows or slice(None)).indices(height)
        pictures = np.ascontiguousarray(pictures, dtype=np.float32)
        if maps == 3 and pictures.shape[-1] != 3:
            raise InputError(f"Images of {pictures.shape[-1]} channels for a lens that separates red, green and blue.")
        if not has_numba():
            return _interpolate_arrays(pictures, self.column[:, top:bottom], self.row[:, top:bottom])
        out = np.empty((len(pictures), bottom - top, width, pictures.shape[-1]), dtype=np.float32)
        kernel = _interpolate_shared_map if maps == 1 else _interpolate_channel_maps
        run_over_rows(kernel, len(pictures) * (bottom - top), pictures, self.column, self.row, top, out)
        return out

    def nearest(self, pictures: NDArray) -> NDArray:
        """Return distorted images by the nearest pixel, ``(n, h', w')`` or ``(n, h', w', c)`` of any type.

        Every channel uses the map of green.
        """
        self._check(pictures)
        green = len(self.column) // 2
        return pictures[:, np.rint(self.row[green]).astype(np.intp), np.rint(self.column[green]).astype(np.intp)]

    def _check(self, pictures: NDArray) -> None:
        if pictures.shape[1:3] != self.source:
            height, width = self.source
            raise InputError(
                f"Images of shape {pictures.shape} do not have {width}×{height} pixels, (n, {height}, {width}, …), "
                "the size for which this lens map was computed."
            )


def _compute_source_positions(lens: Lens, view: Intrinsics, target: Intrinsics, size: float) -> NDArray[np.float64]:
    """Return the source positions of one colour's pixels in the view, ``(height, width, 2)`` from its first centre.

    Distortion is smooth: it is inverted at 129 nodes along the longer side and interpolated by a quintic spline. If the
    spline is inaccurate half-way between nodes, as near a fold, every pixel is inverted, which is ten times slower.
    """

    def exact(column: NDArray[np.float64], row: NDArray[np.float64]) -> NDArray[np.float64]:
        seen = normalize_pixels(target, np.stack(np.meshgrid(column + 0.5, row + 0.5), axis=-1))
        return view.project(lens.rays(seen / size)) - 0.5

    column, row = np.arange(float(target.width)), np.arange(float(target.height))
    spacing = max(target.width, target.height) / _INTERVALS
    nodes = [np.linspace(0.0, axis[-1], math.ceil(axis[-1] / spacing) + 1) for axis in (column, row)]
    if min(len(axis) for axis in nodes) <= _DEGREE:
        return exact(column, row)
    known = exact(*nodes)
    splines = [RectBivariateSpline(nodes[1], nodes[0], known[..., i], kx=_DEGREE, ky=_DEGREE) for i in range(2)]
    between = [0.5 * (axis[1:] + axis[:-1]) for axis in nodes]
    guess = np.stack([spline(between[1], between[0]) for spline in splines], axis=-1)
    if np.abs(guess - exact(*between)).max() > _SMOOTH:
        return exact(column, row)
    return np.stack([spline(row, column) for spline in splines], axis=-1)


_INTERVALS = 128  # along the longer side; the error is then 1e-6 pixel for a strong lens (k1 -0.3, 640×480, f 500)
_DEGREE = 5
_SMOOTH = 1e-5  # pixels; float32 has a resolution of 6e-5 beyond 512 pixels
_DECIMALS = 6  # of pixels; a position this close to a pixel's centre is exactly that pixel
_SLACK = 1e-6  # pixels; round-off of a position on the border


@compile_lazily
def _interpolate_shared_map(first, last, pictures, column, row, top_row, out):
    """Interpolate rows ``first`` to ``last`` of all stacked images, with one map for all channels."""
    height, width = out.shape[1:3]
    bottom, right = np.uint32(pictures.shape[1] - 1), np.uint32(pictures.shape[2] - 1)
    one = np.uint32(1)
    for line in range(first, last):
        n, r = line // height, line % height
        picture = pictures[n]
        for c in range(width):
            x, y = column[0, top_row + r, c], row[0, top_row + r, c]
            left, top = np.uint32(x), np.uint32(y)  # unsigned, so that no index is tested for a sign
            beside, below = min(left + one, right), min(top + one, bottom)
            a, b = x - np.float32(left), y - np.float32(top)
            for channel in range(pictures.shape[3]):
                upper, lower = picture[top, left, channel], picture[below, left, channel]
                upper += a * (picture[top, beside, channel] - upper)
                lower += a * (picture[below, beside, channel] - lower)
                out[n, r, c, channel] = upper + b * (lower - upper)


@compile_lazily
def _interpolate_channel_maps(first, last, pictures, column, row, top_row, out):
    """Interpolate likewise with one map per channel; a loop over a known number of channels is unrolled."""
    height, width = out.shape[1:3]
    bottom, right = np.uint32(pictures.shape[1] - 1), np.uint32(pictures.shape[2] - 1)
    one = np.uint32(1)
    for line in range(first, last):
        n, r = line // height, line % height
        picture = pictures[n]
        for c in range(width):
            for channel in range(3):
                x, y = column[channel, top_row + r, c], row[channel, top_row + r, c]
                left, top = np.uint32(x), np.uint32(y)
                beside, below = min(left + one, right), min(top + one, bottom)
                a, b = x - np.float32(left), y - np.float32(top)
                upper, lower = picture[top, left, channel], picture[below, left, channel]
                upper += a * (picture[top, beside, channel] - upper)
                lower += a * (picture[below, beside, channel] - lower)
                out[n, r, c, channel] = upper + b * (lower - upper)


def _interpolate_arrays(
    pictures: NDArray[np.float32], column: NDArray[np.float32], row: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Interpolate without a compiler, in the same order of operations, so that the results are equal."""
    bottom, right = pictures.shape[1] - 1, pictures.shape[2] - 1
    left, top = column.astype(np.intp), row.astype(np.intp)
    beside, below = np.minimum(left + 1, right), np.minimum(top + 1, bottom)
    a, b = (column - left.astype(np.float32))[..., None], (row - top.astype(np.float32))[..., None]
    out = np.empty((len(pictures), *column.shape[1:], pictures.shape[-1]), dtype=np.float32)
    for m in range(len(column)):
        channel = slice(m, m + 1) if len(column) > 1 else slice(None)
        part = pictures[..., channel]
        upper, lower = part[:, top[m], left[m]], part[:, below[m], left[m]]
        upper += a[m] * (part[:, top[m], beside[m]] - upper)
        lower += a[m] * (part[:, below[m], beside[m]] - lower)
        out[..., channel] = upper + b[m] * (lower - upper)
    return out
