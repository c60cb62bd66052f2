"""Apply lens distortion to rendered images: which view to render, and the source position of each pixel and colour."""

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
    """Return the smallest pinhole view that must be rendered to cover all pixels of a distorted image.

    Args:
        lens: lens of the camera.
        target: intrinsics of the distorted image; its principal point may be anywhere.
        margin: additional pixels at each border of the view. Bilinear interpolation does not need them.
        density: pixels of the view per pixel of the target at the image centre, where the lens does not distort.

    Returns:
        Intrinsics with square pixels, a centred principal point, and an even width and height.

    Raises:
        InputError: If the field of view extends more than 80° from the axis (`WIDEST`), or the lens distortion is not
            monotonic within the image.
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
    """Return the direction in which the centre of each pixel looks, to trace rays through the lens.

    They are those of the green channel; chromatic aberration is ignored.

    Returns:
        Unit vectors in camera axes, shape ``(height, width, 3)``.

    Raises:
        InputError: If the lens distortion is not monotonic within the image.
    """
    return lens.rays(normalize_pixels(target, target.pixel_centres()))


def normalize_pixels(target: Intrinsics, pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert pixel coordinates ``(…, 2)`` to normalized positions, relative to the principal point.

    Their unit is the focal length, separately for x and y.
    """
    return (pixels - [target.cx, target.cy]) / [target.fx, target.fy]


def _border(target: Intrinsics) -> NDArray[np.float64]:
    """Return the normalized positions of the centres of all border pixels, shape ``(n, 2)``."""
    inside = np.ones((target.height, target.width), dtype=bool)
    inside[1:-1, 1:-1] = False
    return normalize_pixels(target, target.pixel_centres()[inside])


