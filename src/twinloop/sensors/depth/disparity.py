"""Triangulation between two views side by side: disparities, and what only one of the views sees.

The picture is the left view's. A point at depth z is seen d = f·B / z px further left in the right view.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage

EDGE = 1.0  # px of disparity from which on a step is an edge and not a slope: our choice, the pitch of the pixels


def disparity(depth: ArrayLike, focal_baseline: float) -> NDArray[np.float64]:
    """Disparities in px of depths in m, for a focal length in px times a baseline in m; 0 where there is nothing."""
    return focal_baseline / np.asarray(depth, dtype=np.float64)


def from_disparity(disparities: NDArray[np.float64], focal_baseline: float) -> NDArray[np.float64]:
    """Depths in m of disparities in px; inf where these are not positive."""
    seen = disparities > 0.0
    return np.where(seen, focal_baseline / np.where(seen, disparities, 1.0), np.inf)


def hidden(disparities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Pixels ``(n, h, w)`` whose points the right view does not see: before its left border, or behind something.

    Every pixel is put where the right view sees it, and is hidden where something nearer lies there, by `EDGE` at
    least. A border between depths z₁ < z₂ so casts a shadow of f·B (1/z₁ - 1/z₂) px to its left, and beside the
    picture's left border lies a band of d px that no other view sees (Intel RealSense D400 data sheet, "invalid depth
    band").
    """
    count, height, width = disparities.shape
    place = np.arange(width) + 0.5 - disparities  # of pixel centres in the right view
    cell = np.floor(place).astype(np.intp)
    outside = cell < 0
    line = np.arange(count * height).reshape(count, height, 1) * (width + 1)
    nearest = np.zeros(count * height * (width + 1))
    # A surface that the right view sees larger would have gaps, so every point also fills the cell beside its own.
    for beside in (0, 1):
        np.maximum.at(nearest, (line + np.clip(cell + beside, 0, width))[~outside], disparities[~outside])
    there = nearest[line + np.clip(cell, 0, width)]
    return outside | (there > disparities + EDGE)


def fattened(disparities: NDArray[np.float64], radius: int) -> NDArray[np.float64]:
    """Disparities after matching windows let the nearer side of every edge, not of a slope, grow by ``radius`` px."""
    if radius <= 0:
        return disparities
    size = 2 * radius + 1
    nearer = ndimage.maximum_filter(disparities, size=(1, size, size), mode="nearest")
    return np.where(nearer - disparities > EDGE, nearer, disparities)


def quantized(disparities: NDArray[np.float64], levels: float) -> NDArray[np.float64]:
    """Disparities rounded to 1 / ``levels`` px; 0 levels leave them as they are."""
    return np.round(disparities * levels) / levels if levels > 0 else disparities
