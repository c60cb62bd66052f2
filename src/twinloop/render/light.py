"""Display values and linear light."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.imaging import display_of, linear_of


def decode_srgb(values: ArrayLike) -> NDArray[np.float32]:
    """Linear light from 0 to 1 of 8-bit sRGB (IEC 61966-2-1), by a table of its 256 values."""
    return _DECODED[np.asarray(values, dtype=np.uint8)]


def encode_srgb(light: ArrayLike) -> NDArray[np.uint8]:
    """8-bit sRGB of linear light, rounded; what lies outside 0 to 1 is clipped."""
    linear = np.clip(np.asarray(light, dtype=np.float32), 0.0, 1.0)
    return np.rint(255.0 * display_of(linear)).astype(np.uint8)


_DECODED = linear_of(np.arange(256) / 255.0).astype(np.float32)
