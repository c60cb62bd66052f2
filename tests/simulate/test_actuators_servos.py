"""Presets: the simulated shaft of a servo agrees with its numbers, the makers' data and measurements."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from support.one_joint import INERTIA, joints_twin, run
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.twin import load_twin
from twinloop.twin.servos import servo_presets

SERVOS = sorted(name for name, servo in servo_presets().items() if servo.control == "position")
MOTORS = sorted(name for name, servo in servo_presets().items() if servo.control == "torque")
VOLTAGE_LAW = sorted(name for name in SERVOS if "half" not in name)
FULL_DUTY = {"sts3215_7v4": 0.97, "sts3215_12v": 0.97, "xl330": 1.0}
FOLDER = Path(str(resources.files("twinloop.twin"))) / "builtin"


@pytest.mark.parametrize("name", VOLTAGE_LAW)
class TestNumbers:
    def test_damping_is_back_emf_and_viscous_friction(self, name):
        servo = servo_presets()[name]
        back_emf = servo.kt.value**2 / servo.resistance.value
        assert servo.damping.value == pytest.approx(back_emf + servo.viscous.value, rel=5e-3)

    def test_the_torque_limit_is_full_duty(self, name):
        servo = servo_presets()[name]
        stall = servo.kt.value * servo.voltage.value / servo.resistance.value
        assert servo.torque_limit.value == pytest.approx(FULL_DUTY[name] * stall, rel=5e-3)

    def test_the_published_speed_without_load_is_about_the_laws(self, name):
        servo = servo_presets()[name]
        law = (servo.torque_limit.value - servo.frictionloss.value) / servo.damping.value
        assert law == pytest.approx(servo.no_load_speed.value, rel=0.07)

    def test_the_gain_is_the_firmwares_duty_per_error(self, name):
        servo = servo_presets()[name]
        duty_per_rad = {"xl330": 4096 / (2 * np.pi) * 400 / 256 / 885}.get(name, 0.166 * 16)
        torque_per_duty = servo.kt.value * servo.voltage.value / servo.resistance.value
        assert servo.kp.value == pytest.approx(duty_per_rad * torque_per_duty, rel=5e-3)


@pytest.mark.parametrize("name", sorted(servo_presets()))
def test_every_number_says_where_it_is_from(name):
    servo = servo_presets()[name]
    numbers = {key: getattr(servo, key) for key in type(servo).model_fields if hasattr(getattr(servo, key), "source")}
    assert {"torque_limit", "damping", "frictionloss", "armature"} <= set(numbers)
    assert all(len(number.source) > 10 and number.value >= 0 for number in numbers.values())


def at_full_duty(twin, seconds, armature=None, record=()):
    values = {} if armature is None else {"joint/j0/armature": armature}
    commands = np.full((1, round(seconds * twin.control_hz), 1), 1e3)
    return run(twin, twin.table(1, values), commands, record=record)


@pytest.mark.parametrize("name", sorted(servo_presets()))
class TestShaft:
    """In simulation, from the shaft's motion alone."""

    @pytest.fixture
    def twin(self, name, tmp_path):
        return joints_twin(tmp_path, robot={"servo": name, "control": servo_presets()[name].control})

    def test_stall_torque(self, name, twin):
        servo, heavy = servo_presets()[name], 90.0
        speed = at_full_duty(twin, 0.1, armature=heavy).qvel[0, :, 0]
        torque = (speed[-1] - speed[1]) / 0.09 * (heavy + INERTIA)
        assert torque == pytest.approx(servo.torque_limit.value - servo.frictionloss.value, rel=2e-3)

    def test_speed_without_load(self, name, twin):
        servo = servo_presets()[name]
        seconds = 12 * (servo.armature.value + INERTIA) / servo.damping.value
        speed = at_full_duty(twin, seconds).qvel[0, -1, 0]
        law = (servo.torque_limit.value - servo.frictionloss.value) / servo.damping.value
        assert speed == pytest.approx(law, rel=1e-3)

    def test_the_answer_to_a_step_is_the_motor_equations(self, name, twin):
        """I dw/dt = limit − friction − damping w from rest: w = w0 (1 − exp(−t damping / I))."""
        servo = servo_presets()[name]
        inertia = servo.armature.value + INERTIA
        run_ = at_full_duty(twin, 3 * inertia / servo.damping.value)
        seconds = np.arange(run_.qvel.shape[1]) / twin.control_hz
        final = (servo.torque_limit.value - servo.frictionloss.value) / servo.damping.value
        exact = final * (1 - np.exp(-seconds * servo.damping.value / inertia))
        np.testing.assert_allclose(run_.qvel[0, :, 0], exact, atol=0.02 * final)


