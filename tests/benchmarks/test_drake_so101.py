"""The SO-101 in Drake: planted values are found in its logs, its statics are MuJoCo's, and it can grasp."""

import dataclasses

import mujoco
import numpy as np
import pytest

from benchmarks.transfer.drake_so101 import draw_robot, record_log, run_expert
from benchmarks.transfer.drake_so101.drives import CommandLine, Drives
from benchmarks.transfer.drake_so101.hidden import DriveValues
from benchmarks.transfer.drake_so101.plant import DrakePlant
from benchmarks.transfer.drake_so101.simulation import DrakeBackend
from benchmarks.transfer.drake_so101.trials import _open_task, record_episode
from twinloop.hardware.teleop_motion import teleop_commands
from twinloop.rollout.observing import PERFECT
from twinloop.simulate import InitialState
from twinloop.simulate.protocol import Trajectories
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")
HZ, STEP = TWIN.control_hz, 1 / (TWIN.control_hz * 48)
IDEAL: dict[str, float] = {
    "noise": 0.0,
    "count": 1e-6,
    "coulomb": 0.0,
    "load_friction": 0.0,
    "dead_zone": 0.0,
    "zero": 0.0,
    "scale": 1.0,
}


def plant_values(seed=0, /, **changed):
    """Return robot ``seed`` with planted values of its drives, equal for all joints."""
    robot, size = draw_robot(TWIN, seed), len(TWIN.robot.joints)
    rows = {
        name: value if name in ("count", "command_jitter") else np.full(size, value) for name, value in changed.items()
    }
    return dataclasses.replace(robot, drives=dataclasses.replace(robot.drives, **rows))


def drive_one(values: DriveValues, command, *, inertia=0.005, begin=0.0):
    """Return readings and true positions ``(T, n)`` of free links under commands ``(T, n)``, one per time step."""
    position = np.full((1, len(values.stiffness)), begin)
    velocity, drives = np.zeros_like(position), Drives(values, position, 0 * position, STEP)
    found = []
    for row in command:
        velocity = velocity + STEP / inertia * drives.advance(row[None], position, velocity)
        position = position + STEP * velocity
        found.append((drives.encode(position)[0], position[0], drives.motor[0]))
    return (np.array(part) for part in zip(*found, strict=True))


def test_a_command_arrives_after_its_delay_and_never_before_an_older_one():
    line, delay = CommandLine(np.zeros((1, 2))), np.array([[0.03, 0.05]])
    line.send(np.ones((1, 2)), delay)
    line.send(np.full((1, 2), 2.0), delay - 0.01)  # would overtake
    for now, wanted in ((0.029, [0, 0]), (0.031, [2, 0]), (0.051, [2, 2])):
        np.testing.assert_array_equal(line.active_command(now)[0], wanted)


def test_the_zero_of_the_encoder_is_the_difference_of_position_and_reading():
    values = plant_values(**{**IDEAL, "zero": 0.02, "scale": 1.01, "backlash": 1e-5}).drives
    reading, true, _ = drive_one(values, np.full((3000, 6), 0.3))
    np.testing.assert_allclose(reading[-1], 0.3, atol=2e-3)  # the servo reaches the command in its own frame
    np.testing.assert_allclose(true[-1] - 1.01 * reading[-1], 0.02, atol=1e-5)


def test_a_motor_turns_through_the_play_when_it_turns_back():
    values = plant_values(**{**IDEAL, "backlash": 0.015, "gear_stiffness": 1000.0, "gear_damping": 0.05}).drives
    there_and_back = np.concatenate([np.linspace(0, 0.5, 2000), np.linspace(0.5, 0, 2000)])[:, None].repeat(6, axis=1)
    slow = np.repeat(there_and_back, 2, axis=0)
    heavy_friction = []
    position, velocity = np.zeros((1, 6)), np.zeros((1, 6))
    drives = Drives(values, position, 0 * position, STEP)
    for row in slow:  # a link with much friction of its own keeps still within the play
        torque = drives.advance(row[None], position, velocity)
        free = velocity + STEP / 0.005 * torque
        velocity = np.sign(free) * np.maximum(np.abs(free) - STEP / 0.005 * 0.05, 0.0)
        position = position + STEP * velocity
        heavy_friction.append(drives.motor[0] - position[0])
    twist = np.array(heavy_friction)
    np.testing.assert_allclose(twist[3800] - twist[7800], 0.015 + 2 * 0.05 / 1000.0, atol=5e-4)


