"""The encoder a smart servo closes its own loop on: one map for what it reports and for what it is told.

A servo with an encoder that is off by ``offset`` and counts ``scale`` radians to the radian lies twice, and
consistently: it reports ``(q - offset) / scale`` for a joint at ``q``, and drives the joint to
``offset + scale · command``. At rest and without load a command therefore reads back as itself, however wrong
offset and scale are; what shows them is gravity, the ends of travel, a camera.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

STS3215_RESOLUTION = 2 * math.pi / 4096  # rad; 12 bits a turn (Feetech STS3215 data sheet, DFRobot SER0069)


def encoder_reading(
    position: ArrayLike,
    offset: ArrayLike,
    scale: ArrayLike,
    *,
    resolution: ArrayLike | None = None,
    noise: ArrayLike = 0.0,
) -> NDArray[np.float64]:
    """What the encoder reports for true joint positions.

    Args:
        position: true positions ``(nworld, …, n)`` in rad or m.
        offset: true position at which it reads zero, ``(nworld, n)``, ``(n,)`` or a number, in the same unit.
        scale: true change per reported change, of the shapes of ``offset``, dimensionless and not zero.
        resolution: size of one count in the reported unit, of the shapes of ``offset``; None or 0 reports without
            quantizing. Readings are rounded to the nearest count, halves to even, so the error is at most half a count.
        noise: what is added before rounding, of the shape of ``position`` or a number.

    Returns:
        Readings of the shape of ``position``.
    """
    true = np.asarray(position, dtype=np.float64)
    reading = (true - _per_joint(offset, true.ndim)) / _per_joint(scale, true.ndim)
    reading = reading + np.asarray(noise, dtype=np.float64)
    if resolution is None:
        return reading
    count = _per_joint(resolution, true.ndim)
    counted = count > 0.0
    return np.where(counted, np.round(reading / np.where(counted, count, 1.0)) * count, reading)


def encoder_command(command: ArrayLike, offset: ArrayLike, scale: ArrayLike) -> NDArray[np.float64]:
    """The true position that a servo seeks when told ``command``: the inverse of `encoder_reading`.

    Shapes and units as there; ``command`` is ``(nworld, …, n)``.
    """
    told = np.asarray(command, dtype=np.float64)
    return _per_joint(offset, told.ndim) + _per_joint(scale, told.ndim) * told


def _per_joint(values: ArrayLike, ndim: int) -> NDArray[np.float64]:
    """``(nworld, n)`` as ``(nworld, 1, …, 1, n)``, so that it broadcasts over the axes between world and joint."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or ndim <= 2:
        return array
    return array.reshape(array.shape[0], *(1,) * (ndim - 2), array.shape[1])
