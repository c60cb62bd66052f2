"""What a robot feels along an episode: closed forms of mechanics, sensors' clocks, chance that is the episode's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import yaml

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import SeedPath
from twinloop.core.records import Provenance
from twinloop.randomize import Plan, default_draws
from twinloop.rollout import run_batch
from twinloop.rollout.readings import BodySensors, reading_columns, select_sensors
from twinloop.rollout.sensing import joint_readings
from twinloop.rollout.substeps import PhysicsStepper
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.tasks import open_task
from twinloop.twin import load_twin
from twinloop.twin.servos import servo_presets

G, LENGTH, MASS = 9.81, 0.4, 0.7
PENDULUM = f"""
<mujoco><option integrator="RK4"/><worldbody><body name="rod" pos="0 0 1">
  <joint name="hinge" axis="0 1 0"/>
  <geom type="sphere" size="0.001" pos="0 0 -{LENGTH}" mass="{MASS}" contype="0" conaffinity="0"/>
  <site name="bob" pos="0 0 -{LENGTH}"/><site name="pivot"/>
</body></worldbody></mujoco>"""
STACK = """
<mujoco><option integrator="implicitfast"/><worldbody><body name="arm" pos="0 0 1"><geom size="0.05" mass="0.5"/>
  <body name="tool" pos="0.2 0 0"><geom size="0.03" mass="0.8" pos="0.1 0 0"/>
    <site name="wrist" euler="0 90 0"/><site name="flat"/>
  </body></body>
  <body name="rotor"><joint name="spin" axis="0 0 1" solimpfriction="0.9999 0.9999 0.001"
  solreffriction="0.004 1"/><geom size="0.1" mass="1" contype="0" conaffinity="0"/></body>
</worldbody><actuator><motor name="spin" joint="spin"/></actuator></mujoco>"""


def make(folder, xml, sensors, *, control_hz=50, substeps=20, **more):
    """A twin of a model with these sensors, its parameters those of the sensors."""
    (folder / "model.xml").write_text(xml)
    spec = {"name": "felt", "model": "model.xml", "control_hz": control_hz, "substeps": substeps, "sensors": sensors}
    (folder / "twin.yaml").write_text(yaml.safe_dump({**spec, "params": [], **more}))
    return load_twin(folder / "twin.yaml")


def felt(twin, *, nstep=50, qpos=None, qvel=None, values=None, commands=None, seeds=None):
    """Readings of every sensor of one world, and its trajectory."""
    table = twin.table(1, values)
    table = table if seeds is None else table.with_seeds(seeds)
    home = InitialState.home(twin, 1)
    start = dataclasses.replace(
        home,
        qpos=home.qpos if qpos is None else np.atleast_2d(qpos),
        qvel=home.qvel if qvel is None else np.atleast_2d(qvel),
    )
    issued = np.zeros((1, nstep, twin.model.nu)) if commands is None else commands
    run = rollout(open_backend(), twin, table, start, issued, nstep)
    sensors = BodySensors(twin)
    world = PhysicsStepper(twin, table, run.states[0], issued[0], start.command[0], model=sensors.model)
    return sensors.read_world(world), run


def test_at_rest_an_accelerometer_reads_gravity_upwards(tmp_path):
    twin = make(tmp_path, STACK, {"flat": {"device": "ideal_imu"}, "wrist": {"device": "ideal_imu"}})
    readings, _ = felt(twin, nstep=5)
    np.testing.assert_allclose(readings["flat"].frames[:, 3:], np.tile([0, 0, G], (5, 1)), atol=1e-9)
    np.testing.assert_allclose(readings["wrist"].frames[:, 3:], np.tile([-G, 0, 0], (5, 1)), atol=1e-9)
    assert not readings["flat"].frames[:, :3].any()


def test_a_swinging_pendulum_feels_what_its_formula_says(tmp_path):
    """On a pendulum's bob at angle θ: rate θ̇, towards the pivot θ̇² L + g cos θ, across the rod nothing."""
    sensors = {"bob": {"device": "ideal_imu"}, "pivot": {"device": "ideal_imu"}}
    twin = make(tmp_path, PENDULUM, sensors)
    readings, run = felt(twin, qpos=[1.2], nstep=80)
    angle, speed = run.qpos[0, :-1, 0], run.qvel[0, :-1, 0]
    bob, pivot = readings["bob"].frames, readings["pivot"].frames
    np.testing.assert_allclose(bob[:, 1], speed, atol=1e-12)
    np.testing.assert_allclose(bob[:, 5], speed**2 * LENGTH + G * np.cos(angle), atol=1e-4)
    np.testing.assert_allclose(bob[:, 3], 0.0, atol=1e-3)  # falls freely across the rod
    np.testing.assert_allclose(pivot[:, 5], G * np.cos(angle), atol=1e-9)
    np.testing.assert_allclose(pivot[:, 3], -G * np.sin(angle), atol=1e-9)
    assert np.ptp(speed) > 5


