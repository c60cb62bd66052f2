"""Convert between points and pixels of a pinhole camera, and between sRGB pixel values and linear light."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord


@dataclass(frozen=True, kw_only=True)
class Intrinsics(JsonRecord):
    """Pinhole camera in pixels: focal lengths ``fx``, ``fy`` and principal point ``cx``, ``cy``.

    Camera axes are OpenCV's: x right, y down, z forward. Pixel (column 0, row 0) covers [0, 1] × [0, 1], so its centre
    is (0.5, 0.5) and a centred principal point is (width / 2, height / 2). OpenCV itself puts the centre of the first
    pixel at 0; for OpenCV use ``cx - 0.5`` and ``cy - 0.5``.
    """

    fx: float
    fy: float
    cx: float
    cy: float
    width: int
    height: int

    def __post_init__(self) -> None:
        if not (self.fx > 0 and self.fy > 0 and self.width > 0 and self.height > 0):
            raise InputError(f"{self} is not a camera: focal lengths and sizes must be positive.")

    @classmethod
    def from_fovy(cls, fovy: float, *, width: int, height: int) -> Self:
        """Return a centred camera with square pixels and the vertical field of view ``fovy`` in rad."""
        if not 0.0 < fovy < math.pi:
            raise InputError(
                f"A vertical field of view of {fovy:g} rad is impossible for a pinhole; give one between 0 and π."
            )
        focal = height / (2.0 * math.tan(fovy / 2.0))
        return cls(fx=focal, fy=focal, cx=width / 2.0, cy=height / 2.0, width=width, height=height)

    @property
    def fovy(self) -> float:
        """Vertical field of view of the whole image in rad."""
        return math.atan2(self.cy, self.fy) + math.atan2(self.height - self.cy, self.fy)

    @property
    def matrix(self) -> NDArray[np.float64]:
        """Camera matrix ``K`` ``(3, 3)``: homogeneous pixels are K times a point."""
        return np.array([[self.fx, 0.0, self.cx], [0.0, self.fy, self.cy], [0.0, 0.0, 1.0]])

    def project(self, points: ArrayLike) -> NDArray[np.float64]:
        """Project points ``(…, 3)`` in camera axes to pixels ``(…, 2)`` (column, row); nan if not in front of it."""
        point = np.asarray(points, dtype=np.float64)
        depth = np.where(point[..., 2] > 0.0, point[..., 2], np.nan)
        return np.stack([self.fx * point[..., 0] / depth + self.cx, self.fy * point[..., 1] / depth + self.cy], axis=-1)

    def unproject(self, pixels: ArrayLike, depth: ArrayLike = 1.0) -> NDArray[np.float64]:
        """Return points ``(…, 3)`` in camera axes at pixels ``(…, 2)`` and depths ``(…)`` along the optical axis."""
        pixel, along = np.asarray(pixels, dtype=np.float64), np.asarray(depth, dtype=np.float64)
        plane = np.stack([(pixel[..., 0] - self.cx) / self.fx, (pixel[..., 1] - self.cy) / self.fy], axis=-1)
        return np.concatenate([plane, np.ones_like(plane[..., :1])], axis=-1) * along[..., None]

    def pixel_centres(self) -> NDArray[np.float64]:
        """Return the centre (column, row) of every pixel, ``(height, width, 2)``."""
        row, column = np.indices((self.height, self.width), dtype=np.float64)
        return np.stack([column, row], axis=-1) + 0.5


def srgb_to_linear(display: ArrayLike) -> NDArray[np.float64]:
    """Convert sRGB display values to linear light, both 1 for white; values outside [0, 1] are not clipped."""
    value = np.asarray(display, dtype=np.float64)
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def linear_to_srgb(linear: NDArray[Any]) -> NDArray[Any]:
    """Convert nonnegative linear light to sRGB display values of the same type, both 1 for white."""
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
