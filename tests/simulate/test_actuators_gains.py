"""Gains, filters and integrators of actuators, read from the motion: each world's own, on every backend."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.one_joint import GAINS, actuator_twin, run
from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.rollout import initial_from_state
from twinloop.simulate import InitialState, open_backend

WITHOUT_WARP = importlib.util.find_spec("mujoco_warp") is None or importlib.util.find_spec("torch") is None
WARP = pytest.param("warp:cpu", marks=pytest.mark.skipif(WITHOUT_WARP, reason="mujoco-warp or torch is missing"))
BACKENDS = ["reference", "threads", WARP]
INERTIA = 0.1
SERVO = '<position name="j0" joint="j0" kp="10" kv="0.5"/>'
VELOCITY = '<velocity name="j0" joint="j0" kv="2"/>'
MOTOR = '<general name="j0" joint="j0" gaintype="fixed" biastype="none" gainprm="1"/>'
FILTERED = '<general name="j0" joint="j0" dyntype="filterexact" dynprm="0.1" gainprm="1"/>'
PID = '<pid name="j0" joint="j0" kp="10" kv="0.5" ki="4" imax="0.05" slewmax="0.5" input="pos"/>'
INTEGRATED = '<intvelocity name="j0" joint="j0" kp="10" kv="0.5"/>'
EACH = {"servo": SERVO, "velocity": VELOCITY, "motor": MOTOR, "filter": FILTERED, "pid": PID, "integrated": INTEGRATED}
CONTROL = {"velocity": "velocity", "integrated": "velocity", "motor": "torque", "filter": "torque"}


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    return {
        name: actuator_twin(tmp_path_factory.mktemp(name), text, control=CONTROL.get(name, "position"))
        for name, text in EACH.items()
    }


def own(twin):
    """Names of the actuator's gains, filters and limits."""
    kinds = [name.rpartition("/")[2] for name in ("actuator/*/kp", *GAINS)]
    return {kind for kind in kinds if f"actuator/j0/{kind}" in twin.params}


def at(twin, nworld, position=0.0, speed=0.0, command=0.0):
    whole = [np.full((nworld, 1), value) for value in (position, speed, command)]
    return replace(InitialState.home(twin, nworld), qpos=whole[0], qvel=whole[1], command=whole[2])


def times(twin, motion):
    return np.arange(motion.qpos.shape[1]) / twin.control_hz


def test_each_kind_of_actuator_has_its_gains(twins):
    assert {name: own(twin) for name, twin in twins.items()} == {
        "servo": {"kp", "kd"},
        "velocity": {"kv"},
        "motor": {"gain"},
        "filter": {"gain", "time_constant"},
        "pid": {"kp", "kd", "ki", "integral_limit", "slew_limit"},
        "integrated": {"kp", "kd"},
    }
    nominal = {name: param.nominal for name, param in twins["pid"].params.items() if name.startswith("actuator/j0/")}
    pid = {"kp": 10.0, "kd": 0.5, "ki": 4.0, "integral_limit": 0.05, "slew_limit": 0.5}
    assert {key: nominal[f"actuator/j0/{key}"] for key in pid} == pid


@pytest.mark.parametrize("name", EACH)
def test_nominal_values_leave_every_field_untouched(twins, name):
    twin = twins[name]
    assert twin.fields(twin.table(3)).arrays == {}
    again = {key: param.nominal for key, param in twin.params.items()}
    assert twin.fields(twin.table(2, again)).arrays == {}