def test_friction_at_rest_holds_what_friction_in_motion_does_not():
    values = plant_values(**{**IDEAL, "coulomb": 0.1, "static_ratio": 1.5, "stribeck_velocity": 0.1}).drives
    for torque, moves in ((0.14, False), (0.16, True)):
        command = np.full((400, 6), 1.0) * torque / values.stiffness
        _, _, motor = drive_one(values, command)
        assert ((motor[-1] > 1e-3) == moves).all()


def test_energy_of_motor_and_link_never_grows_without_a_drive():
    values = plant_values(**{**IDEAL, "stiffness": 0.0, "damping": 0.0}).drives
    position, velocity = np.zeros((1, 6)), np.zeros((1, 6))
    drives = Drives(values, position, 0 * position, STEP)
    drives.speed = np.full((1, 6), 1.0)
    start = 0.5 * values.inertia
    for _ in range(2000):
        velocity = velocity + STEP / 0.005 * drives.advance(position, position, velocity)
        position = position + STEP * velocity
    energy = 0.5 * values.inertia * drives.speed**2 + 0.5 * 0.005 * velocity**2
    assert (energy < start).all()
    momentum = values.inertia * drives.speed + 0.005 * velocity
    np.testing.assert_allclose(momentum[0], values.inertia, rtol=1e-9)


def test_static_torques_equal_those_of_mujoco():
    pytest.importorskip("pydrake")
    plant, data = DrakePlant(TWIN.model, list(TWIN.robot.joints), STEP), mujoco.MjData(TWIN.model)
    random = np.random.default_rng(0)
    for _ in range(10):
        data.qpos[:] = TWIN.home()[0]
        data.qpos[TWIN.joint_qpos] = random.uniform(*TWIN.joint_ranges.T)
        mujoco.mj_forward(TWIN.model, data)
        wanted = data.qfrc_bias[TWIN.joint_qvel]
        np.testing.assert_allclose(-plant.start(data.qpos).gravity_torques(), wanted, rtol=1e-6, atol=1e-9)


def test_a_moving_cube_has_the_same_velocity_in_both_layouts():
    pytest.importorskip("pydrake")
    plant, data = DrakePlant(TWIN.model, list(TWIN.robot.joints), 1e-4), mujoco.MjData(TWIN.model)
    data.qpos[:] = TWIN.home()[0]
    data.qpos[2], data.qpos[3:7] = 0.4, np.array([0.5, 0.1, -0.7, 0.5]) / np.linalg.norm([0.5, 0.1, -0.7, 0.5])
    world = plant.start(data.qpos)
    state = world.state
    state[plant.layout._from_v[6:]] = [0.1, 0.2, 0.3, 1.0, -2.0, 3.0]  # linear, then angular in the world frame
    qpos, qvel = plant.layout.to_mujoco(state[None], data.qpos[None])
    data.qvel[:] = qvel[0]
    mujoco.mj_forward(TWIN.model, data)
    velocity = np.zeros(6)
    mujoco.mj_objectVelocity(TWIN.model, data, mujoco.mjtObj.mjOBJ_BODY, TWIN.model.body("cube").id, velocity, 0)
    np.testing.assert_allclose(velocity, [1.0, -2.0, 3.0, 0.1, 0.2, 0.3], atol=1e-12)
    np.testing.assert_array_equal(qpos[0], data.qpos)


@pytest.mark.slow
def test_a_planted_delay_is_the_time_until_an_arm_moves():
    pytest.importorskip("pydrake")
    robot = plant_values(**IDEAL, delay=0.05, command_jitter=0.0, backlash=0.001)
    backend = DrakeBackend(robot=robot, numbers=[0], free=False)
    simulation = backend.start(TWIN, TWIN.table(1), InitialState.home(TWIN, 1), 1)
    simulation.run(1500)
    before, started = simulation.qpos[0, TWIN.joint_qpos[0]], None
    command = TWIN.home()[1][None].copy()
    command[0, 0] += 0.5
    simulation.send(command)
    for tick in range(400):
        simulation.run(1)
        if started is None and simulation.qpos[0, TWIN.joint_qpos[0]] - before > 2e-3:
            started = tick * backend.step
    values = robot.drives
    fall = np.sqrt(2 * 2.5e-3 * values.inertia[0] / min(values.torque_limit[0], 0.5 * values.stiffness[0]))
    assert started == pytest.approx(0.05 + fall, abs=0.006)


