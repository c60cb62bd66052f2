"""Display values and linear light."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def decode_srgb(values: ArrayLike) -> NDArray[np.float32]:
    """Linear light from 0 to 1 of 8-bit sRGB (IEC 61966-2-1), by a table of its 256 values."""
    return _DECODED[np.asarray(values, dtype=np.uint8)]


def linear_of(display: ArrayLike) -> NDArray[np.float64]:
    """Linear light of sRGB display values, 1 for white; the curve goes on where a picture would be clipped."""
    value = np.asarray(display, dtype=np.float64)
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def encode_srgb(light: ArrayLike) -> NDArray[np.uint8]:
    """8-bit sRGB of linear light, rounded; what lies outside 0 to 1 is clipped."""
    linear = np.clip(np.asarray(light, dtype=np.float32), 0.0, 1.0)
    display = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(255.0 * display).astype(np.uint8)


_DECODED = linear_of(np.arange(256) / 255.0).astype(np.float32)
