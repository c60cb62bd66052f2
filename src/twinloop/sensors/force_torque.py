"""Compute the readings of a six-axis force/torque sensor from its true load.

The load u is three forces and three torques in the sensor's axes, after the sensor's low-pass filter. The
reading is

    y = C · play(u) + b + w + n,

clipped to the range and quantized. C is the matrix of scale errors and of cross-talk between components, play
is the hysteresis of the flexures, b is the bias (reading without load), w is a random walk of the bias, and n
is white noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.sensors.filters import apply_play, digitize, random_walk

COMPONENTS = ("force_x", "force_y", "force_z", "torque_x", "torque_y", "torque_z")
NORMALS_PER_SAMPLE = 2 * len(COMPONENTS)  # standard normal numbers per sample
COUPLINGS = len(COMPONENTS) * (len(COMPONENTS) - 1)  # uniform numbers that distinguish one unit from another


@dataclass(frozen=True, kw_only=True)
class ForceTorque:
    """Parameters of a force/torque sensor: numbers, or arrays ``(nworld,)``; the default is an ideal sensor.

    They are the twin's parameters ``sensor/NAME/QUANTITY``; `twin.quantities` has their meanings and units.
    Quantities ``force_…`` are in N and ``torque_…`` in N·m unless stated otherwise.

    Attributes:
        rate: sampling rate in Hz; 0 takes one sample per frame.
        phase: time of the first sample, in sampling periods.
        delay: age of a sample at its delivery, in s.
        bandwidth: half-power frequency of the low-pass filter before sampling, in Hz; 0 for no filter.
        force_noise_x: standard deviation of the white noise of each reading; likewise the other ``…_noise_…``.
        force_bias_x: reading without load after taring; likewise the other ``…_bias_…``.
        force_range_x: largest reported value, 0 for no limit; likewise the other ``…_range_…``.
        force_walk: coefficient of the random walk of the bias, in N/√s; ``torque_walk`` is in N·m/√s.
        force_scale_error: relative error of all forces; ``torque_scale_error`` of all torques.
        crosstalk: largest reading of a component caused by another one, both relative to their ranges.
        hysteresis: width of the loop between loading and unloading, relative to the range.
        force_step: quantization step, 0 for none; likewise ``torque_step``.
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
        """Return whether any reading contains random errors."""
        names = [f"{kind}_noise_{axis}" for kind in ("force", "torque") for axis in "xyz"]
        names += ["force_walk", "torque_walk", "crosstalk"]
        return any(np.any(np.asarray(getattr(self, name)) > 0) for name in names)

    def wrench(self, stem: str) -> NDArray[np.float64]:
        """Return one setting, such as noise, for the components force x, y, z and torque x, y, z, shape ``(…, 6)``.

        Args:
            stem: name of the setting's fields after ``force_`` and ``torque_``: ``noise`` reads a field for each axis,
                such as ``force_noise_x``, and ``walk`` reads ``force_walk``, which is the same for all axes.
        """
        names = (
            f"{kind}_{stem}" if hasattr(self, f"{kind}_{stem}") else f"{kind}_{stem}_{axis}"
            for kind, axis in (name.split("_") for name in COMPONENTS)
        )
        return np.stack(np.broadcast_arrays(*(getattr(self, name) for name in names)), axis=-1).astype(np.float64)

    def coupling_matrix(self, uniform: ArrayLike | None) -> NDArray[np.float64]:
        """Return the matrix from the true load to the reading, shape ``(…, 6, 6)``.

        Its diagonal contains scale errors. An off-diagonal element is cross-talk from one component (column) to the
        reading of another (row). It is uniform between − ``crosstalk`` and ``crosstalk``, multiplied by the range of
        the row's component over that of the column's. A range of 0 counts as 1 N or 1 N·m.

        Args:
            uniform: numbers in (0, 1) that determine the 30 off-diagonal elements row by row, shape ``(…, 30)``; None
                for no cross-talk.
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
    normals: ArrayLike | None = None,
    unit_uniforms: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Return the readings of a force/torque sensor for samples of its filtered true load.

    Args:
        sensor: parameters of the sensor.
        load: forces and torques about the sensor's origin in its axes, shape ``(nworld, n, 6)`` for n samples, in N
            and N·m.
        period: time between samples in s, ``(nworld,)`` or a number.
        normals: independent standard normal numbers from the first sample on, shape ``(nworld, n, 12)``: 6 for noise,
            then 6 for drift; None disables noise and drift.
        unit_uniforms: uniform numbers in (0, 1) that determine the cross-talk of this physical sensor, shape ``(nworld,
            30)``, see `ForceTorque.coupling_matrix`; None for a sensor without cross-talk.

    Returns:
        Readings in N and N·m, shape ``(nworld, n, 6)``.
    """
    span = sensor.wrench("range")
    width = np.asarray(sensor.hysteresis, dtype=np.float64)[..., None] * np.where(span > 0.0, span, 1.0)
    value = apply_play(load, width)
    value = (
        np.einsum("...ij,...nj->...ni", sensor.coupling_matrix(unit_uniforms), value)
        + sensor.wrench("bias")[..., None, :]
    )
    if normals is not None:
        numbers = np.asarray(normals, dtype=np.float64)
        value = value + sensor.wrench("noise")[..., None, :] * numbers[..., :6]
        walk = random_walk(numbers[..., 6:], period, 1.0)
        value = value + sensor.wrench("walk")[..., None, :] * walk
    return digitize(value, span[..., None, :], sensor.wrench("step")[..., None, :])
