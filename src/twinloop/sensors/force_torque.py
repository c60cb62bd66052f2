"""Compute the readings of a six-axis force/torque sensor from the wrench that acts on it.

Of the true load u, three forces and three torques in the sensor's axes, filtered to its bandwidth, it reports

    y = C · play(u) + b + w + n,

saturated and counted: C couples each component to the others and has scale errors, the play is the hysteresis of its
flexures, b is the reading without load, w a random walk of it, n white noise of every sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.sensors.filters import apply_play, digitize, random_walk

COMPONENTS = ("force_x", "force_y", "force_z", "torque_x", "torque_y", "torque_z")
CHANCE = 2 * len(COMPONENTS)  # standard normal numbers per sample
COUPLINGS = len(COMPONENTS) * (len(COMPONENTS) - 1)  # uniform numbers that distinguish one unit from another


@dataclass(frozen=True, kw_only=True)
class ForceTorque:
    """Quantities of a sensor in one world, or in each, ``(nworld,)``; the default is an ideal sensor.

    They are the parameters ``sensor/NAME/QUANTITY``; `twin.quantities` has their meanings and units.
    """

    rate: ArrayLike = 0.0
    phase: ArrayLike = 0.0
    delay: ArrayLike = 0.0
    bandwidth: ArrayLike = 0.0

    force_noise_x: ArrayLike = 0.0
    force_noise_y: ArrayLike = 0.0
    force_noise_z: ArrayLike = 0.0
    torque_noise_x: ArrayLike = 0.0
    torque_noise_y: ArrayLike = 0.0
    torque_noise_z: ArrayLike = 0.0
    force_bias_x: ArrayLike = 0.0
    force_bias_y: ArrayLike = 0.0
    force_bias_z: ArrayLike = 0.0
    torque_bias_x: ArrayLike = 0.0
    torque_bias_y: ArrayLike = 0.0
    torque_bias_z: ArrayLike = 0.0
    force_range_x: ArrayLike = 0.0
    force_range_y: ArrayLike = 0.0
    force_range_z: ArrayLike = 0.0
    torque_range_x: ArrayLike = 0.0
    torque_range_y: ArrayLike = 0.0
    torque_range_z: ArrayLike = 0.0
    force_walk: ArrayLike = 0.0
    torque_walk: ArrayLike = 0.0
    force_scale_error: ArrayLike = 0.0
    torque_scale_error: ArrayLike = 0.0
    crosstalk: ArrayLike = 0.0
    hysteresis: ArrayLike = 0.0
    force_step: ArrayLike = 0.0
    torque_step: ArrayLike = 0.0

    @property
    def is_random(self) -> bool:
        """Return whether any reading is random."""
        names = [f"{kind}_noise_{axis}" for kind in ("force", "torque") for axis in "xyz"]
        names += ["force_walk", "torque_walk", "crosstalk"]
        return any(np.any(np.asarray(getattr(self, name)) > 0) for name in names)

    def wrench(self, stem: str) -> NDArray[np.float64]:
        """Return a quantity of all six components, ``(…, 6)``, from those of forces and torques, per axis or common."""
        names = (
            f"{kind}_{stem}" if hasattr(self, f"{kind}_{stem}") else f"{kind}_{stem}_{axis}"
            for kind, axis in (name.split("_") for name in COMPONENTS)
        )
        return np.stack(np.broadcast_arrays(*(getattr(self, name) for name in names)), axis=-1).astype(np.float64)

    def coupling_matrix(self, uniform: ArrayLike | None) -> NDArray[np.float64]:
        """Return the matrix C, ``(…, 6, 6)``.

        Every component reads a share between ∓ ``crosstalk`` of every other, both relative to their ranges. ``uniform``
        ``(…, COUPLINGS)`` in (0, 1) determines the shares. A range of 0 counts as 1 N or 1 N·m.
        """
        error, span = 1.0 + self.wrench("scale_error"), self.wrench("range")
        span = np.where(span > 0.0, span, 1.0)
        matrix = np.zeros((*error.shape, 6))
        if uniform is not None:
            part = np.asarray(self.crosstalk, dtype=np.float64)[..., None] * (2.0 * np.asarray(uniform) - 1.0)
            matrix = np.broadcast_to(matrix, (*np.broadcast_shapes(part.shape[:-1], error.shape[:-1]), 6, 6)).copy()
            matrix[..., ~np.eye(6, dtype=bool)] = part
            matrix *= span[..., :, None] / span[..., None, :]
        matrix[..., np.arange(6), np.arange(6)] = error
        return matrix


def force_torque_readings(
    sensor: ForceTorque,
    load: ArrayLike,
    *,
    period: ArrayLike,
    chance: ArrayLike | None = None,
    specimen: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Return a sensor's readings of samples of the filtered load.

    Args:
        sensor: quantities of the sensor.
        load: forces and torques about its origin in its axes, ``(nworld, n, 6)`` in N and N·m.
        period: time between samples, ``(nworld,)`` or a number, in s.
        chance: independent standard normal numbers from the first sample on, ``(nworld, n, CHANCE)``; None: neither
            noise nor drift.
        specimen: uniform numbers that determine the unit, ``(nworld, COUPLINGS)``; None: a unit without cross-talk.

    Returns:
        Readings ``(nworld, n, 6)`` in N and N·m.
    """
    span = sensor.wrench("range")
    width = np.asarray(sensor.hysteresis, dtype=np.float64)[..., None] * np.where(span > 0.0, span, 1.0)
    value = apply_play(load, width)
    value = (
        np.einsum("...ij,...nj->...ni", sensor.coupling_matrix(specimen), value) + sensor.wrench("bias")[..., None, :]
    )
    if chance is not None:
        numbers = np.asarray(chance, dtype=np.float64)
        value = value + sensor.wrench("noise")[..., None, :] * numbers[..., :6]
        walk = random_walk(numbers[..., 6:], period, 1.0)
        value = value + sensor.wrench("walk")[..., None, :] * walk
    return digitize(value, span[..., None, :], sensor.wrench("step")[..., None, :])
