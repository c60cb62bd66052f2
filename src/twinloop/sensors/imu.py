"""Compute readings of inertial measurement units from true angular rates and specific forces.

For a true angular rate ω and specific force a in the unit's axes, filtered to its bandwidth, it reports

    ω̃ = (I + S_g + M_g) ω + b_g + G a + w_g + n_g,      ã = (I + S_a + M_a) a + b_a + w_a + n_a,

clipped and quantized: S scale errors, M misalignments, b the bias of this power-up, G sensitivity to acceleration, n
white noise, w the bias drift, a random walk and flicker noise.

Noise is defined as in IEEE 952 and Kalibr: N, for which white noise of N/√Δt in samples with spacing Δt has the Allan
deviation N/√τ; K, for which the bias changes by K √Δt per sample and the Allan deviation rises as K √(τ/3); B, for
which it is flat at 0.664 B. A data sheet's noise density D is one-sided, deviation = D √bandwidth: N = D/√2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.sensors.filters import FLICKER_TIMES, digitize, flicker_noise, low_pass_noise, random_walk

AXES = ("x", "y", "z")
PAIRS = ("xy", "xz", "yx", "yz", "zx", "zy")  # axis that reads, axis that should have no effect on it
CHANCE = 2 * len(AXES) * (2 + len(FLICKER_TIMES))  # standard normal numbers per sample

Triad = Literal["gyro", "accel"]


@dataclass(frozen=True, kw_only=True)
class Imu:
    """Quantities of a unit in one world, or in each, ``(nworld,)``; the default is an ideal unit.

    They are the parameters ``sensor/NAME/QUANTITY``; `twin.quantities` has their meanings and units.
    """

    rate: ArrayLike = 0.0
    phase: ArrayLike = 0.0
    delay: ArrayLike = 0.0
    bandwidth: ArrayLike = 0.0

    gyro_noise: ArrayLike = 0.0
    gyro_walk: ArrayLike = 0.0
    gyro_instability: ArrayLike = 0.0
    gyro_bias_x: ArrayLike = 0.0
    gyro_bias_y: ArrayLike = 0.0
    gyro_bias_z: ArrayLike = 0.0
    gyro_scale_error_x: ArrayLike = 0.0
    gyro_scale_error_y: ArrayLike = 0.0
    gyro_scale_error_z: ArrayLike = 0.0
    gyro_misalignment_xy: ArrayLike = 0.0
    gyro_misalignment_xz: ArrayLike = 0.0
    gyro_misalignment_yx: ArrayLike = 0.0
    gyro_misalignment_yz: ArrayLike = 0.0
    gyro_misalignment_zx: ArrayLike = 0.0
    gyro_misalignment_zy: ArrayLike = 0.0
    gyro_g_sensitivity_x: ArrayLike = 0.0
    gyro_g_sensitivity_y: ArrayLike = 0.0
    gyro_g_sensitivity_z: ArrayLike = 0.0
    gyro_range: ArrayLike = 0.0
    gyro_step: ArrayLike = 0.0

    accel_noise: ArrayLike = 0.0
    accel_walk: ArrayLike = 0.0
    accel_instability: ArrayLike = 0.0
    accel_bias_x: ArrayLike = 0.0
    accel_bias_y: ArrayLike = 0.0
    accel_bias_z: ArrayLike = 0.0
    accel_scale_error_x: ArrayLike = 0.0
    accel_scale_error_y: ArrayLike = 0.0
    accel_scale_error_z: ArrayLike = 0.0
    accel_misalignment_xy: ArrayLike = 0.0
    accel_misalignment_xz: ArrayLike = 0.0
    accel_misalignment_yx: ArrayLike = 0.0
    accel_misalignment_yz: ArrayLike = 0.0
    accel_misalignment_zx: ArrayLike = 0.0
    accel_misalignment_zy: ArrayLike = 0.0
    accel_range: ArrayLike = 0.0
    accel_step: ArrayLike = 0.0

    @property
    def is_random(self) -> bool:
        """Return whether any reading is random."""
        kinds = ("noise", "walk", "instability")
        return any(np.any(np.asarray(getattr(self, f"{triad}_{kind}")) > 0) for triad in Triads for kind in kinds)

    def vector(self, stem: str) -> NDArray[np.float64]:
        """Return the x, y and z of a quantity, ``(…, 3)``."""
        return np.stack(np.broadcast_arrays(*(getattr(self, f"{stem}_{axis}") for axis in AXES)), axis=-1)

    def mixing_matrix(self, triad: Triad) -> NDArray[np.float64]:
        """Return I + S + M of a triad, ``(…, 3, 3)``: the response of each axis to each true component."""
        errors = self.vector(f"{triad}_scale_error")
        matrix = np.zeros((*errors.shape, 3))
        for i in range(3):
            matrix[..., i, i] = 1.0 + errors[..., i]
        for pair in PAIRS:
            matrix[..., AXES.index(pair[0]), AXES.index(pair[1])] = getattr(self, f"{triad}_misalignment_{pair}")
        return matrix


Triads: tuple[Triad, Triad] = ("gyro", "accel")


def imu_readings(
    imu: Imu, rate: ArrayLike, force: ArrayLike, *, period: ArrayLike, chance: ArrayLike | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a unit's readings of samples of the filtered true signals.

    Args:
        imu: quantities of the unit.
        rate: angular rates in the unit's axes, ``(nworld, n, 3)`` in rad/s.
        force: specific forces there, ``(nworld, n, 3)`` in m/s²: acceleration less gravity, so g upwards at rest.
        period: time between samples, ``(nworld,)`` or a number, in s.
        chance: independent standard normal numbers from the first sample on, ``(nworld, n, CHANCE)``; None: no random
            errors.

    Returns:
        Angular rates and specific forces as reported, ``(nworld, n, 3)`` each.
    """
    truth = {"gyro": np.asarray(rate, dtype=np.float64), "accel": np.asarray(force, dtype=np.float64)}
    wandering = None if chance is None else np.asarray(chance, dtype=np.float64)
    result = []
    for i, triad in enumerate(Triads):
        value = np.einsum("...ij,...nj->...ni", imu.mixing_matrix(triad), truth[triad])
        value = value + imu.vector(f"{triad}_bias")[..., None, :]
        if triad == "gyro":
            value = value + imu.vector("gyro_g_sensitivity")[..., None, :] * truth["accel"]
        if wandering is not None:
            numbers = wandering.reshape(*wandering.shape[:-1], 2, 3, -1)[..., i, :, :]
            value = value + _random_errors(imu, triad, numbers, period)
        limit, step = (_column(getattr(imu, f"{triad}_{name}")) for name in ("range", "step"))
        result.append(digitize(value, limit, step))
    return result[0], result[1]


def _random_errors(imu: Imu, triad: Triad, numbers: NDArray[np.float64], period: ArrayLike) -> NDArray[np.float64]:
    """Return white noise, random walk and flicker of one triad from numbers ``(nworld, n, 3, 2 + …)``."""
    density, walk, level = (getattr(imu, f"{triad}_{name}") for name in ("noise", "walk", "instability"))
    white = low_pass_noise(numbers[..., 0], period, imu.bandwidth)
    spread = np.asarray(density, dtype=np.float64) / np.sqrt(np.asarray(period, dtype=np.float64))
    return (
        _column(spread) * white
        + random_walk(numbers[..., 1], period, walk)
        + flicker_noise(numbers[..., 2:], period, level)
    )


def _column(values: ArrayLike) -> NDArray[np.float64]:
    """Return ``(nworld,)`` or a number with axes to broadcast with ``(nworld, n, 3)``."""
    return np.asarray(values, dtype=np.float64)[..., None, None]
