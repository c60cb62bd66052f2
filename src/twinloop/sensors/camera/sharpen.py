"""Edges that a camera's processing makes steeper than they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.compiled import compiled, over_rows

_RED, _GREEN, _BLUE = 77, 150, 29  # luma of ITU-R BT.601 in 256ths
_LIMIT = 64  # of what a pixel may gain or lose, so that halos stay faint beside strong edges


def sharpened(picture: NDArray[np.uint8], sharpness: float, *, fast: bool = False) -> NDArray[np.uint8]:
    """An 8-bit picture ``(height, width, 3)`` with its luma's detail added ``sharpness`` times more.

    Detail is luma less its mean over 3×3 pixels weighted 1, 2, 1: an unsharp mask, which noise passes as edges do.
    Beyond the edges the picture is continued. ``fast`` says that it is done in machine code, with the same result.
    """
    weight = round(sharpness * 16)
    if fast:
        result = np.empty_like(picture)
        over_rows(_sharpen, len(picture), picture, weight, result)
        return result
    wide = np.pad(_luma(picture), 1, mode="edge")
    rows = wide[:-2] + 2 * wide[1:-1] + wide[2:]
    mean16 = rows[:, :-2] + 2 * rows[:, 1:-1] + rows[:, 2:]
    more = np.clip(((16 * wide[1:-1, 1:-1] - mean16) * weight) >> 8, -_LIMIT, _LIMIT)
    return np.clip(picture + more[..., None], 0, 255).astype(np.uint8)


def _luma(picture: NDArray[np.uint8]) -> NDArray[np.int32]:
    red, green, blue = (picture[..., c].astype(np.int32) for c in range(3))
    return (red * _RED + green * _GREEN + blue * _BLUE) >> 8


@compiled
def _sharpen(first, last, picture, weight, result):
    height, width, _ = picture.shape
    luma, sums = np.empty((3, width), dtype=np.int32), np.empty(width + 2, dtype=np.int32)
    for y in range(first - 1, last + 1):
        row, line = luma[(y + 3) % 3], picture[min(max(y, 0), height - 1)]
        for x in range(width):
            row[x] = (line[x, 0] * _RED + line[x, 1] * _GREEN + line[x, 2] * _BLUE) >> 8
        if y <= first:
            continue
        above, here, below = luma[(y + 1) % 3], luma[(y + 2) % 3], luma[(y + 3) % 3]
        for x in range(width):
            sums[x + 1] = above[x] + 2 * here[x] + below[x]
        sums[0], sums[width + 1] = sums[1], sums[width]
        line, sharp = picture[y - 1], result[y - 1]
        for x in range(width):
            mean16 = sums[x] + 2 * sums[x + 1] + sums[x + 2]
            more = min(max(((16 * here[x] - mean16) * weight) >> 8, -_LIMIT), _LIMIT)
            for c in range(3):
                sharp[x, c] = min(max(line[x, c] + more, 0), 255)