def test_a_force_sensor_at_rest_reads_the_weight_of_what_hangs_beyond(tmp_path):
    twin = make(tmp_path, STACK, {"flat": {"device": "ideal_force_torque"}, "wrist": {"device": "ideal_force_torque"}})
    readings, _ = felt(twin, nstep=4)
    weight = 0.8 * G
    np.testing.assert_allclose(readings["flat"].frames[2], [0, 0, -weight, 0, 0.1 * weight, 0], atol=1e-9)
    np.testing.assert_allclose(readings["wrist"].frames[2], [weight, 0, 0, 0, 0.1 * weight, 0], atol=1e-9)
    names = ["force.x", "force.y", "force.z", "torque.x", "torque.y", "torque.z"]
    assert list(reading_columns(twin, "flat")) == names


def test_a_pulling_pendulum_loads_its_pivot_by_its_centripetal_force(tmp_path):
    xml = PENDULUM.replace('<joint name="hinge"', '<site name="root"/><joint name="hinge"')
    twin = make(tmp_path, xml, {"root": {"device": "ideal_force_torque"}})
    readings, run = felt(twin, qpos=[0.9], nstep=40)
    angle, speed = run.qpos[0, :-1, 0], run.qvel[0, :-1, 0]
    tension = MASS * (speed**2 * LENGTH + G * np.cos(angle))
    np.testing.assert_allclose(readings["root"].frames[:, 2], -tension, atol=1e-3)


def servo_twin(folder, **sensors):
    robot = {"type": "one", "joints": ["spin"], "units": ["rad"], "servo": "sts3215_7v4"}
    sensors = sensors or {"servos": {"device": "ideal_servo"}}
    params = [
        {"name": name, "source": "test"}
        for name in ("actuator/*/voltage", "actuator/*/thermal_resistance", "joint/*/frictionloss")
    ]
    xml = STACK.replace('<actuator><motor name="spin" joint="spin"/></actuator>', "")
    return make(folder, xml, sensors, robot=robot, params=params)


def test_a_stalled_servo_takes_the_voltage_over_the_resistance_and_warms(tmp_path):
    twin, preset = servo_twin(tmp_path), servo_presets()["sts3215_7v4"]
    motor, held = preset.motor, {"joint/spin/frictionloss": 50.0}  # nothing moves it
    assert motor is not None
    command = np.full((1, 30, 1), 3.0)
    readings, _ = felt(twin, nstep=30, commands=command, values=held)
    said = dict(zip(reading_columns(twin, "servos"), readings["servos"].frames[-1], strict=True))
    assert said["spin.load"] == pytest.approx(0.97, rel=1e-2)  # full duty, as the preset's torque limit has it
    assert said["spin.current"] == pytest.approx(said["spin.load"] * motor.voltage / motor.resistance, rel=1e-3)
    assert said["spin.voltage"] == 7.4
    assert (said["spin.velocity"], said["spin.temperature"]) == (pytest.approx(0.0, abs=1e-3), 20.0)
    warm, _ = felt(twin, nstep=30, commands=command, values=held | {"actuator/spin/thermal_resistance": 5.9})
    rise = warm["servos"].frames[-1, 4] - 20.0
    heat = 5.9 * said["spin.current"] ** 2 * motor.resistance
    assert rise == pytest.approx(heat * (1 - np.exp(-(29 / 50) / 200.0)), rel=0.02)


def test_a_turning_servo_reports_its_speed_and_the_circuits_current(tmp_path):
    twin, motor = servo_twin(tmp_path), servo_presets()["sts3215_7v4"].motor
    assert motor is not None
    readings, run = felt(twin, nstep=20, commands=np.full((1, 20, 1), 2.0))
    speed, current, load = readings["servos"].frames[:, :3].T
    np.testing.assert_array_equal(speed, run.qvel[0, :-1, 0])
    expected = (load * motor.voltage - motor.kt * speed) / motor.resistance
    np.testing.assert_allclose(current, expected, atol=1e-9)
    assert speed.max() > 3


