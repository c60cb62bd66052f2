"""Multiply, convert and apply quaternions (w, x, y, z) of many worlds at once.

A rotation by zero gives exactly the same numbers as no rotation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray


def quat_from_rotation_vector(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the unit quaternions of rotation vectors, shape ``(n, 4)``.

    Args:
        vector: Rotation axes times rotation angles in rad, shape ``(n, 3)``.
    """
    angle = np.sqrt((vector**2).sum(axis=-1, keepdims=True))
    axis = np.divide(vector, angle, out=np.zeros_like(vector), where=angle > 0)
    return np.concatenate([np.cos(angle / 2), np.sin(angle / 2) * axis], axis=-1)


def quat_multiply(left: Any, right: Any) -> Any:
    """Return the product ``left ⊗ right`` of quaternions, shape ``(n, 4)``; the right rotation is applied first.

    Args:
        left: Quaternions (w, x, y, z), shape ``(n, 4)``, as an array of NumPy or another array library.
        right: Quaternions (w, x, y, z), shape ``(n, 4)``, of the same library.
    """
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
    """Return vectors rotated by quaternions, shape ``(n, 3)``.

    Args:
        quaternion: Unit quaternions, shape ``(n, 4)``, or one for all vectors, shape ``(4,)``.
        vector: Vectors, shape ``(n, 3)``.
    """
    quaternion = np.asarray(quaternion, dtype=np.float64)
    scalar, axis = quaternion[..., :1], np.broadcast_to(quaternion[..., 1:], vector.shape)
    half = 2.0 * np.cross(axis, vector)
    return vector + scalar * half + np.cross(axis, half)


def rotation_matrix(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rotation matrices of unit quaternions, shape ``(…, 3, 3)``; their columns are the rotated axes.

    Args:
        quaternion: Unit quaternions (w, x, y, z), shape ``(…, 4)``.
    """
    axes = np.broadcast_to(np.eye(3), (*quaternion.shape[:-1], 3, 3))
    return rotate_vectors(quaternion[..., None, :], axes).swapaxes(-1, -2)
