"""Compute readings of inertial measurement units (IMU) from true angular rates and specific forces.

For the true angular rate ω and the true specific force a, both in the IMU's axes and after its low-pass filter,
the readings are

    ω̃ = (I + S_g + M_g) ω + b_g + G a + w_g + n_g,      ã = (I + S_a + M_a) a + b_a + w_a + n_a,

clipped and quantized. The symbols, with the index g for the gyroscope and a for the accelerometer, are

- S: scale errors; M: misalignments; b: bias since power-up;
- G: sensitivity of the gyroscope to acceleration;
- w: drift of the bias (a random walk plus flicker noise); n: white noise.

The noise parameters are those of IEEE 952 and Kalibr. For samples with the spacing Δt and the averaging time τ,

- N is the density of the white noise: each sample has the standard deviation N/√Δt, and the Allan deviation is N/√τ;
- K is the rate of the random walk: the bias changes by K √Δt per sample, and the Allan deviation is K √(τ/3);
- B is the bias instability (flicker noise): the Allan deviation is flat at 0.664 B.

The noise density D of a data sheet is one-sided (standard deviation = D √bandwidth), so N = D/√2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.sensors.filters import FLICKER_TIMES, digitize, flicker_noise, low_pass_noise, random_walk

AXES = ("x", "y", "z")
PAIRS = ("xy", "xz", "yx", "yz", "zx", "zy")  # axis that reads, axis that should have no effect on it
NORMALS_PER_SAMPLE = 2 * len(AXES) * (2 + len(FLICKER_TIMES))  # standard normal numbers per sample

Triad = Literal["gyro", "accel"]


@dataclass(frozen=True, kw_only=True)
class Imu:
    """Parameters of an inertial measurement unit: numbers, or arrays ``(nworld,)``; the default is an ideal unit.

    They are the twin's parameters ``sensor/NAME/QUANTITY``; `twin.quantities` has their meanings and units.
    Quantities ``gyro_…`` are based on rad/s and ``accel_…`` on m/s².

    Attributes:
        rate: sampling rate in Hz; 0 takes one sample per frame.
        phase: time of the first sample, in sampling periods.
        delay: age of a sample at its delivery, in s.
        bandwidth: half-power frequency of the low-pass filter before sampling, in Hz; 0 for no filter.
        gyro_noise: white noise N of IEEE 952, in rad/s/√Hz; likewise ``accel_noise``.
        gyro_walk: random walk of the bias, K of IEEE 952, in rad/s/√s; likewise ``accel_walk``.
        gyro_instability: flicker noise, bias instability B of IEEE 952, in rad/s; likewise ``accel_instability``.
        gyro_bias_x: constant bias along x; likewise the other ``…_bias_…``.
        gyro_scale_error_x: relative error along x; likewise the other ``…_scale_error_…``.
        gyro_misalignment_xy: fraction of the true value along y that axis x measures; likewise the others.
        gyro_g_sensitivity_x: angular rate reported along x per specific force along x, in rad·s/m.
        gyro_range: largest reported value, 0 for no limit; likewise ``accel_range``.
        gyro_step: quantization step, 0 for none; likewise ``accel_step``.
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
        """Return whether any reading contains random errors."""
        kinds = ("noise", "walk", "instability")
        return any(np.any(np.asarray(getattr(self, f"{triad}_{kind}")) > 0) for triad in Triads for kind in kinds)

    def vector(self, stem: str) -> NDArray[np.float64]:
        """Return the x, y and z values of one kind of parameter, shape ``(…, 3)``.

        Args:
            stem: name before the axis, such as ``gyro_bias``.
        """
        return np.stack(np.broadcast_arrays(*(getattr(self, f"{stem}_{axis}") for axis in AXES)), axis=-1)

    def mixing_matrix(self, triad: Triad) -> NDArray[np.float64]:
        """Return the matrix from the true vector to the readings of one sensor triad, shape ``(…, 3, 3)``.

        It is the identity plus scale errors (diagonal) and misalignments (off-diagonal); rows are the measuring axes.
        """
        errors = self.vector(f"{triad}_scale_error")
        matrix = np.zeros((*errors.shape, 3))
        for i in range(3):
            matrix[..., i, i] = 1.0 + errors[..., i]
        for pair in PAIRS:
            matrix[..., AXES.index(pair[0]), AXES.index(pair[1])] = getattr(self, f"{triad}_misalignment_{pair}")
        return matrix


Triads: tuple[Triad, Triad] = ("gyro", "accel")


def imu_readings(
    imu: Imu, rate: ArrayLike, force: ArrayLike, *, period: ArrayLike, normals: ArrayLike | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the readings of an inertial measurement unit for samples of the filtered true signals.

    Args:
        imu: parameters of the unit.
        rate: true angular rates in the unit's axes in rad/s, shape ``(nworld, n, 3)`` for n samples.
        force: true specific forces (acceleration minus gravity, so +g upwards at rest) in the unit's axes in m/s²,
            shape ``(nworld, n, 3)``.
        period: time between samples in s, ``(nworld,)`` or a number.
        normals: independent standard normal numbers from the first sample on, shape ``(nworld, n, 60)``: 10 for each
            axis of the gyroscope, then of the accelerometer (`NORMALS_PER_SAMPLE` in total); None disables random
            errors.

    Returns:
        Reported angular rates in rad/s and specific forces in m/s², each of shape ``(nworld, n, 3)``.
    """
    truth = {"gyro": np.asarray(rate, dtype=np.float64), "accel": np.asarray(force, dtype=np.float64)}
    normals = None if normals is None else np.asarray(normals, dtype=np.float64)
    result = []
    for i, triad in enumerate(Triads):
        value = np.einsum("...ij,...nj->...ni", imu.mixing_matrix(triad), truth[triad])
        value = value + imu.vector(f"{triad}_bias")[..., None, :]
        if triad == "gyro":
            value = value + imu.vector("gyro_g_sensitivity")[..., None, :] * truth["accel"]
        if normals is not None:
            numbers = normals.reshape(*normals.shape[:-1], 2, 3, -1)[..., i, :, :]
            value = value + _random_errors(imu, triad, numbers, period)
        limit, step = (_column(getattr(imu, f"{triad}_{name}")) for name in ("range", "step"))
        result.append(digitize(value, limit, step))
    return result[0], result[1]


def _random_errors(imu: Imu, triad: Triad, numbers: NDArray[np.float64], period: ArrayLike) -> NDArray[np.float64]:
    """Return the sum of white noise, random walk and flicker noise of one sensor triad, shape ``(nworld, n, 3)``.

    Args:
        imu: parameters of the unit.
        triad: ``gyro`` or ``accel``.
        numbers: standard normal numbers, shape ``(nworld, n, 3, 2 + len(FLICKER_TIMES))``.
        period: time between samples in s.
    """
    density, walk, level = (getattr(imu, f"{triad}_{name}") for name in ("noise", "walk", "instability"))
    white = low_pass_noise(numbers[..., 0], period, imu.bandwidth)
    spread = np.asarray(density, dtype=np.float64) / np.sqrt(np.asarray(period, dtype=np.float64))
    return (
        _column(spread) * white
        + random_walk(numbers[..., 1], period, walk)
        + flicker_noise(numbers[..., 2:], period, level)
    )


def _column(values: ArrayLike) -> NDArray[np.float64]:
    """Append two axes to a number or an array ``(nworld,)``, so that it broadcasts with ``(nworld, n, 3)``."""
    return np.asarray(values, dtype=np.float64)[..., None, None]