class TestVelocityGain:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_servo_swings_out_at_the_rate_of_its_velocity_gain(self, twins, backend):
        """x = e^(−d t) (cos w t + d/w sin w t) with d = kd / 2I and w² = kp / I − d²."""
        twin, kd = twins["servo"], np.array([0.2, 0.5, 1.2])
        motion = run(twin, twin.table(3, {"actuator/j0/kd": kd}), np.zeros((3, 200, 1)), backend=backend,
                     initial=at(twin, 3, position=0.4))  # fmt: skip
        decay = kd[:, None] / (2 * INERTIA)
        frequency = np.sqrt(10 / INERTIA - decay**2)
        t = times(twin, motion)
        exact = 0.4 * np.exp(-decay * t) * (np.cos(frequency * t) + decay / frequency * np.sin(frequency * t))
        np.testing.assert_allclose(motion.qpos[:, :, 0], exact, atol=4e-3)

    @settings(max_examples=10, deadline=None)
    @given(kd=st.floats(0.0, 2.0), damping=st.floats(0.0, 2.0))
    def test_below_the_torque_limit_it_is_joint_damping(self, twins, kd, damping):
        twin = twins["servo"]
        values = {"actuator/j0/kd": [kd, 0.0], "joint/j0/damping": [damping, kd + damping]}
        motion = run(twin, twin.table(2, values), np.full((2, 60, 1), 0.3))
        np.testing.assert_allclose(motion.qpos[0], motion.qpos[1], atol=1e-9)

    def test_it_is_within_the_torque_limit_and_joint_damping_is_not(self, tmp_path):
        """At a speed of 10 rad/s the servo brakes with its limit of 2 N·m, and damping of 1 N·m·s/rad with 10."""
        twin = actuator_twin(tmp_path, SERVO.replace("/>", ' forcerange="-2 2"/>'))
        values = {"actuator/j0/kd": [1.0, 0.0], "joint/j0/damping": [0.0, 1.0]}
        motion = run(twin, twin.table(2, values), np.zeros((2, 1, 1)), initial=at(twin, 2, speed=10.0))
        slowed = (10.0 - motion.qvel[:, 1, 0]) * INERTIA * twin.control_hz
        assert slowed == pytest.approx([2.0, 9.8], abs=0.3)

    def test_it_follows_the_supply_as_kp_does_and_not_the_position_gain_of_the_firmware(self, tmp_path):
        drives = (("voltage", 12.0), ("firmware_gain", 16.0))
        rows = [{"name": f"actuator/*/{name}", "nominal": value, "source": "test"} for name, value in drives]
        twin = actuator_twin(tmp_path, SERVO, params=rows)
        values = {"actuator/j0/voltage": [6.0, 12.0], "actuator/j0/firmware_gain": [16.0, 32.0]}
        written = twin.fields(twin.table(2, values)).arrays
        np.testing.assert_allclose(written["actuator_biasprm"][:, 0, :3], [[0, -5, -0.25], [0, -20, -0.5]])
        np.testing.assert_allclose(written["actuator_gainprm"][:, 0, 0], [5, 20])
        both = twin.fields(twin.table(1, {"actuator/j0/kd": 2.0, "actuator/j0/voltage": 18.0})).arrays
        np.testing.assert_allclose(both["actuator_biasprm"][0, 0, :3], [0, -15, -3])
        pid = actuator_twin(tmp_path, PID, params=rows)
        firm = pid.fields(pid.table(1, {"actuator/j0/firmware_gain": 32.0})).arrays
        np.testing.assert_allclose(firm["actuator_biasprm"][0, 0, :3], [0, -20, -0.5])
        assert firm["actuator_gainprm"][0, 0, 0] == 4.0  # the integral gain


class TestOtherGains:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_velocity_servo_reaches_its_speed_along_the_exponential(self, twins, backend):
        twin, kv = twins["velocity"], np.array([0.5, 2.0, 4.0])
        table = twin.table(3, {"actuator/j0/kv": kv})
        motion = run(twin, table, np.full((3, 100, 1), 1.5), backend=backend, initial=at(twin, 3, command=1.5))
        exact = 1.5 * (1 - np.exp(-kv[:, None] / INERTIA * times(twin, motion)))
        np.testing.assert_allclose(motion.qvel[:, :, 0], exact, atol=0.01)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_gain_is_torque_per_command(self, twins, backend):
        twin, gain = twins["motor"], np.array([0.5, 1.0, 3.0])
        table = twin.table(3, {"actuator/j0/gain": gain})
        motion = run(twin, table, np.full((3, 40, 1), 0.2), backend=backend, initial=at(twin, 3, command=0.2))
        exact = gain[:, None] * 0.2 / INERTIA * times(twin, motion)
        np.testing.assert_allclose(motion.qvel[:, :, 0], exact, rtol=1e-5, atol=1e-7)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_filter_delays_the_torque_by_its_time_constant(self, twins, backend):
        twin, tau = twins["filter"], np.array([0.02, 0.1, 0.4])
        table = twin.table(3, {"actuator/j0/time_constant": tau})
        motion = run(twin, table, np.full((3, 100, 1), 0.2), backend=backend)
        t = times(twin, motion)
        exact = 0.2 / INERTIA * (t - tau[:, None] * (1 - np.exp(-t / tau[:, None])))
        np.testing.assert_allclose(motion.qvel[:, :, 0], exact, atol=2e-3)

    def test_the_integral_of_a_pid_controller_grows_to_its_limit_and_its_setpoint_at_its_speed(self, twins):
        """A joint too heavy to move far: force = kp min(slew t, u) + ki min(∫ min(slew t, u) dt, limit)."""
        twin = twins["pid"]
        values = {"joint/j0/armature": 100.0, "actuator/j0/ki": [0.2, 0.8], "actuator/j0/slew_limit": [0.5, 1.0]}
        table = twin.table(2, {**values, "actuator/j0/integral_limit": [0.05, 0.1], "actuator/j0/kp": [1.0, 2.0]})
        motion = run(twin, table, np.full((2, 160, 1), 0.2), record=("actuator_force",))
        t = times(twin, motion)
        slew = np.array([0.5, 1.0])[:, None]
        setpoint, reached = np.minimum(slew * t, 0.2), 0.2 / slew
        area = np.where(t < reached, slew * t**2 / 2, 0.1 * reached + 0.2 * (t - reached))
        exact = [[1.0], [2.0]] * setpoint + [[0.2], [0.8]] * np.minimum(area, [[0.05], [0.1]])
        np.testing.assert_allclose(motion.records["actuator_force"][:, 1:, 0], exact[:, 1:], atol=0.01)

    def test_the_backend_without_pid_controllers_refuses_them(self, twins):
        pytest.importorskip("mujoco_warp", reason="mujoco-warp is not installed")
        pytest.importorskip("torch", reason="torch is not installed")
        with pytest.raises(InputError, match="mujoco_warp cannot simulate the model of hinge.*backend threads"):
            run(twins["pid"], twins["pid"].table(1), np.zeros((1, 1, 1)), backend="warp:cpu")

    @pytest.mark.parametrize("name", EACH)
    @settings(max_examples=5, deadline=None)
    @given(factors=st.lists(st.floats(0.3, 3.0), min_size=10, max_size=10))
    def test_threads_equal_the_reference_bit_for_bit(self, twins, name, factors):
        twin = twins[name]
        gains = [f"actuator/j0/{quantity}" for quantity in sorted(own(twin))]
        values = {key: twin.params[key].nominal * np.array(factors[i : i + 3]) for i, key in enumerate(gains)}
        commands = 0.3 * np.sin(np.arange(25) / 3)[None, :, None] * np.ones((3, 1, 1))
        start = at(twin, 3, position=0.2, command=0.2)
        runs = [run(twin, twin.table(3, values), commands, backend=b, initial=start) for b in ("reference", "threads")]
        np.testing.assert_array_equal(runs[0].states, runs[1].states)


