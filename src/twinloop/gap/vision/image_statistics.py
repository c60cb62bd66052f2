"""Compute image statistics that depend on camera settings: colours, tone, shading, edges and noise, per episode.

All statistics are measured on the delivered 8-bit values, in the same way for real and simulated images. Therefore the
biases of an estimator cancel in the difference. `camera_remedy` converts differences to camera parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, maximum_filter

from twinloop.core.imaging import LUMA, srgb_to_linear
from twinloop.core.seeds import generator
from twinloop.dataset.media.images import Images
from twinloop.sensors.camera.shading import radius_squared

Array = NDArray[np.float64]
QUANTILES = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98])
CHROMA_QUANTILES = np.array([0.5, 0.75, 0.95])
RINGS = 5  # of equal area, from the middle of the image to its corners
# 8-bit levels between which noise is measured: equal steps of display values, without clipped values.
NOISE_LEVELS = np.array([12.0, 40.0, 70.0, 100.0, 130.0, 160.0, 190.0, 220.0, 244.0])
_PIXELS = 1024  # per episode for colour statistics: a quantile's standard error is 0.5/√1024 = 1.6 % of rank
_BLOCK = 8  # pixels, as in JPEG: noise changes at the borders of its blocks
_FLATTEST = 0.1  # part of the blocks of a level that count as flat
_FEWEST_BLOCKS = 30  # a tenth of them is three blocks
_NARROW, _WIDE = 0.7, 1.4  # standard deviations in px of the two Gaussians that measure an edge's width
_EDGES = 0.01  # part of the pixels that may be edges: those with the largest gradients
_STENCIL = 1.0 / 3.0  # px²: variance of a central difference's two-pixel box


@dataclass(frozen=True, kw_only=True)
class PixelSample:
    """Sampled pixels of one episode.

    Attributes:
        values: Display values from 0 to 1, shape ``(npixel, 3)``.
        radius2: Squared distance from the image centre, shape ``(npixel,)``; 0 at the centre, 1 in a corner.
    """

    values: Array
    radius2: Array


@dataclass(frozen=True, kw_only=True)
class ImageStatistics:
    """Image statistics of E episodes; the first axis of every array is the episode.

    Attributes:
        means: Mean display value of red, green and blue, 0 to 255, shape ``(E, 3)``.
        levels: Quantiles (`QUANTILES`) of the display values from 0 to 1, by colour, shape ``(E, 3, nquantile)``.
        chroma: Quantiles (`CHROMA_QUANTILES`) of the largest minus the smallest colour of a pixel, ``(E, nquantile)``.
        rings: Mean linear luma in rings of equal area around the centre, divided by that of the whole image, ``(E,
            nring)``.
        contrast: Standard deviation of display luma, 0 to 255, shape ``(E,)``.
        balance: Ratio of mean linear red and of mean linear blue to mean linear green, shape ``(E, 2)``.
        edge: Spread (standard deviation) of the strongest edges in px, shape ``(E,)``; NaN if there are no edges.
        slope: Slope of log power over log spatial frequency, shape ``(E,)``; about −2 for natural scenes.
        noise: Variance in flat green blocks in (8-bit steps)², by brightness level (`NOISE_LEVELS`), ``(E, nlevel)``;
            NaN if a level has too few blocks.
    """

    means: Array
    levels: Array
    chroma: Array
    rings: Array
    contrast: Array
    balance: Array
    edge: Array
    slope: Array
    noise: Array

    def __len__(self) -> int:
        return len(self.means)

    @classmethod
    def join_episodes(cls, rows: Iterable[ImageStatistics]) -> ImageStatistics:
        """Join the statistics of several episodes into one object, in order."""
        rows = list(rows)
        return cls(**{f.name: np.concatenate([getattr(row, f.name) for row in rows]) for f in fields(cls)})


def compute_image_statistics(images: Images, pixels: PixelSample) -> ImageStatistics:
    """Compute the statistics of one episode from its images ``(n, h, w, 3)`` and the pixels sampled from them."""
    luma = np.asarray(images @ LUMA, dtype=np.float64)
    levels, chroma, rings, balance = compute_colour_statistics(pixels.values[None])
    return ImageStatistics(
        means=images.mean(axis=(0, 1, 2))[None],
        levels=levels,
        chroma=chroma,
        rings=rings,
        balance=balance,
        contrast=np.array([luma.std(axis=(1, 2)).mean()]),
        edge=np.array([measure_edge_spread(images)]),
        slope=np.array([_spectral_slope(luma)]),
        noise=measure_noise(images)[None],
    )


def sample_pixels(images: Images, *, seed: int = 0) -> PixelSample:
    """Sample random pixels from all images of an episode, the same number in each ring around the image centre."""
    n, height, width = images.shape[:3]
    radius2 = radius_squared(height, width).ravel()
    order = np.argsort(radius2, kind="stable")
    rng = generator(seed, "gap/vision/pixels")
    bounds = np.linspace(0, len(order), RINGS + 1).astype(np.intp)
    places = np.concatenate([order[rng.integers(a, b, _PIXELS // RINGS)] for a, b in itertools.pairwise(bounds)])
    chosen = images.reshape(n, -1, 3)[rng.integers(0, n, len(places)), places]
    return PixelSample(values=chosen / 255.0, radius2=radius2[places])


def compute_colour_statistics(values: Array) -> tuple[Array, Array, Array, Array]:
    """Return four colour statistics of each episode: levels, chroma, rings and balance.

    They are quantiles of the display values by colour, quantiles of chroma, the light in rings around the image centre,
    and the ratios of red and of blue to green; see `ImageStatistics`.

    Args:
        values: Display values from 0 to 1 of sampled pixels, shape ``(nepisode, npixel, 3)``. The pixels of each
            episode are ordered by ring, the innermost first, as `sample_pixels` returns them.
    """
    levels = np.moveaxis(np.quantile(values, QUANTILES, axis=1), 0, -1)
    chroma = np.quantile(values.max(axis=-1) - values.min(axis=-1), CHROMA_QUANTILES, axis=1).T
    linear = srgb_to_linear(values)
    luma = (linear @ LUMA).reshape(len(values), RINGS, -1).mean(axis=-1)
    rings = luma / np.maximum(luma.mean(axis=1, keepdims=True), 1e-6)
    sums = np.maximum(linear.mean(axis=1), 1e-6)
    return levels, chroma, rings, sums[:, [0, 2]] / sums[:, [1]]


def measure_edge_spread(images: Images) -> float:
    """Return the spread of the strongest edges of linear luma, a standard deviation in px; NaN if there are no edges.

    The image is blurred by two Gaussians, a narrow and a wide one. After a blur of width s, the steepest gradient of a
    step with spread σ is proportional to (σ² + s²)^-½. The ratio of two such gradients determines σ (S. Zhuo & T. Sim,
    "Defocus map estimation from a single image", Pattern Recognition 44, 2011). The result is the median over the
    ridges (local maxima) of the gradient after the wide blur, because noise forms few such ridges.
    """
    found: list[Array] = []
    for image in images:
        luma = _linear_table()[image] @ LUMA
        narrow, wide = (_gradient_magnitude(gaussian_filter(luma, s, mode="nearest")) for s in (_NARROW, _WIDE))
        inner = np.zeros(luma.shape, dtype=bool)
        inner[4:-4, 4:-4] = True
        ridge = inner & (wide == maximum_filter(wide, 3)) & (wide > max(np.quantile(wide, 1.0 - _EDGES), 1e-3))
        found.append(narrow[ridge] / wide[ridge])
    ratios = np.concatenate(found)
    if not len(ratios):
        return np.nan
    square = float(np.median(ratios)) ** 2
    narrow2, wide2 = _NARROW**2 + _STENCIL, _WIDE**2 + _STENCIL
    return float(np.sqrt(max((wide2 - square * narrow2) / max(square - 1.0, 1e-3), 0.0)))


def measure_noise(images: Images) -> Array:
    """Return the variance of green in flat blocks at each brightness level, shape ``(nlevel,)``, in (8-bit steps)².

    The mean square of the second differences in both directions is computed for each block of 8 × 8 pixels. Second
    differences are zero on planes and on edges parallel to a side (J. Immerkær, "Fast noise variance estimation", CVIU
    64, 1996). The result of a level is the 10 % quantile over its blocks, divided by `_flat_share`, so that it is
    correct for white noise. It is NaN if there are too few blocks.
    """
    squares, means = [], []
    for image in images:
        green = image[..., 1].astype(np.float64)
        change = _second_differences(green) ** 2 / 36.0
        rows, columns = (side // _BLOCK for side in change.shape)
        cut = (slice(rows * _BLOCK), slice(columns * _BLOCK))
        for target, source in ((squares, change[cut]), (means, green[1:-1, 1:-1][cut])):
            target.append(source.reshape(rows, _BLOCK, columns, _BLOCK).mean(axis=(1, 3)).ravel())
    square, mean = np.concatenate(squares), np.concatenate(means)
    level = np.digitize(mean, NOISE_LEVELS) - 1
    found = np.full(len(NOISE_LEVELS) - 1, np.nan)
    for number in range(len(found)):
        here = square[level == number]
        if len(here) >= _FEWEST_BLOCKS:
            found[number] = np.quantile(here, _FLATTEST) / _flat_share()
    return found


@cache
def _flat_share() -> float:
    """Return the 10 % quantile, over 8 × 8 pixel blocks, of the mean squared second difference in white noise.

    The noise has variance 1. `measure_noise` divides its quantile by this number.
    """
    noise = generator(0, "gap/vision/white").standard_normal((802, 802))
    blocks = (_second_differences(noise) ** 2 / 36.0).reshape(100, _BLOCK, 100, _BLOCK).mean(axis=(1, 3))
    return float(np.quantile(blocks, _FLATTEST))


def _second_differences(values: Array) -> Array:
    """Return the second differences in both directions at each inner pixel.

    Their variance in white noise is 36 times the variance of the noise.
    """
    down = values[:-2] - 2.0 * values[1:-1] + values[2:]
    return down[:, :-2] - 2.0 * down[:, 1:-1] + down[:, 2:]


def _gradient_magnitude(values: Array) -> Array:
    down, across = np.gradient(values)
    return np.hypot(down, across)


def _spectral_slope(luma: Array) -> float:
    """Return the slope of log power over log spatial frequency, from 0.03 to 0.3 cycles per pixel.

    Args:
        luma: Luma of images, shape ``(n, height, width)``.
    """
    height, width = luma.shape[1:]
    window = np.outer(np.hanning(height), np.hanning(width))
    power = np.mean(np.abs(np.fft.rfft2((luma - luma.mean(axis=(1, 2), keepdims=True)) * window)) ** 2, axis=0)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    inside = (frequency > 0.03) & (frequency < 0.3)
    x, y = np.log(frequency[inside]), np.log(power[inside] + 1e-9)
    weight = 1.0 / frequency[inside]  # equal weight per octave
    x = x - np.average(x, weights=weight)
    return float(np.sum(weight * x * y) / np.sum(weight * x * x))


@cache
def _linear_table() -> Array:
    return srgb_to_linear(np.arange(256) / 255.0)
