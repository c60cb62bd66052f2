"""Model how a lens and its dust change the light on the sensor: vignetting, dust shadows, veiling glare and ghosts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera.seeds import CameraSeeds, poisson_of_words
from twinloop.sensors.compiled import compile_lazily, run_over_rows

_DUST = "dust"
_MOST_SPECKS = 1000
_SPREAD = 0.5  # standard deviation of the logarithm of the specks' radii


def vignetting_factors(height: int, width: int, vignetting: float) -> NDArray[np.float64]:
    """Return the light at each pixel relative to the centre, shape ``(height, width)``.

    By the natural law of vignetting the factor is cos⁴ θ, where θ is the angle of the incident light to the axis.
    Mechanical vignetting or a partial correction is approximated by an effective angle in the corners. With ρ, the
    pixel's distance from the centre divided by that of a corner, it is cos⁻² θ = 1 + ρ² tan² θ_corner.

    Args:
        height, width: size of the image in pixels.
        vignetting: share of the light lost at a corner, which determines θ_corner.
    """
    return vignetting_factors_at(radius_squared(height, width), vignetting)


def vignetting_factors_at(radius2: NDArray[np.float64], vignetting: float) -> NDArray[np.float64]:
    """Return the vignetting factor at squared relative distances ρ² from the centre (1 at a corner).

    ``vignetting`` is the share of the light lost at a corner.
    """
    steepness = (1.0 - vignetting) ** -0.5 - 1.0  # tan² of the corner's angle
    return (1.0 + steepness * radius2) ** -2.0


def radius_squared(height: int, width: int) -> NDArray[np.float64]:
    """Return the squared distance of each pixel's centre from the image centre, shape ``(height, width)``.

    It is relative to that of the image corner, which has the value 1.
    """
    across = ((np.arange(width) + 0.5) / (width / 2) - 1.0) * width
    down = ((np.arange(height) + 0.5) / (height / 2) - 1.0) * height
    return (across**2 + down[:, None] ** 2) / (width**2 + height**2)


def dust_shadows(
    height: int, width: int, seeds: CameraSeeds, *, count: float, radius: float, depth: float
) -> NDArray[np.float64]:
    """Return the share of light that passes the dust near the sensor, shape ``(height, width)``; 1 means no dust.

    The number of specks is Poisson distributed, their positions are uniform, their radii log-normal. The edge of a
    shadow is as wide as its radius, because dust is out of focus.

    Args:
        height: height of the image, in pixels.
        width: width of the image, in pixels.
        seeds: seeds of the random numbers.
        count: mean number of specks.
        radius: median radius of a shadow, in image heights.
        depth: largest share of the light that a speck absorbs; the share of each speck is uniform from 0 to ``depth``.
    """
    specks = _draw_speck_count(seeds, count)
    transmitted = np.ones((height, width))
    if not specks:
        return transmitted
    places = seeds.uniforms(_DUST, 4 * _MOST_SPECKS, unit=True).reshape(-1, 4)[1 : 1 + specks, :3]
    sizes = radius * height * np.exp(_SPREAD * seeds.normals(f"{_DUST}/radius", specks, unit=True))
    for (right, down, part), size in zip(places, sizes, strict=True):
        x, y, reach = right * width, down * height, 1.5 * size + 1.0
        rows = slice(max(int(y - reach), 0), max(int(y + reach) + 1, 0))
        columns = slice(max(int(x - reach), 0), max(int(x + reach) + 1, 0))
        far = np.hypot(np.arange(width)[columns] + 0.5 - x, (np.arange(height)[rows] + 0.5 - y)[:, None])
        inside = np.clip(1.5 - far / size, 0.0, 1.0)
        transmitted[rows, columns] *= 1.0 - part * depth * inside**2 * (3.0 - 2.0 * inside)
    return transmitted


def _draw_speck_count(seeds: CameraSeeds, count: float) -> int:
    """Return a Poisson number with the mean ``count``, as a sum of Poisson numbers with smaller means; at most 999."""
    parts = int(count // 16.0) + 1
    words = seeds.words(f"{_DUST}/count", parts, unit=True)
    return min(int(poisson_of_words(words, np.full(parts, count / parts)).sum()), _MOST_SPECKS - 1)


CELL = 16  # pixels; scattered light is far smoother than a cell of the grid it is computed on


@dataclass(frozen=True, kw_only=True)
class ScatteredLight:
    """Scattered and reflected light (glare) of n images on a coarse grid.

    Glare is interpolated linearly between the centres of the grid's cells, and is constant beyond the outer centres.

    Attributes:
        direct_share: share of the light that is not scattered or reflected.
        grid: glare in each cell, shape ``(n, rows, columns, 3)``.
    """

    direct_share: float
    grid: NDArray[np.float64]

    def interpolate_pixels(self, height: int, width: int) -> NDArray[np.float64]:
        """Return the glare at every pixel in the unit of the light, shape ``(n, height, width, 3)``."""
        low, high, part = interpolate_cells(height)
        rows = self.grid[:, low] * (1.0 - part)[:, None, None] + self.grid[:, high] * part[:, None, None]
        low, high, part = interpolate_cells(width)
        return rows[:, :, low] * (1.0 - part)[:, None] + rows[:, :, high] * part[:, None]


def compute_glare(
    light: NDArray[np.float32], *, scattered: float, width: float, ghost: float, fast: bool = False
) -> ScatteredLight:
    """Compute the glare of images: veiling glare and the ghost image.

    Veiling glare is the light after a Gaussian blur. The light is continued beyond the border with its border
    values, so that a uniform image does not change. The ghost image is the light mirrored at the image centre.

    Args:
        light: linear light, shape ``(n, height, width, 3)``.
        scattered: share of the light in the veiling glare.
        width: standard deviation of the blur, in image heights.
        ghost: share of the light in the ghost image.
        fast: whether to use compiled code.
    """
    coarse = _cell_means(light, fast)
    down = _spread_weights(coarse.shape[1], width * light.shape[1] / CELL)
    across = _spread_weights(coarse.shape[2], width * light.shape[1] / CELL)
    wide = across @ (down @ coarse.reshape(*coarse.shape[:2], -1)).reshape(coarse.shape)
    return ScatteredLight(direct_share=1.0 - scattered - ghost, grid=scattered * wide + ghost * coarse[:, ::-1, ::-1])


def interpolate_cells(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Return the weights to interpolate from grid cells to the pixels of one image side.

    Returns:
        For each pixel the lower and the upper neighbour cell, and its position between their centres from 0 to 1.
    """
    cells = math.ceil(size / CELL)
    edges = np.minimum(np.arange(cells + 1) * CELL, size)
    middles = 0.5 * (edges[:-1] + edges[1:])
    place = np.clip(np.interp(np.arange(size) + 0.5, middles, np.arange(cells)), 0.0, cells - 1.0)
    low = np.minimum(place.astype(np.intp), max(cells - 2, 0))
    return low, np.minimum(low + 1, cells - 1), place - low


