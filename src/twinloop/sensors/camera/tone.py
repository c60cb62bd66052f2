"""Convert linear light to display values by a tone curve, and sharpen images as cameras do."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.imaging import linear_to_srgb, srgb_to_linear
from twinloop.sensors.camera.model import CameraModel
from twinloop.sensors.compiled import compile_lazily, run_over_rows

TONE_BINS = 4096  # of the table that gives the first step to compare


def display_of_linear(linear: ArrayLike, model: CameraModel) -> NDArray[np.float64]:
    """Convert linear light to display values from 0 to 1; inputs outside 0 to 1 are clipped.

    The steps are the camera's tone curve (sRGB, IEC 61966-2-1, or linear interpolation of its points), then
    ``gamma`` as an exponent, then ``contrast`` c as x^c / (x^c + (1 − x)^c), which keeps black, white and the
    middle, then the addition of ``brightness``.
    """
    x = np.clip(np.asarray(linear, dtype=np.float64), 0.0, 1.0)
    x = np.interp(x, model.tone_curve[0::2], model.tone_curve[1::2]) if model.tone_curve else linear_to_srgb(x)
    return np.clip(_apply_contrast(x**model.gamma, model.contrast) + model.brightness, 0.0, 1.0)


def linear_of_display(display: ArrayLike, model: CameraModel) -> NDArray[np.float64]:
    """Convert display values from 0 to 1 to linear light; inverse of `display_of_linear`.

    A display value that no linear value gives (because of ``brightness``) becomes −∞ or ∞.
    """
    x = np.asarray(display, dtype=np.float64) - model.brightness
    inside = _apply_contrast(np.clip(x, 0.0, 1.0), 1.0 / model.contrast) ** (1.0 / model.gamma)
    if model.tone_curve:
        inside = np.interp(inside, model.tone_curve[1::2], model.tone_curve[0::2])
    else:
        inside = srgb_to_linear(inside)
    return np.where(x < 0.0, -np.inf, np.where(x > 1.0, np.inf, inside))


def apply_tone(linear: NDArray, steps: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Convert linear light to 8-bit display values, rounded and clipped.

    ``steps`` are the thresholds from `compute_tone_steps`.
    """
    return np.searchsorted(steps, linear, side="right").astype(np.uint8)


@lru_cache(maxsize=64)
def compute_tone_steps(model: CameraModel) -> NDArray[np.float64]:
    """Return the linear values at which the 8-bit display value changes to 1, 2, …, 255, shape ``(255,)``."""
    steps = linear_of_display((np.arange(255) + 0.5) / 255.0, model)
    steps.setflags(write=False)
    return steps


@lru_cache(maxsize=64)
def tabulate_tone_steps(model: CameraModel) -> tuple[NDArray[np.uint8], int]:
    """Return a lookup table that speeds up `apply_tone` in compiled code.

    Returns:
        8-bit display values at the beginning of each of `TONE_BINS` bins of linear light from 0 to 1, and at 1; and the
        largest number of thresholds within a bin. A threshold is a linear value at which the display value increases by
        1.
    """
    table = apply_tone(np.arange(TONE_BINS + 1) / TONE_BINS, compute_tone_steps(model))
    ends = apply_tone(np.nextafter(np.arange(1, TONE_BINS + 1) / TONE_BINS, 0.0), compute_tone_steps(model))
    table.setflags(write=False)
    return table, int((ends.astype(np.int64) - table[:-1]).max())


def _apply_contrast(x: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    if power == 1.0:
        return x
    up, down = x**power, (1.0 - x) ** power
    return up / (up + down)


_RED, _GREEN, _BLUE = 77, 150, 29  # luma of ITU-R BT.601 in 256ths
_LIMIT = 64  # largest change of a pixel, so that halos stay faint next to strong edges


def sharpen_image(image: NDArray[np.uint8], sharpness: float, *, fast: bool = False) -> NDArray[np.uint8]:
    """Return an 8-bit image with sharpened edges (unsharp mask), shape ``(height, width, 3)``.

    The detail of an image is its luma minus the mean of 3×3 pixels, weighted 1, 2, 1 in each direction. The detail
    times ``sharpness`` is added, which also amplifies noise. Border pixels are repeated beyond the border. If
    ``fast`` is true, compiled code computes the same result.
    """
    weight = round(sharpness * 16)
    if fast:
        result = np.empty_like(image)
        run_over_rows(_sharpen, len(image), image, weight, result)
        return result
    wide = np.pad(_luma(image), 1, mode="edge")
    rows = wide[:-2] + 2 * wide[1:-1] + wide[2:]
    mean16 = rows[:, :-2] + 2 * rows[:, 1:-1] + rows[:, 2:]
    more = np.clip(((16 * wide[1:-1, 1:-1] - mean16) * weight) >> 8, -_LIMIT, _LIMIT)
    return np.clip(image + more[..., None], 0, 255).astype(np.uint8)


def _luma(image: NDArray[np.uint8]) -> NDArray[np.int32]:
    red, green, blue = (image[..., c].astype(np.int32) for c in range(3))
    return (red * _RED + green * _GREEN + blue * _BLUE) >> 8


@compile_lazily
def _sharpen(first, last, image, weight, result):
    height, width, _ = image.shape
    luma, sums = np.empty((3, width), dtype=np.int32), np.empty(width + 2, dtype=np.int32)
    for y in range(first - 1, last + 1):
        row, line = luma[(y + 3) % 3], image[min(max(y, 0), height - 1)]
        for x in range(width):
            row[x] = (line[x, 0] * _RED + line[x, 1] * _GREEN + line[x, 2] * _BLUE) >> 8
        if y <= first:
            continue
        above, here, below = luma[(y + 1) % 3], luma[(y + 2) % 3], luma[(y + 3) % 3]
        for x in range(width):
            sums[x + 1] = above[x] + 2 * here[x] + below[x]
        sums[0], sums[width + 1] = sums[1], sums[width]
        line, sharp = image[y - 1], result[y - 1]
        for x in range(width):
            mean16 = sums[x] + 2 * sums[x + 1] + sums[x + 2]
            more = min(max(((16 * here[x] - mean16) * weight) >> 8, -_LIMIT), _LIMIT)
            for c in range(3):
                sharp[x, c] = min(max(line[x, c] + more, 0), 255)
