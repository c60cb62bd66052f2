"""Encode an image as 256 fixed features, without a learned model.

There are six groups of features. Each group is divided by a constant, so that images of two robot scenes differ by
about 1 in each group:

    colour    36  histograms of L*, a* and b*, 12 bins each, as square roots of shares (Swain & Ballard, "Color
                  indexing", IJCV 7, 1991; with the roots, the Euclidean distance is the Hellinger distance)
    layout    48  mean L*, a*, b* on a grid of 4 × 4 (as the colour layout of MPEG-7, ISO/IEC 15938-3)
    edges     96  histograms of gradient orientation: 4 × 4 cells with 4 orientations at 128 × 128 pixels, 2 × 2 cells
                  with 8 at 32 × 32 (Dalal & Triggs, "Histograms of oriented gradients for human detection", CVPR 2005)
    texture   20  rotation-invariant uniform local binary patterns, 8 neighbours, at full and half size (Ojala,
                  Pietikäinen & Mäenpää, IEEE PAMI 24, 2002)
    spectrum   8  log power in 7 octave-like bands of spatial frequency and its slope (Field, JOSA A 4, 1987;
                  Torralba & Oliva, "Statistics of natural image categories", Network 14, 2003)
    gist      48  energies of 12 Gabor filters, 3 scales of 4 orientations, on a grid of 2 × 2 (Oliva & Torralba,
                  "Modeling the shape of the scene", IJCV 42, 2001)

Texture and spectrum are computed from the original pixels, so that they change with noise and blur. Compared images
must therefore have the same size. The other groups are computed from images that are averaged to 128 × 128 pixels.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.files import sha256_file
from twinloop.core.imaging import LUMA, srgb_to_linear
from twinloop.dataset.media.images import Images, resize_images

Array = NDArray[np.float32]
_SIDE = 128
# From linear sRGB to XYZ over the white of D65 (IEC 61966-2-1), so that white has L* 100, a* and b* 0.
_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
_BINS, _REACH = 12, ((0.0, 100.0), (-60.0, 60.0), (-60.0, 60.0))  # ranges of L*, a*, b*: few surfaces are outside
_BANDS = np.array([0.0, 0.02, 0.04, 0.08, 0.14, 0.22, 0.34, 0.71])  # cycles per pixel
_WAVELENGTHS, _DIRECTIONS = (4.0, 8.0, 16.0), 4  # Gabor filters at 128 pixels: periods in pixels, orientations
_SMALLEST = 64  # pixels per side: the lowest band of the spectrum then contains a frequency
_FLAT = 1e-4  # fraction of the range below which gradients and powers are rounding errors
# Root mean square distance between images, per block: so101_tabletop with default randomization, front camera at
# 240 × 320 pixels, 8 images of each of 20 episodes.
_SCALES = {"colour": 1.3, "layout": 120.0, "edges": 0.71, "texture": 0.075, "spectrum": 0.87, "gist": 0.049}


class ClassicalEncoder:
    """Image encoder with 256 fixed features, without a learned model.

    The six groups are colour, layout, edges, texture, spectrum and gist (Gabor energies); see the module.
    """

    name = "classical"
    dimension = 256

    @property
    def hash(self) -> str:
        """SHA-256 of the source code of this module, so that features of different versions are not compared."""
        return _hash()

    def encode(self, images: Images) -> NDArray[np.float64]:
        """Return features, shape ``(n, 256)``, of sRGB images, shape ``(n, h, w, 3)``, uint8.

        Raises:
            InputError: If a side of the images is shorter than 64 pixels.
        """
        if min(images.shape[1:3]) < _SMALLEST:
            raise InputError(
                f"Images of {images.shape[2]}x{images.shape[1]} are too small for classical features, which need "
                f"sides of {_SMALLEST} pixels or more. Give larger ones, or another --embedding."
            )
        blocks = compute_features(images)
        return np.concatenate([blocks[name] / scale for name, scale in _SCALES.items()], axis=1)


def compute_features(images: Images) -> dict[str, NDArray[np.float64]]:
    """Return six groups of features by name, shape ``(n, width)`` each, before scaling.

    The groups are ``colour``, ``layout``, ``edges``, ``texture``, ``spectrum`` and ``gist``.

    Args:
        images: sRGB images, shape ``(n, h, w, 3)``, uint8.
    """
    small = resize_images(images, (_SIDE, _SIDE))
    lab = convert_to_lab(small)
    grey = images.astype(np.float32) @ (LUMA / 255.0).astype(np.float32)
    light = lab[..., 0] / 100.0
    blocks = {
        "colour": np.concatenate([_compute_histogram(lab[..., c], *_REACH[c]) for c in range(3)], axis=1),
        "layout": _average_cells(lab, 4).reshape(len(lab), -1),
        "edges": np.concatenate(
            [_orientation_histogram(light, 4, 4), _orientation_histogram(_halve_size(_halve_size(light)), 2, 8)], axis=1
        ),
        "texture": np.concatenate([_pattern_histogram(grey), _pattern_histogram(_halve_size(grey))], axis=1),
        "spectrum": _spectrum_features(grey),
        "gist": _gabor_energies(light),
    }
    return {name: np.asarray(block, dtype=np.float64) for name, block in blocks.items()}


def convert_to_lab(images: Images) -> Array:
    """Convert sRGB images, shape ``(…, 3)``, uint8, to CIE L*a*b* (CIE 15:2004) under illuminant D65."""
    xyz = _linear_table()[images] @ (_XYZ / _XYZ.sum(axis=1, keepdims=True)).T.astype(np.float32)
    root = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz * ((29 / 6) ** 2 / 3) + 4 / 29)
    x, y, z = root[..., 0], root[..., 1], root[..., 2]
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


@cache
def _linear_table() -> Array:
    return srgb_to_linear(np.arange(256) / 255.0).astype(np.float32)


@cache
def _hash() -> str:
    return sha256_file(Path(__file__))


def _compute_histogram(values: Array, low: float, high: float) -> Array:
    """Return the histogram of each image with 12 bins, shape ``(n, 12)``, as square roots of shares.

    A value is divided between the two nearest bins by linear interpolation: the nearer bin gets the larger part.

    Args:
        values: One channel of n images, shape ``(n, h, w)``.
        low: Lower end of the first bin.
        high: Upper end of the last bin.
    """
    n, flat = len(values), values.reshape(len(values), -1)
    place = np.clip((flat - low) / (high - low) * _BINS - 0.5, 0, _BINS - 1)
    first = np.minimum(place.astype(np.intp), _BINS - 2)
    part = place - first
    slot = first + _BINS * np.arange(n)[:, None]
    counts = np.bincount(slot.ravel(), weights=(1 - part).ravel(), minlength=n * _BINS)
    counts += np.bincount((slot + 1).ravel(), weights=part.ravel(), minlength=n * _BINS)
    return np.sqrt(counts.reshape(n, _BINS) / flat.shape[1])


def _average_cells(values: Array, grid: int) -> Array:
    """Return the means over the cells of a grid, shape ``(n, grid, grid, …)``.

    Args:
        values: Square images, shape ``(n, side, side, …)``.
        grid: Number of cells per side.
    """
    step = values.shape[1] // grid
    parts = values.reshape(len(values), grid, step, grid, step, *values.shape[3:])
    return parts.mean(axis=(2, 4))


def _halve_size(values: Array) -> Array:
    """Halve the height and width of images, shape ``(n, h, w)``, by averaging 2 × 2 pixels."""
    height, width = (side // 2 * 2 for side in values.shape[1:3])
    even = values[:, :height, :width]
    return (even[:, ::2, ::2] + even[:, 1::2, ::2] + even[:, ::2, 1::2] + even[:, 1::2, 1::2]) * np.float32(0.25)


def _orientation_histogram(values: Array, grid: int, bins: int) -> Array:
    """Return histograms of gradient orientation (HOG) per grid cell, shape ``(n, grid² · bins)``.

    Each pixel is weighted by its gradient magnitude; opposite directions are equal. Values are square roots of shares.

    Args:
        values: Lightness of square images, shape ``(n, side, side)``.
        grid: Number of cells per side.
        bins: Number of orientations per cell.
    """
    down, across = np.gradient(values, axis=(1, 2))
    size = np.hypot(down, across)
    turn = (np.arctan2(down, across) / np.pi % 1.0 * bins).astype(np.intp) % bins
    n, side = len(values), values.shape[1]
    row = np.arange(side) * grid // side
    slot = ((np.arange(n)[:, None, None] * grid + row[:, None]) * grid + row) * bins + turn
    sums = np.bincount(slot.ravel(), weights=size.ravel(), minlength=n * grid * grid * bins).reshape(n, -1)
    return np.sqrt(sums / np.maximum(sums.sum(axis=1, keepdims=True), _FLAT * side * side))


def _pattern_histogram(grey: Array) -> Array:
    """Return histograms of local binary patterns, shape ``(n, 10)``, as square roots of shares.

    The bins are the uniform patterns with 0 to 8 bright neighbours, and all other patterns.

    Args:
        grey: Grey images, shape ``(n, h, w)``.
    """
    middle = grey[:, 1:-1, 1:-1]
    around = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0)]
    code = np.zeros(middle.shape, dtype=np.uint8)
    for bit, (y, x) in enumerate(around):
        neighbour = grey[:, y : y + middle.shape[1], x : x + middle.shape[2]]
        code |= (neighbour >= middle).astype(np.uint8) << bit
    label = _classify_patterns()[code].reshape(len(grey), -1) + 10 * np.arange(len(grey))[:, None]
    return np.sqrt(np.bincount(label.ravel(), minlength=10 * len(grey)).reshape(-1, 10) / label.shape[1])


@cache
def _classify_patterns() -> NDArray[np.intp]:
    """Return the histogram bin of each of the 256 local binary patterns, shape ``(256,)``.

    It is the number of bright neighbours if these are contiguous (a uniform pattern), else 9.
    """
    bits = np.arange(256)[:, None] >> np.arange(8) & 1
    changes = (bits != np.roll(bits, 1, axis=1)).sum(axis=1)
    return np.where(changes <= 2, bits.sum(axis=1), 9)


def _spectrum_features(grey: Array) -> Array:
    """Return log10 of the mean power in 7 frequency bands, and its slope over log10 frequency, shape ``(n, 8)``.

    Args:
        grey: Grey images, shape ``(n, h, w)``.
    """
    height, width = grey.shape[1:3]
    window = np.outer(np.hanning(height), np.hanning(width)).astype(np.float32)
    centred = (grey - grey.mean(axis=(1, 2), keepdims=True)) * window
    power = np.abs(np.asarray(scipy.fft.rfft2(centred))) ** 2 / (window**2).sum()
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    band = np.digitize(frequency, _BANDS[1:-1])
    floor = _FLAT**2  # keeps the logarithm finite for an image of one colour
    sums = [power[:, band == b].mean(axis=1) for b in range(len(_BANDS) - 1)]
    levels = np.log10(np.stack(sums, axis=1) + floor)
    middle = np.log10(np.array([frequency[(band == b) & (frequency > 0)].mean() for b in range(len(_BANDS) - 1)]))
    slope = (
        (levels - levels.mean(axis=1, keepdims=True)) @ (middle - middle.mean()) / np.sum((middle - middle.mean()) ** 2)
    )
    return np.concatenate([levels, slope[:, None]], axis=1)


def _gabor_energies(light: Array) -> Array:
    """Return the root mean square response of 12 Gabor filters in 2 × 2 cells, shape ``(n, 48)``.

    Args:
        light: Lightness of the images, shape ``(n, 128, 128)``.
    """
    spectrum = np.asarray(scipy.fft.fft2(light - light.mean(axis=(1, 2), keepdims=True)))
    energies = []
    for transfer in _gabor_filters():
        response = np.asarray(scipy.fft.ifft2(spectrum * transfer))
        energies.append(np.sqrt(_average_cells(response.real**2 + response.imag**2, 2)).reshape(len(light), -1))
    return np.concatenate(energies, axis=1)


@cache
def _gabor_filters() -> Array:
    """Return the transfer functions of 12 Gabor filters, by wavelength and then direction, shape ``(12, 128, 128)``.

    Each is a Gaussian in the frequency plane with a bandwidth of one octave. There is no second Gaussian at the
    negative frequency, so the response is complex.
    """
    down, across = np.meshgrid(np.fft.fftfreq(_SIDE), np.fft.fftfreq(_SIDE), indexing="ij")
    filters = []
    for wavelength in _WAVELENGTHS:
        for direction in range(_DIRECTIONS):
            angle = np.pi * direction / _DIRECTIONS
            along = across * np.cos(angle) + down * np.sin(angle)
            perpendicular = down * np.cos(angle) - across * np.sin(angle)
            width = 0.35 / wavelength  # half an octave to either side at half height
            filters.append(np.exp(-0.5 * (((along - 1 / wavelength) / width) ** 2 + (perpendicular / width) ** 2)))
    return np.array(filters, dtype=np.float32)
