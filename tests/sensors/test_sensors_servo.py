"""What servos report: the motor's law, counts, ripple."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.sensors.servo import NORMALS_PER_SAMPLE, REPORTS, ServoFeedback, motor_state, servo_readings
from twinloop.twin.devices import device_presets
from twinloop.twin.servos import servo_presets


def motor_of(name):
    motor = servo_presets()[name].motor
    assert motor is not None
    return motor


MOTOR = motor_of("sts3215_7v4")
COUNT = 2 * np.pi / 4096


def preset(name, **changed):
    return ServoFeedback(**{**{key: rated.value for key, rated in device_presets()[name].values.items()}, **changed})


def reported(servo, *, chance=None, **truth):
    """Readings by name of one servo in one world, from inputs along time; the default voltage is 7.4."""
    names = ("velocity", "current", "load", "voltage", "rise", "position")
    columns = np.broadcast_arrays(*(np.atleast_1d(truth.get(name, 7.4 * (name == "voltage"))) for name in names))
    whole = np.stack(columns[:5], axis=-1)[None, :, None].astype(float)
    said = servo_readings(servo, whole, columns[5][None, :, None], normals=chance)
    return {str(name): column for name, column in zip(REPORTS, said[0, :, 0].T, strict=True)}


def test_current_at_stall_is_the_voltages_over_the_resistance():
    torque = 0.97 * MOTOR.kt * MOTOR.voltage / MOTOR.resistance
    current, duty = motor_state(torque, 0.0, MOTOR.voltage, kt=MOTOR.kt, resistance=MOTOR.resistance)
    assert current == pytest.approx(0.97 * MOTOR.voltage / MOTOR.resistance)
    assert duty == pytest.approx(0.97)


@given(st.floats(-1, 1), st.floats(-6, 6), st.floats(5, 9), st.floats(0.5, 1.5))
def test_current_and_duty_are_the_circuits(duty, speed, voltage, warm):
    """The torque of a duty, MuJoCo's way: what the voltage makes, with back-EMF in the damping."""
    ohm = MOTOR.resistance * warm
    torque = MOTOR.kt / ohm * voltage * duty
    current, found = motor_state(torque, speed, voltage, kt=MOTOR.kt, resistance=ohm)
    assert found == pytest.approx(duty, abs=1e-12)
    assert current == pytest.approx((duty * voltage - MOTOR.kt * speed) / ohm, abs=1e-12)
    assert MOTOR.kt * current == pytest.approx(torque - MOTOR.kt**2 / ohm * speed, abs=1e-12)  # at the output


def test_an_idle_servo_at_its_no_load_speed_takes_no_current():
    speed = MOTOR.voltage / MOTOR.kt
    torque = MOTOR.kt / MOTOR.resistance * MOTOR.voltage
    current, _ = motor_state(torque, speed, MOTOR.voltage, kt=MOTOR.kt, resistance=MOTOR.resistance)
    assert current == pytest.approx(0.0, abs=1e-12)


def test_the_sts3215_counts_as_its_registers_do():
    said = reported(
        preset("sts3215_feedback", current_noise=0.0),
        velocity=np.linspace(-5, 5, 99),
        current=np.linspace(-4, 4, 99),
        load=np.linspace(-1, 1, 99),
        voltage=np.linspace(6, 8, 99),
        rise=np.linspace(0, 40, 99),
    )
    steps = {"velocity": 50 * COUNT, "current": 0.0065, "load": 0.001, "voltage": 0.1, "temperature": 1.0}
    for name, step in steps.items():
        counts = said[name] / step
        np.testing.assert_allclose(counts, np.round(counts), atol=1e-3 * np.abs(counts).max())
        assert len(np.unique(np.round(counts))) > 15, name
    assert np.abs(said["current"]).max() == pytest.approx(3.25)
    assert said["temperature"][0] == 25.0


def test_a_tachometer_ripples_with_the_turn():
    position = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    said = reported(ServoFeedback(velocity_ripple=0.03, velocity_ripple_order=7.0), velocity=2.0, position=position)[
        "velocity"
    ]
    spectrum = np.abs(np.fft.rfft(said)) / 200
    assert spectrum[7] == pytest.approx(0.06)
    assert said.mean() == pytest.approx(2.0)
    np.testing.assert_allclose(np.delete(spectrum, [0, 7]), 0.0, atol=1e-9)


def test_noise_scale_and_bias_of_the_current():
    servo = ServoFeedback(current_noise=0.02, current_bias=0.05, current_scale_error=0.1, velocity_noise=0.3)
    chance = np.random.default_rng(0).standard_normal((1, 40_000, 1, NORMALS_PER_SAMPLE))
    said = reported(servo, current=np.full(40_000, 1.0), chance=chance)
    assert said["current"].mean() == pytest.approx(1.15, abs=5e-4)
    assert said["current"].std() == pytest.approx(0.02, rel=0.02)
    assert said["velocity"].std() == pytest.approx(0.3, rel=0.02)
