"""Model the colour filters of a sensor: transmission, white balance, and demosaicing."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera.model import CameraModel
from twinloop.sensors.camera.seeds import CameraSeeds

LUMA = np.array([0.2126, 0.7152, 0.0722])  # of linear Rec. 709 light (ITU-R BT.709)
_WAVES = 64  # in a drift; their sum is close to normal
_RGB = "rgb"


def filter_colours(mosaic: str) -> tuple[int, int, int, int]:
    """Return the colours (0 red, 1 green, 2 blue) of the filters of the upper left four pixels, row by row."""
    first, second, third, fourth = (_RGB.index(letter) for letter in mosaic)
    return first, second, third, fourth


def apply_filters(light: NDArray, model: CameraModel) -> NDArray[np.float64]:
    """Return light ``(n, height, width, 3)`` behind the sensor's filters, relative to white light behind each.

    The result is ``(n, height, width)`` with a mosaic, which has one filter per pixel.
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
    """Return each filter's transmission of linear sRGB, ``(3, 3)``; white light is 1 behind each."""
    return np.asarray(np.linalg.inv(_matrix(model)), dtype=np.float64)


def responses(model: CameraModel) -> NDArray[np.float64]:
    """Return the electrons that white light frees behind each filter, relative to green, ``(3,)``."""
    return np.array([model.red_response, 1.0, model.blue_response])


class WhiteBalance:
    """White balance of one camera, which may drift with time."""

    def __init__(self, model: CameraModel, seeds: CameraSeeds) -> None:
        self._gains = np.array([model.white_balance_red, 1.0, model.white_balance_blue]) / responses(model)
        self._size = model.white_balance_drift
        colours = ("red", "blue") if self._size > 0.0 else ()
        self._waves = [
            DriftProcess.of(seeds, f"white_balance/{colour}", model.white_balance_time) for colour in colours
        ]

    def gains(self, time: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the gains of red, green and blue at each time ``(n,)`` in s, ``(n, 3)``."""
        gains = np.repeat(self._gains[None], len(time), axis=0)
        for column, waves in zip((0, 2), self._waves, strict=False):
            gains[:, column] *= np.exp(self._size * waves.at(time))
        return gains


class DriftProcess(NamedTuple):
    """Stationary process of variance 1 with the correlation exp(−|t| / ``forgetting``): rates in rad/s and phases.

    That is an Ornstein-Uhlenbeck process, as a sum of waves with random phases whose frequencies are drawn from its
    spectrum (Rahimi, Recht, NIPS 2007), so that it is a function of time, independent of the captures.
    """

    rates: NDArray[np.float64]
    phases: NDArray[np.float64]

    @classmethod
    def of(cls, seeds: CameraSeeds, stage: str, forgetting: float) -> DriftProcess:
        """Return the process of a stage; ``forgetting`` is the correlation time in s."""
        frequency, phase = seeds.uniforms(stage, 2 * _WAVES).reshape(2, _WAVES)
        return cls(rates=np.tan(np.pi * (frequency - 0.5)) / forgetting, phases=2.0 * np.pi * phase)

    def at(self, time: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return its values at times ``(n,)`` in s."""
        return np.cos(self.rates * time[:, None] + self.phases).sum(axis=1) * math.sqrt(2.0 / _WAVES)


def compute_mixing_matrix(model: CameraModel) -> NDArray[np.float64]:
    """Return the matrix ``(3, 3)`` from balanced colours to delivered linear sRGB: colour matrix, then saturation."""
    return (model.saturation * np.eye(3) + (1.0 - model.saturation) * LUMA) @ _matrix(model)


def apply_matrix(linear: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return colours ``(…, 3)`` multiplied by a matrix."""
    return np.stack([_weigh_colours(linear, row) for row in matrix], axis=-1)


def _matrix(model: CameraModel) -> NDArray[np.float64]:
    """Return the colour matrix, with rows normalized such that white does not change."""
    matrix = np.reshape(model.colour_matrix, (3, 3))
    return matrix / matrix.sum(axis=1, keepdims=True)


def _weigh_colours(linear: NDArray[np.float64], row: NDArray[np.float64]) -> NDArray[np.float64]:
    return linear[..., 0] * row[0] + linear[..., 1] * row[1] + linear[..., 2] * row[2]


class _ColourInterpolation(NamedTuple):
    """Missing colours at pixels of a known one: green, that of the row, that of the column, and the diagonal one."""

    green: NDArray[np.float64]
    beside: NDArray[np.float64]
    above: NDArray[np.float64]
    across: NDArray[np.float64]


def demosaic(plane: NDArray[np.float64], mosaic: str, *, malvar: bool) -> NDArray[np.float64]:
    """Return colours ``(n, height, width, 3)`` of white-balanced pixels ``(n, height, width)``.

    Bilinear: the mean of the nearest pixels of the colour. Malvar: the same, corrected by the second difference of the
    known colour (H. S. Malvar, L. He, R. Cutler, "High-quality linear interpolation for demosaicing of Bayer-patterned
    color images", ICASSP 2004). Beyond its edges the image is mirrored.
    """
    guesses = _malvar(plane) if malvar else _bilinear(plane)
    colours = np.empty((*plane.shape, 3))
    sites = filter_colours(mosaic)
    for site, known in enumerate(sites):
        here = (slice(None), slice(site // 2, None, 2), slice(site % 2, None, 2))
        colours[(*here, known)] = plane[here]
        if known == 1:
            colours[(*here, sites[site ^ 1])] = guesses.beside[here]
            colours[(*here, sites[site ^ 2])] = guesses.above[here]
        else:
            colours[(*here, 1)] = guesses.green[here]
            colours[(*here, 2 - known)] = guesses.across[here]
    return colours


def _bilinear(plane: NDArray[np.float64]) -> _ColourInterpolation:
    beside, above, corners, _, _ = _sum_neighbours(plane)
    return _ColourInterpolation(
        green=(above + beside) * 0.25, beside=beside * 0.5, above=above * 0.5, across=corners * 0.25
    )


def _malvar(plane: NDArray[np.float64]) -> _ColourInterpolation:
    beside, above, corners, beside2, above2 = _sum_neighbours(plane)
    return _ColourInterpolation(
        green=(4.0 * plane + 2.0 * (above + beside) - (above2 + beside2)) * 0.125,
        beside=(5.0 * plane + 4.0 * beside - corners - beside2 + 0.5 * above2) * 0.125,
        above=(5.0 * plane + 4.0 * above - corners - above2 + 0.5 * beside2) * 0.125,
        across=(6.0 * plane + 2.0 * corners - 1.5 * (above2 + beside2)) * 0.125,
    )


def _sum_neighbours(plane: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return sums of pixels left and right, up and down, at the corners, two left and right, two up and down."""
    height, width = plane.shape[-2:]
    wide = np.pad(plane, ((0, 0), (2, 2), (2, 2)), mode="reflect")

    def at(down: int, right: int) -> NDArray[np.float64]:
        return wide[:, 2 + down : 2 + down + height, 2 + right : 2 + right + width]

    beside, above = at(0, -1) + at(0, 1), at(-1, 0) + at(1, 0)
    corners = (at(-1, -1) + at(-1, 1)) + (at(1, -1) + at(1, 1))
    return beside, above, corners, at(0, -2) + at(0, 2), at(-2, 0) + at(2, 0)