class TestStart:
    """A world starts as if its actuators had held the command before for long."""

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize(
        ("actuator", "control", "command"),
        [
            (SERVO.replace("/>", ' timeconst="0.5"/>'), "position", 0.7),
            (INTEGRATED, "velocity", 0.0),
            (PID, "position", 0.7),
        ],
    )
    def test_a_joint_that_is_held_stays(self, tmp_path, backend, actuator, control, command):
        if backend == "warp:cpu" and "pid" in actuator:
            pytest.skip("mujoco_warp has no pid actuators")
        twin = actuator_twin(tmp_path, actuator, control=control)
        table, start = twin.table(2), at(twin, 2, position=0.7, command=command)
        simulation = open_backend(backend).start(twin, table, start, 60)
        command = _tensor(start.command) if backend == "warp:cpu" else start.command
        for step in range(60):
            if step == 30:
                simulation.restart([1], table.take([1]), start.take([1]))
            simulation.advance(command)
        np.testing.assert_allclose(np.asarray(simulation.qpos), 0.7, atol=1e-6)

    def test_encoder_errors_move_the_held_target(self, tmp_path):
        twin = actuator_twin(tmp_path, SERVO.replace("/>", ' timeconst="0.5"/>'))
        start = at(twin, 1, position=1.1, command=0.5)
        table = twin.table(1, {"sensor/j0/offset": 0.6})
        np.testing.assert_allclose(run(twin, table, np.full((1, 40, 1), 0.5), initial=start).qpos, 1.1, atol=1e-9)

    def test_a_recorded_state_keeps_its_activations(self, twins):
        twin = twins["filter"]
        commands = np.full((1, 40, 1), 0.2)
        whole = run(twin, twin.table(1), commands)
        start = initial_from_state(twin, whole.states[:, 15], commands[:, 0])
        np.testing.assert_allclose(run(twin, twin.table(1), commands[:, 15:], initial=start).qpos, whole.qpos[:, 15:])


def _tensor(values):
    import torch

    return torch.as_tensor(np.array(values))


def test_a_velocity_command_is_scaled_by_the_encoder_and_not_shifted(twins):
    twin = twins["velocity"]
    values = {"sensor/j0/offset": 0.3, "sensor/j0/scale": 1.2, "actuator/j0/kv": 1e4}
    motion = run(twin, twin.table(1, values), np.full((1, 40, 1), 0.5))
    assert motion.qvel[0, -1, 0] == pytest.approx(0.6, rel=1e-4)


def test_gains_change_at_every_step(twins):
    twin = twins["servo"]
    steps = {"actuator/j0/kd": np.linspace(0.0, 3.0, 20)[None]}
    table = twin.table(1)
    table = ParamTable(names=table.names, values=table.values, steps=steps)
    runs = [
        run(twin, table, np.full((1, 20, 1), 0.3), backend=backend, initial=at(twin, 1, speed=2.0))
        for backend in ("reference", "threads")
    ]
    np.testing.assert_array_equal(runs[0].states, runs[1].states)
    plain = run(twin, twin.table(1), np.full((1, 20, 1), 0.3), initial=at(twin, 1, speed=2.0))
    assert np.abs(runs[0].qpos - plain.qpos).max() > 1e-3
