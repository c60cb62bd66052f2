"""Convert between 3D points and pixels of a pinhole camera, and between sRGB pixel values and linear light."""

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
    """Pinhole camera in pixels: focal lengths ``fx``, ``fy``, principal point ``cx``, ``cy``, and image size.

    Camera axes are OpenCV's: x right, y down, z forward. The pixel in column 0, row 0 covers [0, 1] × [0, 1], so its
    centre is (0.5, 0.5) and a centred principal point is (width / 2, height / 2). OpenCV itself places the centre of
    the first pixel at 0; for OpenCV, use ``cx - 0.5`` and ``cy - 0.5``.
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
        """Create a camera with square pixels and a centred principal point from its vertical field of view.

        Args:
            fovy: Vertical field of view in rad.
            width: Image width in pixels.
            height: Image height in pixels.
        """
        if not 0.0 < fovy < math.pi:
            raise InputError(
                f"A vertical field of view of {fovy:g} rad is impossible for a pinhole; give one between 0 and π."
            )
        focal = height / (2.0 * math.tan(fovy / 2.0))
        return cls(fx=focal, fy=focal, cx=width / 2.0, cy=height / 2.0, width=width, height=height)

    @property
    def fovy(self) -> float:
        """Vertical field of view of the full image in rad."""
        return math.atan2(self.cy, self.fy) + math.atan2(self.height - self.cy, self.fy)

    @property
    def matrix(self) -> NDArray[np.float64]:
        """Camera matrix ``K``, shape ``(3, 3)``: ``K`` times a point in camera axes gives homogeneous pixels."""
        return np.array([[self.fx, 0.0, self.cx], [0.0, self.fy, self.cy], [0.0, 0.0, 1.0]])

    def project(self, points: ArrayLike) -> NDArray[np.float64]:
        """Project points in camera axes (x right, y down, z forward) to pixel coordinates.

        Args:
            points: Points in m, shape ``(…, 3)``.

        Returns:
            Column and row, shape ``(…, 2)``; NaN for points that are not in front of the camera.
        """
        point = np.asarray(points, dtype=np.float64)
        depth = np.where(point[..., 2] > 0.0, point[..., 2], np.nan)
        return np.stack([self.fx * point[..., 0] / depth + self.cx, self.fy * point[..., 1] / depth + self.cy], axis=-1)

    def unproject(self, pixels: ArrayLike, depth: ArrayLike = 1.0) -> NDArray[np.float64]:
        """Return the points in camera axes at given pixels and depths.

        Args:
            pixels: Column and row, shape ``(…, 2)``.
            depth: Depth along the optical axis in m, shape ``(…)``; 1 by default.

        Returns:
            Points in m, shape ``(…, 3)``.
        """
        pixel, along = np.asarray(pixels, dtype=np.float64), np.asarray(depth, dtype=np.float64)
        plane = np.stack([(pixel[..., 0] - self.cx) / self.fx, (pixel[..., 1] - self.cy) / self.fy], axis=-1)
        return np.concatenate([plane, np.ones_like(plane[..., :1])], axis=-1) * along[..., None]

    def pixel_centres(self) -> NDArray[np.float64]:
        """Return the centre (column, row) of every pixel, shape ``(height, width, 2)``."""
        row, column = np.indices((self.height, self.width), dtype=np.float64)
        return np.stack([column, row], axis=-1) + 0.5


# Luminance of linear Rec. 709 red, green and blue (ITU-R BT.709-6); white has 1.
LUMA = np.array([0.2126, 0.7152, 0.0722])


def srgb_to_linear(display: ArrayLike) -> NDArray[np.float64]:
    """Convert sRGB display values from 0 to 1 to linear light from 0 to 1.

    Args:
        display: Display values, any shape; 1 is white. Values outside [0, 1] are not clipped.
    """
    value = np.asarray(display, dtype=np.float64)
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def linear_to_srgb(linear: NDArray[Any]) -> NDArray[Any]:
    """Convert nonnegative linear light to sRGB display values; white is 1 in both, and the dtype is kept."""
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
