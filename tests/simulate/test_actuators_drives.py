"""Sag, heat, torque-speed curve and friction follow their equations in simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from support.one_joint import INERTIA, joints_twin, run
from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.drive_stages import COPPER
from twinloop.simulate.drives import DriveStages
from twinloop.twin import builtin_names, load_twin

FAR = 1e3  # rad: a command that no joint reaches keeps its servo at full duty
HEAVY = 90.0  # kg·m²: an armature that keeps a joint at its position for a moment


@pytest.fixture(scope="module")
def servo(tmp_path_factory):
    return joints_twin(tmp_path_factory.mktemp("servo"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return joints_twin(tmp_path_factory.mktemp("pair"), joints=2)


@pytest.fixture(scope="module")
def motor(tmp_path_factory):
    robot = {"servo": "torque_controlled_12nm", "control": "torque"}
    return joints_twin(tmp_path_factory.mktemp("motor"), robot=robot)


def at_full_duty(twin, values, seconds=1.0, nworld=1, record=()):
    commands = np.full((nworld, round(seconds * twin.control_hz), twin.model.nu), FAR)
    return run(twin, twin.table(nworld, values), commands, record=record)


class TestVoltage:
    def test_torque_and_speed_follow_the_supply_and_back_emf_does_not(self, servo):
        volts = np.array([6.0, 7.4, 8.4])
        numbers = servo.servos[0]
        speed = at_full_duty(servo, {"actuator/j0/voltage": volts}, nworld=3).qvel[:, -1, 0]
        torque = numbers.torque_limit.value * volts / 7.4
        np.testing.assert_allclose(speed, (torque - numbers.frictionloss.value) / numbers.damping.value, rtol=1e-3)

    def test_a_servo_is_softer_on_a_flat_battery(self, servo):
        """An external spring holds with the servo: rest is where the two torques balance, kp in proportion to V."""
        volts = np.array([5.0, 7.4])
        values = {"actuator/j0/voltage": volts, "joint/j0/frictionloss": 0.0}
        run_ = run(servo, servo.table(2, values), np.full((2, 100, 1), 0.3), record=("actuator_force",))
        first = run_.records["actuator_force"][:, 1, 0]
        np.testing.assert_allclose(first / first[1], volts / 7.4, rtol=0.01)


class TestSag:
    @settings(max_examples=10, deadline=None)
    @given(resistance=st.floats(0.0, 1.0), volts=st.floats(5.0, 9.0))
    def test_stalled_servos_share_what_the_bus_leaves(self, pair, resistance, volts):
        """Closed form at stall: each draws d² V / R, so V = V0 / (1 + r Σ d² / R)."""
        motor, duty = pair.servos[0].motor, 3.25 * 2.676 / (1.2116 * 7.4)
        values = {"supply/bus/resistance": resistance}
        values |= {f"joint/j{i}/armature": HEAVY for i in range(2)} | {
            f"actuator/j{i}/voltage": volts for i in range(2)
        }
        force = at_full_duty(pair, values, 0.05, record=("actuator_force",)).records["actuator_force"][0, -1]
        left = volts / (1.0 + resistance * 2 * duty**2 / motor.resistance)
        np.testing.assert_allclose(force, 3.25 * left / 7.4, rtol=2e-3)

    def test_a_servo_that_rests_lets_the_other_have_the_bus(self, pair):
        values = {"supply/bus/resistance": 0.5, "joint/j0/armature": HEAVY, "joint/j1/armature": HEAVY}
        commands = np.full((2, 5, 2), FAR)
        commands[1, :, 1] = 0.0
        force = run(pair, pair.table(2, values), commands, record=("actuator_force",)).records["actuator_force"][:, -1]
        assert force[0, 0] < 0.9 * force[1, 0]
        assert abs(force[1, 1]) < 1e-2

    def test_it_needs_to_know_the_motors(self, tmp_path):
        twin = joints_twin(tmp_path, robot={"servo": "torque_controlled_12nm", "control": "torque"})
        with pytest.raises(InputError, match="need the motors' constants, but joints has no servo with such constants"):
            at_full_duty(twin, {"supply/bus/resistance": 0.1}, 0.05)


class TestHeat:
    def test_a_stalled_winding_warms_and_weakens_as_the_heat_equation_says(self, tmp_path):
        resistance, time = 40.0, 5.0
        servo = joints_twin(tmp_path, inertia=1e7)
        values = {"actuator/j0/thermal_resistance": resistance, "actuator/j0/thermal_time": time}
        record = at_full_duty(servo, values, 10.0, record=("actuator_force",)).records["actuator_force"][0, :, 0]
        motor = servo.servos[0].motor
        drive = 3.25 * motor.resistance / motor.kt  # V · duty

        def law(_, rise):
            return (resistance * drive**2 / (motor.resistance * (1 + COPPER * rise)) - rise) / time

        seconds = np.arange(1, 1001) / 100
        rise = solve_ivp(law, (0, 10), [0.0], t_eval=seconds, rtol=1e-9).y[0]
        np.testing.assert_allclose(record[1:], 3.25 / (1 + COPPER * rise), rtol=1e-3)
        assert record[-1] < 0.75 * record[1]

    def test_a_warm_motor_turns_as_its_warm_resistance_says(self, servo):
        rise = np.array([0.0, 30.0, 60.0])
        motor, warm = servo.servos[0].motor, 1 + COPPER * rise
        speed = at_full_duty(servo, {"actuator/j0/temperature_rise": rise}, 1.5, nworld=3).qvel[:, -1, 0]
        damping = 0.608 - motor.kt**2 / motor.resistance * (1 - 1 / warm)
        np.testing.assert_allclose(speed, (3.25 / warm - 0.0524) / damping, rtol=1e-3)


class TestSpeedLimit:
    def test_a_motor_runs_up_to_its_no_load_speed_along_the_exponential(self, motor):
        values = {"actuator/j0/no_load_speed": 8.0, "joint/j0/damping": 0.0, "joint/j0/frictionloss": 0.0}
        speed = at_full_duty(motor, values, 1.0).qvel[0, :, 0]
        inertia = INERTIA + 0.1
        exact = 8.0 * (1 - np.exp(-12.0 / (inertia * 8.0) * np.arange(len(speed)) / motor.control_hz))
        np.testing.assert_allclose(speed, exact, atol=0.03)
        assert speed[-1] == pytest.approx(8.0, rel=1e-3)

    def test_an_actuator_with_a_ratio_has_its_own_speed(self, tmp_path):
        """Ratio 3 and 9 rad/s at the actuator: 3 rad/s at the joint, pushed by three times the torque."""
        text = (
            '<mujoco><worldbody><body><joint name="j0" armature="1"/><geom size="0.1" mass="1"/></body></worldbody>'
            '<actuator><motor name="j0" joint="j0" gear="3" forcerange="-2 2" ctrlrange="-2 2"/></actuator></mujoco>'
        )
        (tmp_path / "geared.xml").write_text(text)
        (tmp_path / "geared.yaml").write_text(
            "{schema: 1, name: g, model: geared.xml, control_hz: 100, substeps: 10, robot: {type: g, joints: [j0], "
            "units: [rad], control: torque}, params: [{name: 'actuator/*/no_load_speed', source: test}]}"
        )
        twin = load_twin(tmp_path / "geared.yaml")
        table = twin.table(1, {"actuator/j0/no_load_speed": 9.0})
        result = run(twin, table, np.full((1, 400, 1), 2.0))
        assert result.qvel[0, -1, 0] == pytest.approx(3.0, rel=1e-3)
        assert result.qvel[0, 1, 0] == pytest.approx(0.01 * 6.0 / 1.004, rel=0.02)

    def test_braking_keeps_the_whole_torque(self, motor):
        values = {"actuator/j0/no_load_speed": 8.0, "joint/j0/damping": 0.0, "joint/j0/frictionloss": 0.0}
        start = replace(InitialState.home(motor, 1), qvel=np.array([[6.0]]))
        speed = run(motor, motor.table(1, values), np.full((1, 2, 1), -FAR), initial=start).qvel[0, :, 0]
        np.testing.assert_allclose(np.diff(speed), -12.0 / (INERTIA + 0.1) / motor.control_hz, rtol=1e-6)


class TestFriction:
    def ramp(self, motor, values, top=1.0, seconds=2.0):
        torque = np.linspace(0, top, round(seconds * motor.control_hz))
        result = run(motor, motor.table(1, {"joint/j0/damping": 0.0, **values}), torque[None, :, None])
        return torque, result.qvel[0, 1:, 0]

    @pytest.mark.parametrize("stiction", [1.0, 1.8])
    def test_a_joint_breaks_away_at_its_stiction(self, motor, stiction):
        values = {"joint/j0/frictionloss": 0.4, "joint/j0/stiction": stiction, "joint/j0/stribeck_velocity": 0.05}
        torque, speed = self.ramp(motor, values)
        away = torque[np.argmax(speed > 0.005)]
        assert away == pytest.approx(0.4 * stiction, rel=0.06)

    def test_once_in_motion_only_coulomb_friction_is_left(self, motor):
        values = {"joint/j0/frictionloss": 0.4, "joint/j0/stiction": 2.0, "joint/j0/damping": 0.0}
        commands = np.full((2, 20, 1), 0.6)  # between friction in motion, 0.4, and at rest, 0.8
        start = replace(InitialState.home(motor, 2), qvel=np.array([[0.0], [2.0]]))
        speed = run(motor, motor.table(2, values), commands, initial=start).qvel[:, :, 0]
        assert abs(speed[0]).max() < 1e-2
        np.testing.assert_allclose(np.diff(speed[1]) * motor.control_hz, 0.2 / (INERTIA + 0.1), rtol=0.01)

    @settings(max_examples=8, deadline=None)
    @given(share=st.floats(0.0, 0.5), torque=st.floats(2.0, 10.0))
    def test_friction_grows_with_the_load(self, motor, share, torque):
        values = {"joint/j0/frictionloss": 0.1, "joint/j0/load_friction": share, "joint/j0/damping": 0.0}
        speed = run(motor, motor.table(1, values), np.full((1, 10, 1), torque)).qvel[0, :, 0]
        gained = (speed[-1] - speed[1]) / (9 / motor.control_hz)
        assert gained == pytest.approx((torque * (1 - share) - 0.1) / (INERTIA + 0.1), rel=0.01)


STAGES = st.fixed_dictionaries(
    {
        "supply/bus/resistance": st.floats(0, 1),
        "actuator/*/voltage": st.floats(5, 9),
        "actuator/*/thermal_resistance": st.floats(0, 500),
        "actuator/*/thermal_time": st.floats(0.1, 10),
        "actuator/*/temperature_rise": st.floats(-20, 60),
        "joint/*/stiction": st.floats(1, 3),
        "joint/*/load_friction": st.floats(0, 0.3),
        "timing/control/period": st.floats(0.8, 1.2),
    }
)


def spread(twin, drawn, nworld):
    """Every parameter of a pattern at its drawn value times an individual factor between 0.5 and 1."""
    values = {}
    for pattern, value in drawn.items():
        family, _, quantity = pattern.split("/")
        for name in (n for n in twin.params if n.startswith(f"{family}/") and n.endswith(f"/{quantity}")):
            part = 0.5 + 0.5 * uniforms(5, name, range(nworld))[:, 0]
            values[name] = np.clip(value * part, twin.params[name].low, twin.params[name].high)
    return twin.table(nworld, values)


def some_commands(twin, nworld, nstep):
    low, high = twin.model.actuator_ctrlrange.T
    low, high = np.where(low < high, low, -1.0), np.where(low < high, high, 1.0)
    u = uniforms(0, "commands", range(nworld), size=nstep * twin.model.nu)
    return low + (high - low) * u.reshape(nworld, nstep, twin.model.nu)


class TestBackends:
    twin = load_twin("so101_tabletop")

    @settings(max_examples=8, deadline=None)
    @given(drawn=STAGES)
    def test_threads_equal_the_reference_bit_for_bit_with_every_stage_on(self, drawn):
        table, commands = spread(self.twin, drawn, 3), some_commands(self.twin, 3, 6)
        runs = [run(self.twin, table, commands, backend=name) for name in ("reference", "threads")]
        np.testing.assert_array_equal(runs[0].states, runs[1].states)

    def test_stages_whose_parameters_change_at_every_step_do_so_alike(self):
        steps = {
            "supply/bus/resistance": uniforms(1, "r", range(2), size=6),
            "joint/elbow_flex/stiction": 1 + uniforms(1, "s", range(2), size=6),
            "actuator/elbow_flex/kp": 8 + uniforms(1, "k", range(2), size=6),
        }
        table, commands = self.twin.table(2).with_steps(steps), some_commands(self.twin, 2, 6)
        runs = [run(self.twin, table, commands, backend=name) for name in ("reference", "threads")]
        np.testing.assert_array_equal(runs[0].states, runs[1].states)
        assert np.abs(runs[0].qpos - run(self.twin, self.twin.table(2), commands).qpos).max() > 1e-4

    # Gears and rotors are never without.
    @pytest.mark.parametrize("name", [n for n in builtin_names() if n != "crazyflie" and not n.endswith("_geared")])
    def test_nothing_is_done_between_physics_steps_where_no_world_needs_it(self, name):
        twin = load_twin(name)
        assert not DriveStages(twin, twin.table(2)).active

    @pytest.mark.parametrize("backend", ["reference", "threads"])
    def test_a_world_begun_anew_is_like_one_just_begun(self, backend):
        drawn = {"supply/bus/resistance": 0.3, "actuator/*/thermal_resistance": 400.0, "actuator/*/thermal_time": 0.5}
        table, commands = spread(self.twin, drawn, 3), some_commands(self.twin, 3, 8)
        start = InitialState.home(self.twin, 3)
        simulation = open_backend(backend).start(self.twin, table, start, 16)
        for step in range(8):
            simulation.advance(commands[:, step])
        simulation.restart([1], table.take([1]), InitialState.home(self.twin, 1))
        for step in range(8):
            simulation.advance(commands[:, step])
        fresh = rollout(open_backend(backend), self.twin, table, start, commands, 8)
        np.testing.assert_array_equal(simulation.qpos[1], fresh.qpos[1, -1])
        assert np.abs(simulation.qpos[0] - fresh.qpos[0, -1]).max() > 1e-6

    def test_a_world_that_diverges_under_its_drives_is_left_alone_as_in_a_rollout(self):
        commands = some_commands(self.twin, 2, 6)
        commands[1, 3:] = np.nan
        table = spread(self.twin, {"supply/bus/resistance": 0.3}, 2)
        runs = [run(self.twin, table, commands, backend=name) for name in ("reference", "threads")]
        np.testing.assert_array_equal(runs[0].invalid_step, [-1, 3])
        np.testing.assert_array_equal(runs[1].invalid_step, [-1, 3])
        np.testing.assert_array_equal(runs[0].states[0], runs[1].states[0])
        np.testing.assert_array_equal(runs[0].states[1, :5], runs[1].states[1, :5])


def test_the_stages_do_the_same_on_another_array_library():
    """Three physics steps of made-up states, NumPy against torch."""
    torch = pytest.importorskip("torch")
    twin, n = load_twin("so101_tabletop_geared"), 3
    drawn = {"supply/bus/resistance": 0.3, "actuator/*/thermal_resistance": 400.0, "joint/*/stiction": 2.0}
    drawn |= {"joint/*/load_friction": 0.2, "actuator/*/temperature_rise": 30.0}
    table = spread(twin, drawn, n)
    made = [
        DriveStages(twin, table),
        DriveStages(twin, table, as_array=lambda values: torch.from_numpy(np.array(values))),
    ]
    for step in range(3):
        sizes = {"qpos": twin.model.nq, "qvel": twin.model.nv, "force": 6, "control": 6}
        state = {name: uniforms(step, name, range(n), size=size) - 0.5 for name, size in sizes.items()}
        state["timestep"] = np.full(n, twin.dt)
        control, fields = made[0].apply(**state)
        others = made[1].apply(**{name: torch.from_numpy(values) for name, values in state.items()})
        np.testing.assert_allclose(others[0].numpy(), control, rtol=1e-12)
        for name, values in fields.items():
            np.testing.assert_allclose(others[1][name].numpy(), values, rtol=1e-12, err_msg=name)
    assert set(fields) == set(made[0].fields) == set(made[1].fields)
