"""Model the feedback of smart servos: encoder position, velocity, current, load, voltage and temperature.

The servo's position controller uses its own encoder. With the encoder errors ``offset`` and ``scale``, the
servo reports ``(q - offset) / scale`` for a joint at ``q``, and moves the joint to ``offset + scale ·
command``. At rest and without load the reading therefore equals the command for any offset and scale. Only
gravity, the joint limits or a camera reveal the error.

Current and load follow from the motor's equations (``twin/servos.yaml``). A torque T at a speed w, both after
the gear, needs the duty cycle d = T R/(kt V), which servos call load, and the current I = (T − kt²/R · w)/kt =
(d V − kt w)/R, for the resistance R, the torque constant kt and the voltage V.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.sensors.filters import digitize

STS3215_RESOLUTION = 2 * math.pi / 4096  # rad; 12 bits a turn (Feetech STS3215 data sheet, DFRobot SER0069)


def encoder_reading(
    position: ArrayLike,
    offset: ArrayLike,
    scale: ArrayLike,
    *,
    resolution: ArrayLike | None = None,
    noise: ArrayLike = 0.0,
) -> NDArray[np.float64]:
    """Return the encoder readings for true joint positions.

    Args:
        position: true positions in rad or m, shape ``(nworld, …, n)`` for n joints.
        offset: true position at which the encoder reports zero, in the unit of ``position``; ``(nworld, n)``,
            ``(n,)`` or a number.
        scale: change of the true position per change of the reading, not zero; same shapes as ``offset``.
        resolution: size of one encoder count in the reported unit, same shapes as ``offset``. Readings are rounded
            to the nearest count, halves to even, so the error is at most half a count. None or 0 disables rounding.
        noise: noise added before rounding, of the shape of ``position`` or a number.

    Returns:
        Readings of the shape of ``position``.
    """
    true = np.asarray(position, dtype=np.float64)
    reading = (true - _per_joint(offset, true.ndim)) / _per_joint(scale, true.ndim)
    reading = reading + np.asarray(noise, dtype=np.float64)
    if resolution is None:
        return reading
    count = _per_joint(resolution, true.ndim)
    has_counts = count > 0.0
    return np.where(has_counts, np.round(reading / np.where(has_counts, count, 1.0)) * count, reading)


def encoder_command(command: ArrayLike, offset: ArrayLike, scale: ArrayLike) -> NDArray[np.float64]:
    """Return the true joint positions to which servos move for position commands; inverse of `encoder_reading`.

    Args:
        command: commanded positions in rad or m, shape ``(nworld, …, n)`` for n joints.
        offset: true position at which the encoder reports zero; ``(nworld, n)``, ``(n,)`` or a number.
        scale: change of the true position per change of the reading; same shapes as ``offset``.
    """
    values = np.asarray(command, dtype=np.float64)
    return _per_joint(offset, values.ndim) + _per_joint(scale, values.ndim) * values


def _per_joint(values: ArrayLike, ndim: int) -> NDArray[np.float64]:
    """Reshape ``(nworld, n)`` to ``(nworld, 1, …, 1, n)``, so that it broadcasts with an array of ``ndim`` axes."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or ndim <= 2:
        return array
    return array.reshape(array.shape[0], *(1,) * (ndim - 2), array.shape[1])


REPORTS = ("velocity", "current", "load", "voltage", "temperature")  # order of the columns of readings
NORMALS_PER_SAMPLE = 2  # standard normal numbers per sample of one servo


@dataclass(frozen=True, kw_only=True)
class ServoFeedback:
    """Parameters of the servos' feedback: numbers, or arrays ``(nworld,)``; the default is ideal feedback.

    They are the twin's parameters ``sensor/NAME/QUANTITY``; `twin.quantities` has their meanings and units.

    Attributes:
        rate: sampling rate in Hz; 0 takes one sample per frame.
        phase: time of the first sample, in sampling periods.
        delay: age of a sample at its delivery, in s.
        bandwidth: half-power frequency of the low-pass filter before sampling, in Hz; 0 for no filter.
        velocity_noise: standard deviation of the velocity, in rad/s.
        velocity_ripple: amplitude of the tachometer's ripple, relative to the velocity.
        velocity_ripple_order: periods of that ripple per turn.
        velocity_step: quantization step of the velocity in rad/s, 0 for none.
        current_noise: standard deviation of the current, in A.
        current_bias: reported current if no current flows, in A.
        current_scale_error: relative error of the current.
        current_range: largest reported current in A, 0 for no limit.
        current_step: quantization step of the current in A, 0 for none.
        load_step: quantization step of the duty cycle, 0 for none.
        voltage_step: quantization step of the supply voltage in V, 0 for none.
        temperature_step: quantization step of the temperature in K, 0 for none.
        room_temperature: temperature of an unused servo, in °C.
    """

    rate: ArrayLike = 0.0
    phase: ArrayLike = 0.0
    delay: ArrayLike = 0.0
    bandwidth: ArrayLike = 0.0
    velocity_noise: ArrayLike = 0.0
    velocity_ripple: ArrayLike = 0.0
    velocity_ripple_order: ArrayLike = 1.0
    velocity_step: ArrayLike = 0.0
    current_noise: ArrayLike = 0.0
    current_bias: ArrayLike = 0.0
    current_scale_error: ArrayLike = 0.0
    current_range: ArrayLike = 0.0
    current_step: ArrayLike = 0.0
    load_step: ArrayLike = 0.0
    voltage_step: ArrayLike = 0.0
    temperature_step: ArrayLike = 0.0
    room_temperature: ArrayLike = 20.0

    @property
    def is_random(self) -> bool:
        """Return whether any reading contains random errors."""
        return bool(np.any(np.asarray(self.velocity_noise) > 0) or np.any(np.asarray(self.current_noise) > 0))