def _cell_means(light: NDArray[np.float32], fast: bool) -> NDArray[np.float64]:
    """Return the mean light of each grid cell, shape ``(n, rows, columns, 3)``; the last cells may be smaller."""
    count, height, width, _ = light.shape
    starts = [np.arange(0, side, CELL) for side in (height, width)]
    if fast:
        columns = np.empty((count, len(starts[0]), width, 3))
        for image, sums in zip(light, columns, strict=True):
            run_over_rows(_add_rows, len(starts[0]), image, sums)
    else:
        columns = np.add.reduceat(light, starts[0], axis=1, dtype=np.float64)
    total = np.add.reduceat(columns, starts[1], axis=2)
    counts = [
        np.diff(np.append(start, side)).astype(np.float64) for start, side in zip(starts, (height, width), strict=True)
    ]
    return np.asarray(total, dtype=np.float64) / (counts[0][:, None, None] * counts[1][:, None])


@compile_lazily
def _add_rows(first, last, image, sums):
    """Sum the image rows within each row of grid cells, for the cell rows ``first`` to ``last - 1``.

    Args:
        first, last: range of cell rows, excluding ``last``.
        image: linear light, shape ``(height, width, 3)``.
        sums: result, shape ``(cell rows, width, 3)``, written in place.
    """
    height, width, _ = image.shape
    for cell in range(first, last):
        into = sums[cell].reshape(3 * width)
        into[:] = 0.0
        for y in range(cell * CELL, min((cell + 1) * CELL, height)):
            row = image[y].reshape(3 * width)
            for x in range(3 * width):
                into[x] += row[x]


@lru_cache(maxsize=64)
def _spread_weights(cells: int, sigma: float) -> NDArray[np.float64]:
    """Return the Gaussian weights between the cells along one axis of the grid, ``(cells, cells)``; rows sum to 1.

    Args:
        cells: number of cells along the height or the width of the image.
        sigma: standard deviation, in cells.
    """
    at = np.arange(cells)
    weights = np.exp(-0.5 * ((at - at[:, None]) / max(sigma, 1e-3)) ** 2)
    return weights / weights.sum(axis=1, keepdims=True)
