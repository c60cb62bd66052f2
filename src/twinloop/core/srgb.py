"""The curve of sRGB (IEC 61966-2-1), between display values and linear light."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def linear_of(display: ArrayLike) -> NDArray[np.float64]:
    """Linear light of display values, 1 for white; the curve goes on where a picture would be clipped."""
    value = np.asarray(display, dtype=np.float64)
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def display_of(linear: NDArray[Any]) -> NDArray[Any]:
    """Display values of linear light from 0, in its type, 1 for white."""
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