def motor_state(
    torque: ArrayLike,
    speed: ArrayLike,
    voltage: ArrayLike,
    *,
    kt: ArrayLike,
    resistance: ArrayLike,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the currents and duty cycles of motors at given torques and speeds; all arguments broadcast.

    The current is torque/kt − kt · speed/resistance. The duty cycle is torque · resistance/(kt · voltage).

    Args:
        torque: torque after the gear, in N·m, before the back-EMF of the turning motor is subtracted. It is MuJoCo's
            ``actuator_force`` of a servo whose damping includes the back-EMF.
        speed: speed after the gear, in rad/s.
        voltage: voltage at the motor, in V.
        kt: torque constant after the gear, in N·m/A.
        resistance: resistance of the winding at its present temperature, in ohm.

    Returns:
        Currents in A, and duty cycles as signed fractions of the voltage.
    """
    force, constant = np.asarray(torque, dtype=np.float64), np.asarray(kt, dtype=np.float64)
    ohms = np.asarray(resistance, dtype=np.float64)
    duty = force * ohms / (constant * np.asarray(voltage, dtype=np.float64))
    current = force / constant - constant * np.asarray(speed, dtype=np.float64) / ohms
    return current, duty


def servo_readings(
    servo: ServoFeedback, truth: ArrayLike, position: ArrayLike, *, normals: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return the feedback that servos report for samples of the filtered true signals.

    The ripple of the tachometer is proportional to the speed and has ``velocity_ripple_order`` periods per turn.

    Args:
        servo: parameters of the feedback.
        truth: true signals of each servo, shape ``(nworld, n, nservo, 5)`` for n samples: velocity in rad/s, current in
            A, load (duty cycle, at most 1), voltage in V, and temperature rise over the room in K.
        position: true position of each servo in rad, shape ``(nworld, n, nservo)``.
        normals: standard normal numbers for velocity and current, shape ``(nworld, n, nservo, 2)``; None disables
            noise.

    Returns:
        Readings in the same order, temperatures in °C; shape ``(nworld, n, nservo, 5)``.
    """
    numbers = (
        np.zeros((*np.shape(position), NORMALS_PER_SAMPLE))
        if normals is None
        else np.asarray(normals, dtype=np.float64)
    )
    velocity, current, load, voltage, rise = np.moveaxis(np.asarray(truth, dtype=np.float64), -1, 0)
    ripple = np.sin(_column(servo.velocity_ripple_order) * np.asarray(position, dtype=np.float64))
    velocity = velocity * (1.0 + _column(servo.velocity_ripple) * ripple)
    velocity = velocity + _column(servo.velocity_noise) * numbers[..., 0]
    current = current * (1.0 + _column(servo.current_scale_error)) + _column(servo.current_bias)
    current = current + _column(servo.current_noise) * numbers[..., 1]
    reported = (
        digitize(velocity, 0.0, _column(servo.velocity_step)),
        digitize(current, _column(servo.current_range), _column(servo.current_step)),
        digitize(load, 0.0, _column(servo.load_step)),
        digitize(voltage, 0.0, _column(servo.voltage_step)),
        digitize(rise + _column(servo.room_temperature), 0.0, _column(servo.temperature_step)),
    )
    return np.stack(reported, axis=-1)


def _column(values: ArrayLike) -> NDArray[np.float64]:
    """Append two axes to a number or an array ``(nworld,)``, so that it broadcasts with ``(nworld, n, nservo)``."""
    return np.asarray(values, dtype=np.float64)[..., None, None]
