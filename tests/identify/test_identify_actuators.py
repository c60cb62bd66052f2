"""Gains of servos and motors come back from logs: velocity gain, velocity servo, torque per command."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.one_joint import actuator_twin
from twinloop.core.errors import LogError
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.seeds import generator
from twinloop.identify import FitConfig, identify
from twinloop.identify.assembly import select_free_parameters
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay

SERVO = '<position name="j0" joint="j0" kp="20" kv="1" forcerange="-4 4"/>'
VELOCITY = '<velocity name="j0" joint="j0" kv="2"/>'
MOTOR = '<general name="j0" joint="j0" gaintype="fixed" biastype="none" gainprm="2"/>'
RATE = {"control_hz": 50, "substeps": 20, "gravity": 9.81}
BACKEND = open_backend("threads", nthread=2)


def episodes(twin, command, truth, *, kind=None, count=2):
    """Logs of a twin with planted parameters; ``command`` gives the commands in log units at the times."""
    time = np.arange(120) / twin.control_hz
    kind = kind or twin.robot.control
    blank = []
    for index in range(count):
        action = np.asarray(command(time + 0.37 * index))[:, None]
        blank.append(
            Episode(
                index=index,
                time=time,
                action=action,
                state=np.zeros_like(action),
                units=twin.units,
                command=kind,
                source="sim",
            )
        )
    readings = replay(BACKEND, prepare_replay(twin, blank), twin.table(1, truth))[0]
    readings += 1e-4 * generator(0, "test/actuators").normal(size=readings.shape)
    return [replace(episode, state=readings[i]) for i, episode in enumerate(blank)]


def test_the_velocity_gain_is_free_where_the_model_has_one(tmp_path):
    names = select_free_parameters(actuator_twin(tmp_path, SERVO)).names
    assert names[:3] == ("actuator/j0/kp", "actuator/j0/kd", "actuator/j0/torque_limit")
    bare = actuator_twin(tmp_path, SERVO.replace('kv="1"', ""))
    assert "actuator/j0/kd" not in select_free_parameters(bare).names


def test_a_planted_velocity_gain_comes_back_beside_joint_damping(tmp_path):
    """Where the servo saturates, its velocity gain brakes no more, and joint damping does."""
    twin = actuator_twin(tmp_path, SERVO, **RATE)
    truth = {"actuator/j0/kd": 1.8, "actuator/j0/kp": 26.0, "joint/j0/damping": 0.25}
    log = episodes(twin, lambda t: 1.2 * np.sign(np.sin(3.5 * t)) + 0.2 * np.sin(11 * t), truth)
    found = identify(twin, log, backend=BACKEND, config=FitConfig(quantities=("kp", "kd", "damping"))).values
    for name, value in truth.items():
        assert found[name] == pytest.approx(value, rel=0.05), name


def test_a_planted_velocity_servo_comes_back_from_a_log_in_degrees_per_second(tmp_path):
    twin = actuator_twin(tmp_path, VELOCITY, control="velocity", unit="rad", **RATE)
    names = select_free_parameters(twin).names
    assert names[0] == "actuator/j0/kv"
    assert not any(name.endswith(("/bias", "/offset", "/scale")) for name in names)
    truth = {"actuator/j0/kv": 3.1, "joint/j0/damping": 0.2, "actuator/j0/delay": 0.03}
    log = episodes(twin, lambda t: 1.5 * np.sin(4 * t) + np.sign(np.sin(2 * t)), truth)
    turned = [
        replace(
            episode,
            action=np.rad2deg(episode.action),
            state=np.rad2deg(episode.state) - 90.0,
            units=replace(
                twin.units,
                joints=(replace(twin.units.joints[0], unit="deg", scale=np.pi / 180, offset=np.pi / 2),),
            ),
        )
        for episode in log
    ]
    for given in (log, turned):
        config = FitConfig(quantities=("kv", "damping", "delay"))
        found = identify(twin, given, backend=BACKEND, config=config).values
        for name, value in truth.items():
            assert found[name] == pytest.approx(value, rel=0.02), name


def test_commands_of_another_kind_are_refused(tmp_path):
    twin = actuator_twin(tmp_path, VELOCITY, control="velocity")
    (log,) = episodes(twin, np.sin, {}, count=1)
    text = r"declares its commands as positions, but the twin hinge takes velocities. Choose .*control: position"
    with pytest.raises(LogError, match=text):
        prepare_replay(twin, [replace(log, command="position")])
    with pytest.raises(LogError, match="has no commands"):
        prepare_replay(twin, [replace(log, command="none")])
    for control, takes in (("position", "positions"), ("torque", "torques")):
        other = actuator_twin(tmp_path, SERVO, control=control)
        with pytest.raises(LogError, match=rf"as velocities, but the twin hinge takes {takes}"):
            prepare_replay(other, [log])


def test_a_planted_torque_scale_comes_back_against_the_known_weight(tmp_path):
    twin = actuator_twin(tmp_path, MOTOR, control="torque", **RATE)
    assert "actuator/j0/gain" in select_free_parameters(twin).names
    truth = {"actuator/j0/gain": 2.3, "joint/j0/damping": 0.3}
    log = episodes(twin, lambda t: 0.4 + 0.3 * np.sin(5 * t), truth)
    found = identify(twin, log, backend=BACKEND, config=FitConfig(quantities=("gain", "damping"))).values
    for name, value in truth.items():
        assert found[name] == pytest.approx(value, rel=0.02), name


def test_a_measured_torque_has_no_gain(tmp_path):
    """The motion of a measured torque in N·m at the joint is that of its command, whatever gear and gain are."""
    twin = actuator_twin(tmp_path, MOTOR.replace("/>", ' gear="3"/>'), control="torque", **RATE)
    (log,) = episodes(twin, lambda t: 0.1 + 0.1 * np.sin(5 * t), {}, count=1)
    torque = LoggedSignal(time=log.time, values=3 * 2 * log.action, columns=("j0",), unit="N·m")
    log = replace(log, signals={"joint_torque": torque})
    table = twin.table(2, {"actuator/j0/gain": [2.0, 2.6]})
    commanded = replay(BACKEND, prepare_replay(twin, [log]), table)
    measured = replay(BACKEND, prepare_replay(twin, [log], ReplayOptions(torque="measured")), table)
    np.testing.assert_allclose(measured[1], measured[0], atol=0)
    np.testing.assert_allclose(measured[0], commanded[0], atol=1e-9)
    assert np.nanmax(np.abs(commanded[1] - commanded[0])) > 0.05
