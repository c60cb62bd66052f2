"""A URDF works in place of a built-in twin: servos from its effort limits, a log replayed and identified."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from twinloop.checks import run_checks
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.gap import measure_gap
from twinloop.hardware.limits import motion_limits
from twinloop.identify import FitConfig, HoldoutSpec, identify
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import load_twin
from twinloop.twin.servos import FULL_EFFORT_ERROR, FULL_EFFORT_SPEED_ERROR, MIN_STEPS

LINK = (
    '<link name="{}"><inertial><origin xyz="0.1 0 0"/><mass value="{}"/>'
    '<inertia ixx="{inertia}" iyy="{inertia}" izz="{inertia}" ixy="0" ixz="0" iyz="0"/></inertial></link>'
)


def urdf(*, effort=3.0, inertia=0.02, more=""):
    limit = f'<limit lower="-1.5" upper="1.2" effort="{effort}" velocity="4"/>'
    return (
        f'<robot name="arm"><link name="base"/>{LINK.format("upper", 0.3, inertia=inertia)}'
        '<joint name="elbow" type="revolute"><parent link="base"/><child link="upper"/><axis xyz="0 1 0"/>'
        f'{limit}<dynamics damping="0.3" friction="0.05"/></joint>{more}</robot>'
    )


@pytest.fixture
def arm(tmp_path):
    path = tmp_path / "arm.urdf"
    path.write_text(urdf())
    return path


def test_a_joint_with_an_effort_limit_gets_a_servo_of_its_name_and_strength(arm):
    twin = load_twin(arm)
    model = twin.model
    assert twin.robot.joints == twin.robot.actuator_names == ["elbow"]
    assert twin.params["actuator/elbow/kp"].nominal == pytest.approx(3.0 / FULL_EFFORT_ERROR)
    assert twin.params["actuator/elbow/torque_limit"].nominal == 3.0
    np.testing.assert_array_equal(model.actuator_ctrlrange, [[-1.5, 1.2]])
    assert not model.jnt_actfrclimited.any()  # else a raised torque limit would change nothing


def test_the_servo_goes_where_it_is_told_and_no_further_than_its_strength(arm):
    twin = load_twin(arm)
    commands = np.full((1, 100, 1), 0.5)
    run = rollout(open_backend(), twin, twin.table(1), InitialState.home(twin, 1), commands, 100)
    sag = 0.3 * 9.81 * 0.1 * np.cos(0.5) / (3.0 / FULL_EFFORT_ERROR)
    assert run.qpos[0, -1, 0] == pytest.approx(0.5, abs=sag + 0.05 / 30 + 1e-3)
    assert run.qpos[0, :, 0].max() < 0.5 + sag + 0.05 / 30 + 1e-3  # critically damped


def test_a_feather_with_a_strong_motor_stays_stable(tmp_path):
    path = tmp_path / "light.urdf"
    path.write_text(urdf(effort=100.0, inertia=1e-5).replace('mass value="0.3"', 'mass value="0.001"'))
    twin = load_twin(path)
    inertia = 1e-5 + 0.001 * 0.1**2
    assert twin.params["actuator/elbow/kp"].nominal == pytest.approx(inertia / (MIN_STEPS * 0.002) ** 2)
    report = run_checks(twin)
    assert report.passed, report.text()


def test_joints_without_an_effort_limit_have_no_servo(tmp_path):
    path = tmp_path / "arm.urdf"
    free = LINK.format("tip", 0.1, inertia=0.01) + (
        '<joint name="roll" type="continuous"><parent link="upper"/><child link="tip"/>'
        '<origin xyz="0.2 0 0"/><axis xyz="1 0 0"/></joint>'
    )
    path.write_text(urdf(more=free))
    assert load_twin(path).robot.joints == ["elbow"]
    path.write_text(urdf(effort=0.0))
    with pytest.raises(InputError, match="has no robot.*effort limits to a URDF's joints"):
        _ = load_twin(path).robot


@pytest.mark.parametrize("control", ["position", "velocity", "torque"])
def test_a_yaml_may_name_a_urdf(arm, control):
    path = arm.with_suffix(".yaml")
    path.write_text(
        "name: mine\nmodel: arm.urdf\ncontrol_hz: 25\nsubsteps: 10\n"
        f"robot: {{type: arm, joints: [elbow], units: [deg], control: {control}}}\n"
        'params: [{name: "actuator/*/kp", source: test}, {name: "actuator/*/torque_limit", source: test}]\n'
    )
    twin = load_twin(path)
    assert twin.dt == pytest.approx(0.004)
    assert ("actuator/elbow/kp" in twin.params) is (control == "position")
    assert twin.model.actuator_biastype[0] == (
        mujoco.mjtBias.mjBIAS_NONE if control == "torque" else mujoco.mjtBias.mjBIAS_AFFINE
    )
    if control == "velocity":
        kv = 3.0 / FULL_EFFORT_SPEED_ERROR
        assert twin.model.actuator_gainprm[0, 0] == -twin.model.actuator_biasprm[0, 2] == kv
        assert motion_limits(twin).high == np.inf  # the model has no range of velocities


@pytest.mark.slow
def test_planted_parameters_of_a_urdf_are_found_and_close_the_gap(arm):
    twin, backend = load_twin(arm), open_backend("threads", nthread=1)
    time = np.arange(150) / twin.control_hz
    blank = []
    for index in range(4):
        action = (0.4 * np.sin((1 + index / 2) * time) + 0.03 * np.sin(6 * time + index))[:, None]
        blank.append(Episode(index=index, time=time, action=action, state=action, units=twin.units, source="sim"))
    planted = {"actuator/elbow/kp": 22.0, "joint/elbow/damping": 0.6}
    readings = replay(backend, prepare_replay(twin, blank), twin.table(1, planted))[0]
    log = [
        Episode(index=e.index, time=e.time, action=e.action, state=readings[i], units=e.units, source="sim")
        for i, e in enumerate(blank)
    ]
    quantities = ("kp", "damping", "delay", "bias", "frictionloss", "armature")
    config = FitConfig(quantities=quantities, physics_hz=twin.control_hz * twin.substeps)
    found = identify(twin, log, holdout=HoldoutSpec.parse("last:1"), config=config, backend=backend)
    assert found.values["actuator/elbow/kp"] == pytest.approx(22.0, rel=0.005)
    assert found.values["joint/elbow/damping"] == pytest.approx(0.6, rel=0.005)
    assert "(one episode, no interval)" in found.text()
    assert "nan" not in found.text()
    before, after = (
        measure_gap(twin, log, params=values, backend=backend).best for values in (None, found.distribution)
    )
    assert after.estimate[0] < 0.05 * before.estimate[0]
    alone = measure_gap(twin, log[:1], backend=backend).text()
    assert "one episode, no interval" in alone
    assert "nan" not in alone
