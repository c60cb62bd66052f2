"""Three colours at every pixel from one filter at each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera.colour import pattern


class _Guesses(NamedTuple):
    """What the other colours are where one is known: green, a colour beside, above, and across the corners."""

    green: NDArray[np.float64]
    beside: NDArray[np.float64]
    above: NDArray[np.float64]
    across: NDArray[np.float64]


def demosaic(plane: NDArray[np.float64], mosaic: str, *, malvar: bool) -> NDArray[np.float64]:
    """Colours ``(n, height, width, 3)`` of balanced pixels ``(n, height, width)``.

    Bilinear: the mean of the nearest pixels behind the filter asked for. Malvar: the same, corrected by the second
    difference of the colour that is known (H. S. Malvar, L. He, R. Cutler, "High-quality linear interpolation for
    demosaicing of Bayer-patterned color images", ICASSP 2004). Beyond its edges the picture is mirrored.
    """
    guesses = _malvar(plane) if malvar else _bilinear(plane)
    colours = np.empty((*plane.shape, 3))
    sites = pattern(mosaic)
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


def _bilinear(plane: NDArray[np.float64]) -> _Guesses:
    beside, above, corners, _, _ = _sums(plane)
    return _Guesses(green=(above + beside) * 0.25, beside=beside * 0.5, above=above * 0.5, across=corners * 0.25)


def _malvar(plane: NDArray[np.float64]) -> _Guesses:
    beside, above, corners, beside2, above2 = _sums(plane)
    return _Guesses(
        green=(4.0 * plane + 2.0 * (above + beside) - (above2 + beside2)) * 0.125,
        beside=(5.0 * plane + 4.0 * beside - corners - beside2 + 0.5 * above2) * 0.125,
        above=(5.0 * plane + 4.0 * above - corners - above2 + 0.5 * beside2) * 0.125,
        across=(6.0 * plane + 2.0 * corners - 1.5 * (above2 + beside2)) * 0.125,
    )


def _sums(plane: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Sums over the pixels left and right, up and down, at the corners, two left and right, two up and down."""
    height, width = plane.shape[-2:]
    wide = np.pad(plane, ((0, 0), (2, 2), (2, 2)), mode="reflect")

    def at(down: int, right: int) -> NDArray[np.float64]:
        return wide[:, 2 + down : 2 + down + height, 2 + right : 2 + right + width]

    beside, above = at(0, -1) + at(0, 1), at(-1, 0) + at(1, 0)
    corners = (at(-1, -1) + at(-1, 1)) + (at(1, -1) + at(1, 1))
    return beside, above, corners, at(0, -2) + at(0, 2), at(-2, 0) + at(2, 0)
