"""Compute with quaternions (wxyz) of many worlds at once; a rotation by zero changes no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray


def quat_from_rotation_vector(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return unit quaternions ``(n, 4)`` of rotations by ``|vector|`` rad about ``vector`` ``(n, 3)``."""
    angle = np.sqrt((vector**2).sum(axis=-1, keepdims=True))
    axis = np.divide(vector, angle, out=np.zeros_like(vector), where=angle > 0)
    return np.concatenate([np.cos(angle / 2), np.sin(angle / 2) * axis], axis=-1)


def quat_multiply(left: Any, right: Any) -> Any:
    """Return ``left ⊗ right`` ``(n, 4)``, for arrays of any library: the right rotation is applied first."""
    a, b, c, d = (left[..., i] for i in range(4))
    e, f, g, h = (right[..., i] for i in range(4))
    return array_namespace(left, right).stack(
        [
            a * e - b * f - c * g - d * h,
            a * f + b * e + c * h - d * g,
            a * g - b * h + c * e + d * f,
            a * h + b * g - c * f + d * e,
        ],
        axis=-1,
    )


def rotate_vectors(quaternion: ArrayLike, vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return vectors ``(n, 3)`` rotated by quaternions ``(n, 4)`` or ``(4,)``."""
    quaternion = np.asarray(quaternion, dtype=np.float64)
    scalar, axis = quaternion[..., :1], np.broadcast_to(quaternion[..., 1:], vector.shape)
    half = 2.0 * np.cross(axis, vector)
    return vector + scalar * half + np.cross(axis, half)


def rotation_matrix(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rotation matrices ``(…, 3, 3)`` of quaternions ``(…, 4)``; their columns are the rotated axes."""
    axes = np.broadcast_to(np.eye(3), (*quaternion.shape[:-1], 3, 3))
    return rotate_vectors(quaternion[..., None, :], axes).swapaxes(-1, -2)