@dataclass(frozen=True, kw_only=True)
class Remap:
    """Lookup table for image distortion: for each pixel, its source position in another image.

    Attributes:
        column: source column of each pixel, float32 of shape ``(1, height, width)`` for all colours, or ``(3,
            height, width)`` for red, green and blue. Positions count from the centre of the first pixel, so an
            integer is a pixel.
        row: source row of each pixel, same shape.
        source: height and width of the source images.
    """

    column: NDArray[np.float32]
    row: NDArray[np.float32]
    source: tuple[int, int]

    @classmethod
    def of(cls, lens: Lens, view: Intrinsics, target: Intrinsics) -> Self:
        """Compute the lookup table from a rendered view to the distorted image.

        Args:
            lens: lens of the camera.
            view: intrinsics of the rendered images, from `rendered_view` or larger.
            target: intrinsics of the distorted image.

        Raises:
            InputError: If the lens distortion is not monotonic within the image, or the view does not cover the image.
        """
        pixels = np.stack([_compute_source_positions(lens, view, target, size) for size in lens.magnifications])
        last = np.array([view.width - 1, view.height - 1])
        outside = ~((pixels >= -_SLACK) & (pixels <= last + _SLACK)).all(axis=-1)
        if outside.any():
            raise InputError(
                f"{outside.sum()} pixels are outside the rendered view of {view.width}×{view.height} pixels. "
                "Render the view of rendered_view for this lens and image."
            )
        pixels = np.clip(np.round(pixels, _DECIMALS), 0.0, last).astype(np.float32)
        return cls(column=pixels[..., 0].copy(), row=pixels[..., 1].copy(), source=(view.height, view.width))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the distorted images, in pixels."""
        return self.column.shape[1], self.column.shape[2]

    @cached_property
    def is_identity(self) -> bool:
        """Return whether every pixel maps to itself, so that the table need not be applied."""
        _, height, width = self.column.shape
        column, row = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, None]
        return self.source == (height, width) and bool((self.column == column).all() and (self.row == row).all())

    def apply(self, images: NDArray[np.float32], *, rows: slice | None = None) -> NDArray[np.float32]:
        """Return distorted images by bilinear interpolation, shape ``(n, height, width, channels)``.

        Source images have the shape ``(n, source height, source width, channels)``. ``rows`` is a slice of the rows of
        the result, with a step of 1; by default all rows are computed.

        Raises:
            InputError: If the images have another size, or if the lens has chromatic aberration and they lack three
                channels.
        """
        self._check(images)
        maps, height, width = self.column.shape
        top, bottom, _ = (rows or slice(None)).indices(height)
        images = np.ascontiguousarray(images, dtype=np.float32)
        if maps == 3 and images.shape[-1] != 3:
            raise InputError(
                f"The images have {images.shape[-1]} channels, but a lens with chromatic aberration "
                "needs 3 (red, green, blue)."
            )
        if not has_numba():
            return _interpolate_arrays(images, self.column[:, top:bottom], self.row[:, top:bottom])
        out = np.empty((len(images), bottom - top, width, images.shape[-1]), dtype=np.float32)
        kernel = _interpolate_shared_map if maps == 1 else _interpolate_channel_maps
        run_over_rows(kernel, len(images) * (bottom - top), images, self.column, self.row, top, out)
        return out

    def nearest(self, images: NDArray) -> NDArray:
        """Return distorted images by the nearest source pixel, for data that must not be mixed, such as labels.

        Source images have the shape ``(n, source height, source width)``, optionally with an axis of channels, and any
        type. All channels use the source positions of green.
        """
        self._check(images)
        green = len(self.column) // 2
        return images[:, np.rint(self.row[green]).astype(np.intp), np.rint(self.column[green]).astype(np.intp)]

    def _check(self, images: NDArray) -> None:
        if images.shape[1:3] != self.source:
            height, width = self.source
            raise InputError(
                f"Images of shape {images.shape} do not have {width}×{height} pixels, (n, {height}, {width}, …), "
                "the size for which this lens map was computed."
            )


def _compute_source_positions(lens: Lens, view: Intrinsics, target: Intrinsics, size: float) -> NDArray[np.float64]:
    """Return the source positions of all pixels of one colour, column and row, shape ``(height, width, 2)``.

    Positions count from the centre of the view's first pixel. Because distortion is smooth, it is inverted only at 65
    nodes along the longer side and interpolated by a quintic spline. If the spline is inaccurate half-way between
    nodes, as near the radius where the distortion ceases to be monotonic, 129 nodes are tried, and then the distortion
    is inverted at every pixel.

    Args:
        lens: lens of the camera.
        view: intrinsics of the rendered images.
        target: intrinsics of the distorted image.
        size: size of this colour's image relative to the green one.
    """

    def exact(column: NDArray[np.float64], row: NDArray[np.float64]) -> NDArray[np.float64]:
        seen = normalize_pixels(target, np.stack(np.meshgrid(column + 0.5, row + 0.5), axis=-1))
        return view.project(lens.rays(seen / size)) - 0.5

    column, row = np.arange(float(target.width)), np.arange(float(target.height))
    for intervals in _INTERVALS:
        spacing = max(target.width, target.height) / intervals
        nodes = [np.linspace(0.0, axis[-1], math.ceil(axis[-1] / spacing) + 1) for axis in (column, row)]
        if spacing <= 1.0 or min(len(axis) for axis in nodes) <= _DEGREE:
            break
        known = exact(*nodes)
        splines = [RectBivariateSpline(nodes[1], nodes[0], known[..., i], kx=_DEGREE, ky=_DEGREE) for i in range(2)]
        between = [0.5 * (axis[1:] + axis[:-1]) for axis in nodes]
        guess = np.stack([spline(between[1], between[0]) for spline in splines], axis=-1)
        if np.abs(guess - exact(*between)).max() <= _SMOOTH:
            return np.stack([spline(row, column) for spline in splines], axis=-1)
    return exact(column, row)


_INTERVALS = (64, 128)  # along the longer side; the error of 128 is 1e-6 pixel for a strong lens (k1 -0.3, 640×480)
_DEGREE = 5
_SMOOTH = 1e-3  # pixels: a grey value between two neighbours then changes by at most a quarter of 1 of 255
_DECIMALS = 6  # of pixels; a position this close to a pixel's centre is exactly that pixel
_SLACK = 1e-6  # pixels; round-off of a position on the border


@compile_lazily
def _interpolate_shared_map(first, last, images, column, row, top_row, out):
    """Interpolate rows of all images bilinearly, with the same source positions for all channels.

    Args:
        first, last: range of rows to compute, excluding ``last``. Row number n · height + r is row r of result n.
        images: source images, ``(n, rows, columns, channels)``.
        column, row: tables of source positions, ``(1, rows, columns)``.
        top_row: row of the tables that belongs to row 0 of each result.
        out: results, ``(n, height, width, channels)``, written in place.
    """
    height, width = out.shape[1:3]
    bottom, right = np.uint32(images.shape[1] - 1), np.uint32(images.shape[2] - 1)
    one = np.uint32(1)
    for line in range(first, last):
        n, r = line // height, line % height
        image = images[n]
        for c in range(width):
            x, y = column[0, top_row + r, c], row[0, top_row + r, c]
            left, top = np.uint32(x), np.uint32(y)  # unsigned, so that no index is tested for a sign
            next_column, next_row = min(left + one, right), min(top + one, bottom)
            a, b = x - np.float32(left), y - np.float32(top)
            for channel in range(images.shape[3]):
                upper, lower = image[top, left, channel], image[next_row, left, channel]
                upper += a * (image[top, next_column, channel] - upper)
                lower += a * (image[next_row, next_column, channel] - lower)
                out[n, r, c, channel] = upper + b * (lower - upper)


@compile_lazily
def _interpolate_channel_maps(first, last, images, column, row, top_row, out):
    """Interpolate rows of all images bilinearly, with separate source positions for red, green and blue.

    Arguments are those of `_interpolate_shared_map`. The number of channels is fixed so that the compiler unrolls
    the loop.
    """
    height, width = out.shape[1:3]
    bottom, right = np.uint32(images.shape[1] - 1), np.uint32(images.shape[2] - 1)
    one = np.uint32(1)
    for line in range(first, last):
        n, r = line // height, line % height
        image = images[n]
        for c in range(width):
            for channel in range(3):
                x, y = column[channel, top_row + r, c], row[channel, top_row + r, c]
                left, top = np.uint32(x), np.uint32(y)
                next_column, next_row = min(left + one, right), min(top + one, bottom)
                a, b = x - np.float32(left), y - np.float32(top)
                upper, lower = image[top, left, channel], image[next_row, left, channel]
                upper += a * (image[top, next_column, channel] - upper)
                lower += a * (image[next_row, next_column, channel] - lower)
                out[n, r, c, channel] = upper + b * (lower - upper)


def _interpolate_arrays(
    images: NDArray[np.float32], column: NDArray[np.float32], row: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Interpolate bilinearly with NumPy, if numba is missing.

    The order of operations is that of the compiled functions, so that the results are equal.

    Args:
        images: source images, ``(n, rows, columns, channels)``.
        column: source column of each pixel in pixels, ``(1, height, width)`` for all channels, or ``(3, height,
            width)`` for red, green and blue.
        row: source row of each pixel, same shape.

    Returns:
        Images, ``(n, height, width, channels)``.
    """
    bottom, right = images.shape[1] - 1, images.shape[2] - 1
    left, top = column.astype(np.intp), row.astype(np.intp)
    next_column, next_row = np.minimum(left + 1, right), np.minimum(top + 1, bottom)
    a, b = (column - left.astype(np.float32))[..., None], (row - top.astype(np.float32))[..., None]
    out = np.empty((len(images), *column.shape[1:], images.shape[-1]), dtype=np.float32)
    for m in range(len(column)):
        channel = slice(m, m + 1) if len(column) > 1 else slice(None)
        part = images[..., channel]
        upper, lower = part[:, top[m], left[m]], part[:, next_row[m], left[m]]
        upper += a[m] * (part[:, top[m], next_column[m]] - upper)
        lower += a[m] * (part[:, next_row[m], next_column[m]] - lower)
        out[..., channel] = upper + b[m] * (lower - upper)
    return out
