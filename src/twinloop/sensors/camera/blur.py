"""Blur images as a lens does: defocus and diffraction together are one Gaussian spot."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import correlate1d
from scipy.special import ive

from twinloop.core.errors import InputError
from twinloop.sensors.compiled import compile_lazily, has_numba, run_over_rows

_LOST = 1e-6  # share of a spot's light that may be beyond its last pixel
_WIDEST = 64.0  # pixels; for wider spots the sum is too slow


def compute_spot(blur: float) -> NDArray[np.float64]:
    """Return the one-dimensional convolution kernel of a blur, shape ``(2n + 1,)``, with the sum 1.

    It is the discrete Gaussian exp(-t) I_k(t) with t = ``blur``² and the modified Bessel function I_k (Lindeberg,
    "Scale-space for discrete signals", IEEE PAMI 12(3), 1990). Its standard deviation is exactly ``blur``, however
    small, and the variances of successive blurs add up.

    Args:
        blur: standard deviation, in pixels.

    Raises:
        InputError: If the standard deviation is below 0 or above 64 pixels.
    """
    if not 0.0 <= blur <= _WIDEST:
        raise InputError(f"A blur of {blur:g} pixels (standard deviation) is impossible. Use 0 to {_WIDEST:g} pixels.")
    reach = math.ceil(6.0 * blur) + 3
    half = ive(np.arange(reach + 1), blur * blur)
    beyond = 2.0 * (half[::-1].cumsum()[::-1] - half)
    half = half[: int((beyond > _LOST).sum()) + 1]
    line = np.concatenate([half[:0:-1], half])
    return line / line.sum()


def blur_images(images: NDArray[np.float32], blur: float) -> NDArray[np.float32]:
    """Return images of linear light blurred by a lens, shape ``(n, height, width, channels)``.

    Border pixels are repeated beyond the border. ``blur`` is the standard deviation of the Gaussian spot, in
    pixels.
    """
    line = compute_spot(blur).astype(np.float32)
    if len(line) == 1:
        return images
    if not has_numba():
        along = correlate1d(images, line, axis=2, mode="nearest")
        return np.asarray(correlate1d(along, line, axis=1, mode="nearest"), dtype=np.float32)
    images = np.ascontiguousarray(images, dtype=np.float32)
    n, height, width, channels = images.shape
    along = np.empty((n * height, width * channels), dtype=np.float32)
    run_over_rows(_blur_along_rows, n * height, images.reshape(n * height, width * channels), line, channels, along)
    out = np.empty_like(along)
    run_over_rows(_blur_across_rows, n * height, along, line, height, out)
    return out.reshape(images.shape)


@compile_lazily
def _blur_along_rows(first, last, lines, taps, channels, out):
    """Convolve the rows ``first`` to ``last - 1`` with the kernel ``taps``, each along the row.

    The border pixels are repeated beyond both ends of a row.

    Args:
        lines: rows of all images with interleaved channels, shape ``(rows, width · channels)``.
        taps: convolution kernel, shape ``(2n + 1,)``.
        channels: colours per pixel.
        out: result, same shape as ``lines``, written in place.
    """
    length, reach = lines.shape[1], len(taps) // 2
    edge = reach * channels
    padded = np.empty(length + 2 * edge, dtype=np.float32)
    for r in range(first, last):
        padded[edge : edge + length] = lines[r]
        for i in range(edge):
            padded[i] = lines[r, i % channels]
            padded[edge + length + i] = lines[r, length - channels + i % channels]
        _put(out[r], taps[reach], lines[r])
        for k in range(reach):
            left, right = k * channels, 2 * edge - k * channels
            _add_both(out[r], taps[k], padded[left : left + length], padded[right : right + length])


@compile_lazily
def _blur_across_rows(first, last, lines, taps, height, out):
    """Convolve across the rows (down each column) with ``taps``, for the rows ``first`` to ``last - 1`` of the result.

    The border rows of each image are repeated beyond its border.

    Args:
        lines: rows of all images, one image of ``height`` rows after another, shape ``(rows, width · channels)``.
        taps: convolution kernel, shape ``(2n + 1,)``.
        height: rows per image.
        out: result, same shape as ``lines``, written in place.
    """
    reach = len(taps) // 2
    for r in range(first, last):
        top, bottom = r - r % height, r - r % height + height - 1
        _put(out[r], taps[reach], lines[r])
        for k in range(reach):
            _add_both(out[r], taps[k], lines[max(r - reach + k, top)], lines[min(r + reach - k, bottom)])


# Separate loops over arrays of one axis, which the compiler vectorizes.


@compile_lazily
def _put(total, weight, line):
    for i in range(len(total)):
        total[i] = weight * line[i]


@compile_lazily
def _add_both(total, weight, one, other):
    for i in range(len(total)):
        total[i] += weight * (one[i] + other[i])