@pytest.mark.slow
def test_planted_zero_and_play_are_found_in_a_log_and_in_a_resting_arm():
    pytest.importorskip("pydrake")
    robot = plant_values(backlash=0.02, coulomb=0.0, load_friction=0.0, zero=0.025, scale=1.0, noise=0.0)
    robot = dataclasses.replace(robot, tracker=PERFECT)
    commands = np.tile(TWIN.units.from_si(TWIN.home()[1]), (60, 1))
    episode = record_episode(robot, 0, commands)
    seen, nominal = episode.signals["place/tcp"].values[-1], _open_task(robot).chain.tool_position(TWIN.home()[0])
    x, y = np.array([seen, nominal])[:, :2].T
    bearing = -np.diff(np.arctan2(y[::-1], x[::-1] - TWIN.model.body("shoulder").pos[0]))[0]  # the pan axis points down
    assert bearing - TWIN.units.to_si(episode.state)[-1, 0] == pytest.approx(0.025, abs=2e-3)
    simulation = DrakeBackend(robot=robot, numbers=[0], free=False).start(
        TWIN, TWIN.table(1), InitialState.home(TWIN, 1), 1
    )
    simulation.run(3000)
    position = simulation.qpos[:, TWIN.joint_qpos]
    load = -simulation._plant.start(simulation.qpos[0]).gravity_torques()
    twist = simulation._drives.motor[0] - position[0] - load / robot.drives.gear_stiffness
    loaded = np.array([1, 2, 3])  # joints that gravity presses against one side of the play
    np.testing.assert_allclose(twist[loaded], np.sign(load[loaded]) * 0.01, atol=5e-4)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trial_in_any_batch():
    pytest.importorskip("pydrake")
    alone, pair = run_expert(4, [3]), run_expert(4, [1, 3])
    np.testing.assert_array_equal(alone.trajectories.states[0], pair.trajectories.states[1])
    assert pair.success.all()


@pytest.mark.slow
def test_a_cube_is_grasped_and_held_against_gravity():
    pytest.importorskip("pydrake")
    found: Trajectories = run_expert(0, [0, 1]).trajectories
    height, jaw = found.qpos[..., 2], found.qpos[..., TWIN.joint_qpos[5]]
    held = height > height[:, :1] + 0.04
    assert (held.sum(axis=1) > HZ).all()  # for more than 1 s
    assert (np.ptp(np.where(held, jaw, np.nan)[:, 85:110], axis=1) < 0.01).all()  # closed on the cube, and still
    assert height.min() > 0.01
    assert height.max() < 0.15
    assert np.abs(height[:, 0] - height[:, 20]).max() < 3e-4  # the cube rests and does not sink


@pytest.mark.slow
def test_a_log_has_times_readings_and_the_tracked_tool():
    pytest.importorskip("pydrake")
    first, again = (record_log(2, 1, 4.0)[0] for _ in range(2))
    np.testing.assert_array_equal(first.state, again.state)
    late = first.time - np.arange(len(first.time)) / HZ
    assert 0 <= late.min() < late.max() <= draw_robot(TWIN, 2).drives.loop_jitter + STEP
    assert first.signals["place/tcp"].values.shape == (len(first.time), 3)


@pytest.mark.slow
def test_the_lag_in_a_log_is_the_delay_and_the_time_constant_of_the_servo():
    pytest.importorskip("pydrake")
    for delay in (0.01, 0.05):
        robot = plant_values(delay=delay, coulomb=0.0, load_friction=0.0, backlash=1e-4)
        commands = teleop_commands(TWIN, seed=1, episodes=[0], seconds=8.0, hz=HZ)[0]
        episode = record_episode(robot, 0, commands)
        drives, lags = robot.drives, np.arange(0.0, 0.3, 0.002)
        held = delay + drives.command_jitter / 2 + 0.5 / HZ  # a held command is half a period old on average
        for joint in range(3):
            misses = [
                np.std(episode.state[:, joint] - np.interp(episode.time - lag, episode.time, commands[:, joint]))
                for lag in lags
            ]
            wanted = held + (drives.damping / drives.stiffness)[joint]
            assert lags[np.argmin(misses)] == pytest.approx(wanted, abs=0.015), (delay, joint)
