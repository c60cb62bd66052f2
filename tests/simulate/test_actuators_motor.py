"""A servo whose firmware gain, motor or load differs from its preset follows the voltage law."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from support.one_joint import INERTIA, joints_twin, run
from twinloop.core.errors import InputError
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.drive_stages import COPPER
from twinloop.twin import load_twin
from twinloop.twin.servos import servo_presets

FAR = 1e3  # rad: a command that no joint reaches keeps its servo at full duty
KT, RESISTANCE, GAIN = (f"actuator/j0/{name}" for name in ("torque_constant", "resistance", "firmware_gain"))


@pytest.fixture(scope="module")
def servo(tmp_path_factory):
    return joints_twin(tmp_path_factory.mktemp("servo"), robot={"servo": "xl330"})


@pytest.fixture(scope="module")
def preset():
    return servo_presets()["xl330"]


def forces(twin, values, command, nworld=1, seconds=0.1):
    commands = np.full((nworld, round(seconds * twin.control_hz), 1), command)
    return run(twin, twin.table(nworld, values), commands, record=("actuator_force",)).records["actuator_force"][..., 0]


class TestFirmwareGain:
    def test_it_scales_the_position_loop_and_not_full_duty(self, servo, preset):
        gain = np.array([100.0, 400.0, 800.0])
        values = {GAIN: gain, "joint/j0/armature": 90.0}
        small, full = forces(servo, values, 0.05, 3), forces(servo, values, FAR, 3)
        np.testing.assert_allclose(small[:, 1], preset.kp.value * gain / 400 * 0.05, rtol=1e-6)
        np.testing.assert_allclose(full[:, 1], preset.torque_limit.value, rtol=1e-9)

    def test_the_preset_has_the_gain_that_its_kp_was_made_for(self, servo):
        assert servo.params[GAIN].nominal == 400.0
        assert load_twin("xl330_pendulum").params["actuator/pendulum/firmware_gain"].nominal == 400.0

    def test_a_drive_without_position_loop_has_none(self, tmp_path):
        robot = {"servo": "torque_controlled_12nm", "control": "torque"}
        assert GAIN not in joints_twin(tmp_path, robot=robot).params


class TestMotor:
    @settings(max_examples=4, deadline=None)
    @given(kt=st.floats(0.2, 0.8), resistance=st.floats(1.5, 8.0), volts=st.floats(3.0, 9.0))
    def test_stall_and_speed_without_load_are_the_voltage_laws(self, servo, preset, kt, resistance, volts):
        values = {KT: kt, RESISTANCE: resistance, "actuator/j0/voltage": volts}
        stall = forces(servo, {**values, "joint/j0/armature": 90.0}, FAR)[0, -1]
        assert stall == pytest.approx(kt * volts / resistance, rel=2e-3)
        damping = preset.viscous.value + kt**2 / resistance
        seconds = 8 * (preset.armature.value + INERTIA) / damping
        commands = np.full((1, round(seconds * servo.control_hz), 1), FAR)
        speed = run(servo, servo.table(1, values), commands).qvel[0, -1, 0]
        assert speed == pytest.approx((kt * volts / resistance - preset.frictionloss.value) / damping, rel=3e-3)

    def test_another_motor_warms_by_its_own_losses(self, tmp_path):
        twin = joints_twin(tmp_path, inertia=1e7, robot={"servo": "xl330"})
        kt, cold, thermal, time = 0.3, 2.5, 25.0, 0.8
        values = {KT: kt, RESISTANCE: cold, "actuator/j0/voltage": 7.4}
        values |= {"actuator/j0/thermal_resistance": thermal, "actuator/j0/thermal_time": time}
        force = forces(twin, values, FAR, seconds=2.0)[0]

        def law(_, rise):
            return (thermal * 7.4**2 / (cold * (1 + COPPER * rise)) - rise) / time

        seconds = np.arange(1, 200) / twin.control_hz
        rise = solve_ivp(law, (0, 2), [0.0], t_eval=seconds, rtol=1e-9).y[0]
        np.testing.assert_allclose(force[1 : len(rise) + 1], kt * 7.4 / (cold * (1 + COPPER * rise)), rtol=3e-3)
        assert force[-1] < 0.7 * force[1]

    def test_the_presets_own_constants_cost_and_change_nothing(self, servo, preset):
        same = {KT: preset.kt.value, RESISTANCE: preset.resistance.value}
        runs = [run(servo, servo.table(1, values), np.full((1, 20, 1), 0.5)) for values in ({}, same)]
        np.testing.assert_array_equal(runs[0].states, runs[1].states)

    def test_it_needs_a_preset_to_differ_from(self, tmp_path):
        plain = joints_twin(tmp_path, robot={"servo": "torque_controlled_12nm", "control": "torque"})
        with pytest.raises(InputError, match="torque_constant and resistance need the motors' constants"):
            forces(plain, {"supply/bus/resistance": 0.1}, 1.0)


def test_load_friction_grows_with_the_current_and_not_with_the_voltage(servo, preset):
    """Without load the end speed w balances limit − D w − f − s (limit − b w), b the back-EMF's part of D."""
    share, damping, limit = 0.4, preset.damping.value, preset.torque_limit.value
    back_emf = preset.kt.value**2 / preset.resistance.value
    values = {"joint/j0/load_friction": share, "joint/j0/frictionloss": 0.01}
    speed = run(servo, servo.table(1, values), np.full((1, 600, 1), FAR)).qvel[0, -1, 0]
    assert speed == pytest.approx((limit * (1 - share) - 0.01) / (damping - share * back_emf), rel=2e-3)


def test_the_backends_agree_bit_for_bit_on_the_pendulum():
    twin = load_twin("xl330_pendulum")
    values = {
        "actuator/pendulum/firmware_gain": np.array([100.0, 800.0]),
        "actuator/pendulum/voltage": 7.4,
        "actuator/pendulum/torque_constant": 0.37,
        "actuator/pendulum/resistance": np.array([2.5, 3.0]),
        "actuator/pendulum/thermal_resistance": 25.0,
        "actuator/pendulum/thermal_time": 0.8,
        "joint/pendulum/load_friction": 0.4,
        "link/weight/com/x": np.array([0.0, 0.01]),
    }
    table, commands = twin.table(2, values), np.linspace(0, 1.5, 60)[None, :, None].repeat(2, axis=0)
    start = InitialState.home(twin, 2)
    runs = [rollout(open_backend(name), twin, table, start, commands, 60) for name in ("reference", "threads")]
    np.testing.assert_array_equal(runs[0].states, runs[1].states)
    assert runs[0].qpos[1, -1, 0] > runs[0].qpos[0, -1, 0] > 0.05


def test_a_held_weight_stands_where_gear_friction_lets_it():
    """Creeping up, the motor's torque less what the gear eats of it carries weight and Coulomb friction."""
    twin = load_twin("xl330_pendulum")
    share, friction = 0.3, 0.01
    values = {"joint/pendulum/load_friction": share, "joint/pendulum/frictionloss": friction}
    commands = np.linspace(0, 1.0, 800)[None, :, None]
    run_ = run(twin, twin.table(1, values), commands)
    angle, speed = run_.qpos[0, -1, 0], run_.qvel[0, -1, 0]
    error, damping = 1.0 - angle, twin.params["joint/pendulum/damping"].nominal
    weight = 0.49 * 9.81 * 0.1 * np.sin(angle)
    pushed = 0.554 * error - 0.0372 * speed
    assert pushed * (1 - share) == pytest.approx(weight + friction + (damping - 0.0372) * speed, rel=0.02)
