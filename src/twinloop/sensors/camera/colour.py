"""Model the colours of a camera sensor: colour filters, white balance, demosaicing and colour correction."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinloop.core.imaging import LUMA
from twinloop.sensors.camera.model import CameraModel
from twinloop.sensors.camera.seeds import CameraSeeds

_WAVES = 64  # in a drift; their sum is close to normal
_RGB = "rgb"


def filter_colours(mosaic: str) -> tuple[int, int, int, int]:
    """Return the filter colours of the upper left 2×2 pixels, row by row: 0 red, 1 green, 2 blue.

    ``mosaic`` is a Bayer pattern such as ``rggb``.
    """
    first, second, third, fourth = (_RGB.index(letter) for letter in mosaic)
    return first, second, third, fourth


def apply_filters(light: NDArray, model: CameraModel) -> NDArray[np.float64]:
    """Return the light behind the sensor's colour filters, normalized so that white light gives 1 behind each filter.

    Args:
        light: linear sRGB light, shape ``(n, height, width, 3)``.
        model: the camera.

    Returns:
        Shape ``(n, height, width)`` with one filter per pixel, or ``(n, height, width, 3)`` if the camera has no
        mosaic.
    """
    linear = np.asarray(light, dtype=np.float64)
    let_through = transmission(model)
    if model.mosaic == "none":
        mixed = np.stack([_weigh_colours(linear, row) for row in let_through], axis=-1)
    else:
        mixed = np.empty(linear.shape[:-1])
        for site, colour in enumerate(filter_colours(model.mosaic)):
            rows, columns = slice(site // 2, None, 2), slice(site % 2, None, 2)
            mixed[:, rows, columns] = _weigh_colours(linear[:, rows, columns], let_through[colour])
    return np.maximum(mixed, 0.0)


def transmission(model: CameraModel) -> NDArray[np.float64]:
    """Return the matrix from linear sRGB light to the light behind each filter, shape ``(3, 3)``; its rows sum to 1."""
    return np.asarray(np.linalg.inv(_matrix(model)), dtype=np.float64)


def responses(model: CameraModel) -> NDArray[np.float64]:
    """Return the sensitivity to white light behind the red, green and blue filter, relative to green, ``(3,)``."""
    return np.array([model.red_response, 1.0, model.blue_response])


class WhiteBalance:
    """White balance of one camera: gains of red, green and blue, which may drift over time."""

    def __init__(self, model: CameraModel, seeds: CameraSeeds) -> None:
        self._gains = np.array([model.white_balance_red, 1.0, model.white_balance_blue]) / responses(model)
        self._size = model.white_balance_drift
        colours = ("red", "blue") if self._size > 0.0 else ()
        self._waves = [
            DriftProcess.of(seeds, f"white_balance/{colour}", model.white_balance_time) for colour in colours
        ]

    def gains(self, time: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the gains of red, green and blue at each time, shape ``(n, 3)``.

        ``time`` is in s, shape ``(n,)``.
        """
        gains = np.repeat(self._gains[None], len(time), axis=0)
        for column, waves in zip((0, 2), self._waves, strict=False):
            gains[:, column] *= np.exp(self._size * waves.at(time))
        return gains


