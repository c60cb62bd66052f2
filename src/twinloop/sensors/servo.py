"""Model the feedback of a smart servo: encoder, on which it closes its loop, velocity, current, load, voltage.

A servo with an encoder error of ``offset`` and ``scale`` reports ``(q - offset) / scale`` for a joint at ``q``, and
drives the joint to ``offset + scale · command``. At rest and without load the reading therefore equals the command for
any offset and scale; only gravity, the ends of travel or a camera reveal the error.

Current and load follow from the motor's equations (``twin/servos.yaml``): a torque T at a speed w behind the gear needs
the duty d = T R/(kt V), which servos call load, and the current I = (T − kt²/R · w)/kt = (d V − kt w)/R.
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
    """Return the encoder readings of true joint positions.

    Args:
        position: true positions ``(nworld, …, n)`` in rad or m.
        offset: true position at which the encoder reads zero, ``(nworld, n)``, ``(n,)`` or a number, in the same unit.
        scale: true change per reported change, of the shapes of ``offset``, dimensionless and not zero.
        resolution: size of one count in the reported unit, of the shapes of ``offset``; None or 0 reports without
            quantizing. Readings are rounded to the nearest count, halves to even, so the error is at most half a count.
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
    counted = count > 0.0
    return np.where(counted, np.round(reading / np.where(counted, count, 1.0)) * count, reading)


def encoder_command(command: ArrayLike, offset: ArrayLike, scale: ArrayLike) -> NDArray[np.float64]:
    """Return the true target position of a servo for ``command``: the inverse of `encoder_reading`.

    Shapes and units as there; ``command`` is ``(nworld, …, n)``.
    """
    told = np.asarray(command, dtype=np.float64)
    return _per_joint(offset, told.ndim) + _per_joint(scale, told.ndim) * told


def _per_joint(values: ArrayLike, ndim: int) -> NDArray[np.float64]:
    """Return ``(nworld, n)`` as ``(nworld, 1, …, 1, n)``, to broadcast over the axes between world and joint."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or ndim <= 2:
        return array
    return array.reshape(array.shape[0], *(1,) * (ndim - 2), array.shape[1])


REPORTS = ("velocity", "current", "load", "voltage", "temperature")  # order of the columns of readings
CHANCE = 2  # standard normal numbers per sample of one servo


@dataclass(frozen=True, kw_only=True)
class ServoFeedback:
    """Quantities of the servos' feedback in one world, or in each, ``(nworld,)``; the default is ideal feedback.

    They are the parameters ``sensor/NAME/QUANTITY``; `twin.quantities` has their meanings and units.
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
        """Return whether any reading is random."""
        return bool(np.any(np.asarray(self.velocity_noise) > 0) or np.any(np.asarray(self.current_noise) > 0))


def motor_state(
    torque: ArrayLike,
    speed: ArrayLike,
    voltage: ArrayLike,
    *,
    kt: ArrayLike,
    resistance: ArrayLike,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return current in A and duty of motors from torque and speed; all broadcast with each other.

    Args:
        torque: torque of the voltage alone, before back-EMF is subtracted, in N·m behind the gear (MuJoCo's
            ``actuator_force`` of a servo whose damping includes the back-EMF).
        speed: speed behind the gear, in rad/s.
        voltage: voltage at the motor, in V.
        kt: torque constant in N·m/A behind the gear.
        resistance: resistance in ohm, at the winding's temperature.
    """
    force, constant = np.asarray(torque, dtype=np.float64), np.asarray(kt, dtype=np.float64)
    ohms = np.asarray(resistance, dtype=np.float64)
    duty = force * ohms / (constant * np.asarray(voltage, dtype=np.float64))
    current = force / constant - constant * np.asarray(speed, dtype=np.float64) / ohms
    return current, duty


def servo_readings(
    servo: ServoFeedback, truth: ArrayLike, position: ArrayLike, *, chance: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return the servos' readings of samples of the filtered true signals.

    The tachometer's ripple is proportional to the speed, with ``velocity_ripple_order`` periods per turn.

    Args:
        servo: quantities of the feedback.
        truth: true signals of each servo in the order of `REPORTS`, with the temperature as rise over the room's,
            ``(nworld, n, nservo, 5)`` in rad/s, A, 1, V, K.
        position: true position of each servo, ``(nworld, n, nservo)`` in rad.
        chance: standard normal numbers ``(nworld, n, nservo, CHANCE)``; None: no noise.

    Returns:
        Readings ``(nworld, n, nservo, 5)``, temperatures in °C.
    """
    numbers = np.zeros((*np.shape(position), CHANCE)) if chance is None else np.asarray(chance, dtype=np.float64)
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
    """Return ``(nworld,)`` or a number with axes to broadcast with ``(nworld, n, nservo)``."""
    return np.asarray(values, dtype=np.float64)[..., None, None]
