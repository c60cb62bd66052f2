"""Pictures as luma of each pixel and colour of each two side by side: YUYV, what USB cameras send uncompressed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.compiled import compiled, over_rows

# Luma and colour differences with the ranges and weights of ITU-R BT.601, which USB video takes for granted.
_FROM_RGB: NDArray[np.float64] = (
    np.array([[65.481, 128.553, 24.966], [-37.797, -74.203, 112.0], [112.0, -93.786, -18.214]]) / 255.0
)
_TO_RGB = np.asarray(np.linalg.inv(_FROM_RGB), dtype=np.float64)


def through_yuyv(picture: NDArray[np.uint8], *, fast: bool = False) -> NDArray[np.uint8]:
    """A picture ``(height, width, 3)`` after YUYV in 8 bits; a last column without a neighbour keeps its colour.

    ``fast`` says that it is done in machine code, with the same result.
    """
    if fast:
        result = np.empty_like(picture)
        over_rows(_yuyv, len(picture), np.ascontiguousarray(picture), result)
        return result
    values = _times(picture.astype(np.float64), _FROM_RGB)
    even = picture.shape[1] // 2 * 2
    values[:, 0:even:2, 1:] = 0.5 * (values[:, 0:even:2, 1:] + values[:, 1:even:2, 1:])
    values[:, 1:even:2, 1:] = values[:, 0:even:2, 1:]
    return np.clip(np.rint(_times(np.rint(values), _TO_RGB)), 0.0, 255.0).astype(np.uint8)


def _times(values: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = [values[..., 0] * row[0] + values[..., 1] * row[1] + values[..., 2] * row[2] for row in matrix]
    return np.stack(rows, axis=-1)


@compiled
def _yuyv(first, last, picture, result):
    width = picture.shape[1]
    luma, blue, red = np.empty(width), np.empty(width), np.empty(width)
    for y in range(first, last):
        line, seen = picture[y], result[y]
        for x in range(width):
            r, g, b = line[x, 0], line[x, 1], line[x, 2]
            luma[x] = np.rint(r * _FROM_RGB[0, 0] + g * _FROM_RGB[0, 1] + b * _FROM_RGB[0, 2])
            blue[x] = r * _FROM_RGB[1, 0] + g * _FROM_RGB[1, 1] + b * _FROM_RGB[1, 2]
            red[x] = r * _FROM_RGB[2, 0] + g * _FROM_RGB[2, 1] + b * _FROM_RGB[2, 2]
        for x in range(0, width - 1, 2):
            blue[x] = blue[x + 1] = 0.5 * (blue[x] + blue[x + 1])
            red[x] = red[x + 1] = 0.5 * (red[x] + red[x + 1])
        for c in range(3):
            for x in range(width):
                value = luma[x] * _TO_RGB[c, 0] + np.rint(blue[x]) * _TO_RGB[c, 1] + np.rint(red[x]) * _TO_RGB[c, 2]
                seen[x, c] = min(max(np.rint(value), 0.0), 255.0)