class DriftProcess(NamedTuple):
    """Ornstein-Uhlenbeck process of variance 1, with the autocorrelation exp(−|t| / T) for a correlation time T.

    It is a sum of sine waves with random phases, whose frequencies are sampled from the spectrum of the process
    (random Fourier features: Rahimi and Recht, NIPS 2007). Its value is therefore a function of time, independent
    of the times at which images are taken.

    Attributes:
        rates: angular frequencies, in rad/s.
        phases: phases, in rad.
    """

    rates: NDArray[np.float64]
    phases: NDArray[np.float64]

    @classmethod
    def of(cls, seeds: CameraSeeds, stage: str, correlation_time: float) -> DriftProcess:
        """Create the drift process of one effect.

        Args:
            seeds: seeds of the camera's random numbers.
            stage: name of the effect, which identifies its random numbers.
            correlation_time: correlation time, in s.
        """
        frequency, phase = seeds.uniforms(stage, 2 * _WAVES).reshape(2, _WAVES)
        return cls(rates=np.tan(np.pi * (frequency - 0.5)) / correlation_time, phases=2.0 * np.pi * phase)

    def at(self, time: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values of the process at times ``(n,)`` in s, shape ``(n,)``."""
        return np.cos(self.rates * time[:, None] + self.phases).sum(axis=1) * math.sqrt(2.0 / _WAVES)


def compute_mixing_matrix(model: CameraModel) -> NDArray[np.float64]:
    """Return the 3×3 matrix from white-balanced sensor colours to linear sRGB, including the saturation setting."""
    return (model.saturation * np.eye(3) + (1.0 - model.saturation) * LUMA) @ _matrix(model)


def apply_matrix(linear: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each colour multiplied by a 3×3 matrix, shape ``(…, 3)``."""
    return np.stack([_weigh_colours(linear, row) for row in matrix], axis=-1)


def _matrix(model: CameraModel) -> NDArray[np.float64]:
    """Return the colour matrix of the camera with rows that sum to 1, so that white does not change."""
    matrix = np.reshape(model.colour_matrix, (3, 3))
    return matrix / matrix.sum(axis=1, keepdims=True)


def _weigh_colours(linear: NDArray[np.float64], row: NDArray[np.float64]) -> NDArray[np.float64]:
    return linear[..., 0] * row[0] + linear[..., 1] * row[1] + linear[..., 2] * row[2]


class _ColourInterpolation(NamedTuple):
    """Interpolated values of the colours that a pixel's filter does not measure, each for all pixels.

    Attributes:
        green: green at a red or blue pixel.
        row: at a green pixel, the colour of its left and right neighbours.
        column: at a green pixel, the colour of its upper and lower neighbours.
        diagonal: at a red pixel blue, at a blue pixel red (the colour of the diagonal neighbours).
    """

    green: NDArray[np.float64]
    row: NDArray[np.float64]
    column: NDArray[np.float64]
    diagonal: NDArray[np.float64]


def demosaic(plane: NDArray[np.float64], mosaic: str, *, malvar: bool) -> NDArray[np.float64]:
    """Return RGB images from white-balanced pixels behind a colour filter mosaic, shape ``(n, height, width, 3)``.

    The image is mirrored beyond its borders.

    Args:
        plane: one value per pixel, shape ``(n, height, width)``.
        mosaic: Bayer pattern such as ``rggb``.
        malvar: if true, add a gradient correction from the known colour (H. S. Malvar, L. He, R. Cutler,
            "High-quality linear interpolation for demosaicing of Bayer-patterned color images", ICASSP 2004); if
            false, use the mean of the nearest pixels of each colour (bilinear).
    """
    interpolated = _malvar(plane) if malvar else _bilinear(plane)
    colours = np.empty((*plane.shape, 3))
    sites = filter_colours(mosaic)
    for site, known in enumerate(sites):
        here = (slice(None), slice(site // 2, None, 2), slice(site % 2, None, 2))
        colours[(*here, known)] = plane[here]
        if known == 1:
            colours[(*here, sites[site ^ 1])] = interpolated.row[here]
            colours[(*here, sites[site ^ 2])] = interpolated.column[here]
        else:
            colours[(*here, 1)] = interpolated.green[here]
            colours[(*here, 2 - known)] = interpolated.diagonal[here]
    return colours


def _bilinear(plane: NDArray[np.float64]) -> _ColourInterpolation:
    row, column, corners, _, _ = _sum_neighbours(plane)
    return _ColourInterpolation(
        green=(column + row) * 0.25, row=row * 0.5, column=column * 0.5, diagonal=corners * 0.25
    )


def _malvar(plane: NDArray[np.float64]) -> _ColourInterpolation:
    row, column, corners, row2, column2 = _sum_neighbours(plane)
    return _ColourInterpolation(
        green=(4.0 * plane + 2.0 * (column + row) - (column2 + row2)) * 0.125,
        row=(5.0 * plane + 4.0 * row - corners - row2 + 0.5 * column2) * 0.125,
        column=(5.0 * plane + 4.0 * column - corners - column2 + 0.5 * row2) * 0.125,
        diagonal=(6.0 * plane + 2.0 * corners - 1.5 * (column2 + row2)) * 0.125,
    )


def _sum_neighbours(plane: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return five sums of neighbour pixels for every pixel.

    Returns:
        Sums over the neighbours left and right, above and below, at the four corners, two columns left and right,
        and two rows above and below.
    """
    height, width = plane.shape[-2:]
    wide = np.pad(plane, ((0, 0), (2, 2), (2, 2)), mode="reflect")

    def at(down: int, right: int) -> NDArray[np.float64]:
        return wide[:, 2 + down : 2 + down + height, 2 + right : 2 + right + width]

    row, column = at(0, -1) + at(0, 1), at(-1, 0) + at(1, 0)
    corners = (at(-1, -1) + at(-1, 1)) + (at(1, -1) + at(1, 1))
    return row, column, corners, at(0, -2) + at(0, 2), at(-2, 0) + at(2, 0)
