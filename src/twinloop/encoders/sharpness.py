"""How sharp pictures are, in a number that light and contrast do not move."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
_COARSE = 4  # pixels: an edge is as strong over so many where a little blur makes it weak over one


def sharpness(grey: Array) -> Array:
    """Of pictures ``(n, height, width)``: the logarithm of the energy of steps over one pixel by that over four."""
    fine, coarse = _energy(grey), _energy(block_means(grey, _COARSE))
    return np.log((fine + 1e-3) / (coarse + 1e-3))  # of a picture of one colour both are 0


def block_means(grey: Array, side: int) -> Array:
    """Means over square blocks; what is left over at the edges is cut off."""
    count, height, width = grey.shape[0], grey.shape[1] // side, grey.shape[2] // side
    return grey[:, : height * side, : width * side].reshape(count, height, side, width, side).mean(axis=(2, 4))


def _energy(grey: Array) -> Array:
    return (np.diff(grey, axis=1) ** 2).mean(axis=(1, 2)) + (np.diff(grey, axis=2) ** 2).mean(axis=(1, 2))