def test_a_reading_is_as_old_as_its_delay_says_and_never_newer(tmp_path):
    """The pivot's rate is a known function of time; each frame shows its value one delay and one sample earlier."""
    twin = make(tmp_path, PENDULUM, {"bob": {"device": "ideal_imu"}})
    values = {"sensor/bob/rate": 130.0, "sensor/bob/phase": 0.4, "sensor/bob/delay": 0.031}
    readings, run = felt(twin, qpos=[1.0], nstep=60, values=values)
    reading, frames = readings["bob"], run.time[0, :-1]
    np.testing.assert_allclose(np.diff(reading.time), 1 / 130.0)
    np.testing.assert_allclose(reading.delivered - reading.time, 0.031)
    fine, _ = felt(twin, qpos=[1.0], nstep=60, values={"sensor/bob/rate": 1000.0})
    truth = np.interp(reading.time, fine["bob"].time, fine["bob"].values[:, 1])
    np.testing.assert_allclose(reading.values[:, 1], truth, atol=1e-3)
    for time, row in zip(frames[5:], reading.frames[5:], strict=True):
        newest = np.flatnonzero(reading.delivered <= time + 1e-9)[-1]
        np.testing.assert_array_equal(row, reading.values[newest])


def test_the_bandwidth_shows_as_a_lag(tmp_path):
    twin = make(tmp_path, PENDULUM, {"bob": {"device": "ideal_imu"}})
    slow, run = felt(twin, qpos=[0.05], nstep=150, values={"sensor/bob/bandwidth": 2.0})
    time, frequency = run.time[0, :-1], np.sqrt(G / LENGTH) / (2 * np.pi)
    late = time > 1.0
    waves = np.stack([np.sin(2 * np.pi * frequency * time), np.cos(2 * np.pi * frequency * time)], axis=1)
    rows = [np.linalg.lstsq(waves[late], signal[late], rcond=None)[0] for signal in (run.qvel[0, :-1, 0],)]
    rows += [np.linalg.lstsq(waves[late], slow["bob"].frames[late, 1], rcond=None)[0]]
    phase = np.diff([np.arctan2(row[1], row[0]) for row in rows])[0]
    assert np.angle(np.exp(1j * phase)) == pytest.approx(-np.arctan(frequency / 2.0), abs=0.02)
    ratio = np.hypot(*rows[1]) / np.hypot(*rows[0])
    assert ratio == pytest.approx(1 / np.hypot(1, frequency / 2.0), rel=0.02)


def test_chance_belongs_to_the_episode_and_the_sample(tmp_path):
    twin = make(tmp_path, PENDULUM, {"bob": {"device": "bmi055"}})
    one, _ = felt(twin, seeds=SeedPath.of(3, [7]))
    again, _ = felt(twin, seeds=SeedPath.of(3, [7]))
    other, _ = felt(twin, seeds=SeedPath.of(3, [8]))
    shorter, _ = felt(twin, nstep=20, seeds=SeedPath.of(3, [7]))
    np.testing.assert_array_equal(one["bob"].values, again["bob"].values)
    assert not np.array_equal(one["bob"].values, other["bob"].values)
    np.testing.assert_array_equal(one["bob"].values[: len(shorter["bob"].values)], shorter["bob"].values)
    with pytest.raises(InputError, match="Noise of sensor/bob happens by chance, but this parameter table has no seed"):
        felt(twin)


@pytest.mark.parametrize("rate", [0.0, 150.0, 50.0])
def test_no_reading_knows_the_command_that_is_due(tmp_path, rate):
    """A command changes the forces at once, but not the reading at the time of the command."""
    twin = servo_twin(tmp_path, servos={"device": "ideal_servo"}, wrist={"device": "ideal_imu"})
    values = {f"sensor/{name}/rate": rate for name in ("servos", "wrist")}
    one, other = np.full((2, 1, 12, 1), 0.4)
    other[:, 7:] = -1.5
    first, second = (felt(twin, nstep=12, commands=commands, values=values)[0]["servos"] for commands in (one, other))
    np.testing.assert_array_equal(first.frames[:8], second.frames[:8])
    assert np.abs(first.frames[8] - second.frames[8]).max() > 0.1
    assert np.abs(first.frames[1] - first.frames[0]).max() > 0.1  # the first command is not known at time 0 either
    assert not first.frames[0, :3].any()


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    """The SO-101 with everything that it can feel, in randomized worlds."""
    folder = tmp_path_factory.mktemp("robot")
    sensors = {
        "wrist_imu": {"device": "d435i_imu", "site": "tcp"},
        "wrist_force": {"device": "robotiq_ft300", "site": "tcp"},
        "servos": {"device": "sts3215_feedback"},
    }
    base = {"base": "so101_tabletop", "name": "so101_felt", "sensors": sensors}
    (folder / "felt.yaml").write_text(yaml.safe_dump(base, sort_keys=False))
    twin = load_twin(folder / "felt.yaml")
    task = open_task("pick_and_place", twin)
    task.nstep = 20
    plan = Plan(twin=twin, run_seed=2, draws=tuple(default_draws(twin)))
    return twin, run_batch(twin, task, plan.draw([4, 5], nstep=20), run_seed=2, episodes=[4, 5])