class TestInTwins:
    def test_the_so101s_own_numbers_are_the_presets(self, tmp_path):
        """Naming the servo changes no value of the MJCF."""
        named = load_twin("so101_tabletop")
        text = (FOLDER / "so101_tabletop.yaml").read_text()
        kept = [line for line in text.splitlines() if not line.startswith("  servo:") and "/voltage" not in line]
        (tmp_path / "plain.yaml").write_text("\n".join(kept))
        (tmp_path / "so101_tabletop.xml").write_text((FOLDER / "so101_tabletop.xml").read_text())
        plain = load_twin(tmp_path / "plain.yaml")
        fields = ("actuator_gainprm", "actuator_biasprm", "actuator_forcerange", "actuator_ctrlrange", "dof_damping")
        for field in (*fields, "dof_frictionloss", "dof_armature"):
            np.testing.assert_array_equal(getattr(named.model, field), getattr(plain.model, field), err_msg=field)
        commands = named.home()[1] + 0.3 * np.sin(np.arange(10))[None, :, None] * np.ones((1, 1, 6))
        ends = [
            rollout(open_backend(), twin, twin.table(1), InitialState.home(twin, 1), commands, 10).states[0, -1]
            for twin in (named, plain)
        ]
        np.testing.assert_array_equal(*ends)

    def test_a_urdf_without_efforts_is_driven_by_a_preset(self, tmp_path):
        (tmp_path / "arm.urdf").write_text(URDF)
        (tmp_path / "arm.yaml").write_text(
            "schema: 1\nname: arm\nmodel: arm.urdf\ncontrol_hz: 50\nsubsteps: 10\n"
            "robot: {type: arm, joints: [a, b], units: [rad, rad], servo: {a: sts3215_12v, b: xl330}}\n"
            "params: [{name: 'actuator/*/voltage', source: test}]\n"
        )
        twin = load_twin(tmp_path / "arm.yaml")
        assert {name: param.nominal for name, param in twin.params.items()} == {
            "actuator/a/voltage": 12.0,
            "actuator/b/voltage": 5.0,
        }
        commands = np.full((1, 100, 2), 0.4)
        end = rollout(open_backend(), twin, twin.table(1), InitialState.home(twin, 1), commands, 100).qpos[0, -1]
        np.testing.assert_allclose(end, 0.4, atol=0.02)  # less dry friction over kp
        np.testing.assert_allclose(twin.model.actuator_forcerange, [[-3.33, 3.33], [-0.481, 0.481]])

    def test_what_does_not_fit_is_named(self, tmp_path):
        with pytest.raises(UnknownNameError, match=r"Unknown servo 'sts3215' in .*Nearest existing: sts3215_"):
            joints_twin(tmp_path, robot={"servo": "sts3215"})
        with pytest.raises(UnknownNameError, match=r"Unknown joint 'elbow' in .*robot.servo"):
            joints_twin(tmp_path, robot={"servo": {"elbow": "xl330"}})
        with pytest.raises(InputError, match="torque_controlled_12nm takes torque commands, robot.control is position"):
            joints_twin(tmp_path, robot={"servo": "torque_controlled_12nm"})

    def test_a_voltage_without_a_nominal_is_asked_for(self, tmp_path):
        text = (FOLDER / "double_pendulum.yaml").read_text()
        (tmp_path / "double_pendulum.xml").write_text((FOLDER / "double_pendulum.xml").read_text())
        (tmp_path / "p.yaml").write_text(text + '\n  - {name: "actuator/shoulder/voltage", source: test}\n')
        with pytest.raises(InputError, match=r"shoulder lacks that quantity: .* Name a servo preset"):
            load_twin(tmp_path / "p.yaml")


URDF = """<robot name="arm"><link name="base"/>
<link name="l1"><inertial><mass value="0.1"/>
<inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="l2"><inertial><mass value="0.1"/>
<inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="a" type="continuous"><parent link="base"/><child link="l1"/><axis xyz="0 0 1"/></joint>
<joint name="b" type="continuous"><parent link="l1"/><child link="l2"/><axis xyz="0 0 1"/></joint></robot>"""