def test_a_stored_episode_gives_the_same_readings_again(robot):
    twin, made = robot
    episode = made.episode(1)
    stored = dataclasses.replace(episode, provenance=Provenance.from_json(episode.provenance.to_json()))
    first, second = BodySensors(twin).read(episode), BodySensors(twin).read(stored)
    assert list(first) == ["wrist_imu", "wrist_force", "servos"]
    for name, reading in first.items():
        np.testing.assert_array_equal(reading.values, second[name].values)
        assert reading.frames.shape == (20, len(reading_columns(twin, name)))
        assert np.isfinite(reading.values).all()
    alone = BodySensors(twin, ["servos"]).read(episode)
    np.testing.assert_array_equal(alone["servos"].frames, first["servos"].frames)


def test_sensors_in_a_twin_change_nothing_of_its_motion(robot):
    _, made = robot
    plain = load_twin("so101_tabletop")
    table = plain.table(2, {name: made.params[name] for name in plain.params}).with_seeds(made.params.seeds)
    run = rollout(open_backend(), plain, table, made.initial, made.trajectories.commands, 20)
    np.testing.assert_array_equal(run.states, made.trajectories.states)


def test_what_cannot_be_read_says_why(robot, tmp_path):
    twin, made = robot
    with pytest.raises(UnknownNameError, match="Unknown sensor 'wrist_imo'"):
        BodySensors(twin, ["wrist_imo"])
    camera = tmp_path / "camera.yaml"
    camera.write_text("base: so101_tabletop\nname: x\nsensors: {front: {device: uvc_webcam}}\n")
    with pytest.raises(InputError, match="The sensor front of x is a camera, which gives no numeric readings"):
        select_sensors(load_twin(camera), ["front"])
    assert select_sensors(load_twin(camera), "all") == ()
    panda = tmp_path / "panda.yaml"
    panda.write_text("base: panda_tabletop\nname: y\nsensors: {motors: {device: ideal_servo}}\n")
    with pytest.raises(InputError, match="reports currents, but the motor constants of some joints are unknown"):
        select_sensors(load_twin(panda), "all")
    steps = {"sensor/wrist_imu/gyro_bias_x": np.zeros((1, 20))}
    table = made.params.take([0]).with_steps(steps)
    sensors = BodySensors(twin)
    world = PhysicsStepper(
        twin, table, made.trajectories.states[0], made.trajectories.commands[0], np.zeros(6), model=sensors.model
    )
    with pytest.raises(InputError, match="changes at every control step, but the sensor samples between them"):
        sensors.read_world(world)


@pytest.mark.parametrize(("side", "moves"), [("motor", False), ("link", True)])
def test_an_encoder_before_the_gear_does_not_see_the_play(tmp_path, side, moves):
    joints = load_twin("so101_tabletop").robot.joints
    gears = {"feedback": side, "backlash": 0.02}
    robot = {"type": "x", "joints": joints, "units": ["rad"] * 6, "servo": "sts3215_7v4", "gears": gears}
    (tmp_path / "twin.yaml").write_text(yaml.safe_dump({"base": "so101_tabletop", "name": "z", "robot": robot}))
    twin = load_twin(tmp_path / "twin.yaml")
    home = InitialState.home(twin, 2).qpos.copy()
    home[1, twin.joint_qpos[1]] += 0.01  # within the backlash: the motor is at rest
    said = joint_readings(twin, twin.table(2), home[:, None])[:, 0]
    assert bool(said[1, 1] - said[0, 1] > 0.009) == moves
    np.testing.assert_array_equal(np.delete(said[1], 1), np.delete(said[0], 1))
