"""The simulations of planted robots against closed forms, against MuJoCo at a small step, and against the twins."""

import copy
from dataclasses import replace

import mujoco
import numpy as np
import pytest

from benchmarks.planted.chain import ChainMotion, Gear, PlantedChain, average_held, simulate
from benchmarks.planted.draws import TWINS, draw_truth, load_robot
from benchmarks.planted.logs import KINDS, ROBOTS, effects_of, make_log
from benchmarks.planted.motions import make_commands
from benchmarks.planted.quadrotor import draw_quadrotor, fly, load_quadrotor, nominal_quadrotor
from twinloop.core.seeds import generator
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay

H = 1e-3


def clean(robot, **changes):
    """Return the drawn truth of a robot without noise and counts, changed as given."""
    planted, _ = draw_truth(robot, generator(3, robot))
    return replace(planted, noise=0 * planted.noise, resolution=0 * planted.resolution, **changes)


def one_joint(**changes):
    """Return a joint with an inertia of 1 kg·m² (armature) without servo, damping and friction, changed as given."""
    zero = np.zeros(1)
    values = dict.fromkeys(("kp", "kd", "damping", "frictionloss", "delay", "zero", "resolution", "noise"), zero)
    values |= {"torque_limit": np.full(1, 1e3), "armature": np.ones(1), "links": {}, **changes}
    return PlantedChain(**values)


def advance(motion, steps, *, target=0.0, bias=0.0, mass=0.0, fade=1.0):
    """Advance one joint, and return its angles after every step."""
    angles = []
    for _ in range(steps):
        motion.advance(
            np.full((1, 1), target), np.full((1, 1, 1), mass), np.full((1, 1), bias), np.full((1, 1), fade), H
        )
        angles.append(motion.angle[0].copy())
    return np.array(angles)


def start(speed=0.0, **changes):
    motion = ChainMotion(one_joint(**changes), np.zeros((1, 1)))
    motion.speed[:] = speed
    return motion


@pytest.mark.parametrize("robot", ["so101", "leg"])
def test_without_friction_a_chain_moves_as_in_mujoco_at_a_small_step(robot):
    twin = load_robot(robot)
    planted = clean(robot, frictionloss=np.zeros(len(load_robot(robot).robot.joints)), links={})
    planted = replace(planted, delay=np.full(len(planted.kp), 0.02))
    commands = make_commands(twin, "fourier", 1, 2.0, generator(1, "motion"))
    readings = simulate(twin, planted, commands, twin.control_hz, generator(1, "noise"))
    model = copy.copy(twin.model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    joints = [model.joint(name).id for name in twin.robot.joints]
    dofs, actuators = model.jnt_dofadr[joints], [model.actuator(name).id for name in twin.robot.actuator_names]
    model.dof_damping[dofs], model.dof_armature[dofs], model.dof_frictionloss[:] = (
        planted.damping,
        planted.armature,
        0.0,
    )
    model.actuator_gainprm[actuators, 0], model.actuator_biasprm[actuators, 1] = planted.kp, -planted.kp
    model.actuator_biasprm[actuators, 2] = -planted.kd
    model.actuator_forcerange[actuators] = np.stack([-planted.torque_limit, planted.torque_limit], axis=1)
    model.actuator_ctrllimited[:] = 0
    per = 400 if robot == "so101" else 100
    model.opt.timestep = 1.0 / (twin.control_hz * per)
    data = mujoco.MjData(model)
    data.qpos[:] = twin.home()[0]
    data.qpos[model.jnt_qposadr[joints]] = commands[0, 0] + planted.zero
    late, expected = round(0.02 / model.opt.timestep), np.empty_like(readings[0])
    for tick in range(-round(1.5 / model.opt.timestep), (len(expected) - 1) * per + 1):
        if tick >= 0 and tick % per == 0:
            expected[tick // per] = data.qpos[model.jnt_qposadr[joints]] - planted.zero
        data.ctrl[actuators] = commands[0, max((tick - late) // per, 0)] + planted.zero
        mujoco.mj_step(model, data)
    assert np.abs(np.diff(expected, axis=0)).max() * twin.control_hz > 1.0
    assert np.sqrt(np.mean((readings[0] - expected) ** 2, axis=0)).max() < 1e-3


@pytest.mark.parametrize("robot", ["so101", pytest.param("ur5e", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_half_the_step_changes_readings_by_less_than_a_fifth_of_a_milliradian(robot, kind):
    twin, planted = load_robot(robot), clean(robot)
    commands = make_commands(twin, kind, 2, 2.0, generator(2, kind))
    at = [simulate(twin, planted, commands, twin.control_hz, generator(0, "none"), step=h) for h in (H, H / 2)]
    assert np.sqrt(np.mean((at[0] - at[1]) ** 2, axis=(0, 1))).max() < 2e-4


def test_damping_slows_a_joint_exponentially_and_friction_stops_it_in_time():
    slowed = advance(start(speed=1.0, damping=np.full(1, 2.0)), 1000)
    travelled = 0.5 * (1 - np.exp(-2.0 * np.arange(1, 1001) * H))  # of a speed that was 1 half a step before
    np.testing.assert_allclose(slowed[:, 0], travelled * np.exp(-2.0 * H / 2) / 1.0, atol=1e-6)
    stopped = advance(start(speed=1.0, frictionloss=np.full(1, 4.0)), 400)
    moving = np.diff(stopped[:, 0]) > 0
    assert 248 <= moving.sum() <= 250  # 1 kg·m² rad/s / 4 N·m = 0.25 s
    assert not np.diff(stopped[260:, 0]).any()
    assert stopped[-1, 0] == pytest.approx(1 / 8, abs=1e-3)


def test_friction_holds_a_joint_exactly_up_to_its_limit_and_static_friction_up_to_its_own():
    assert not advance(start(frictionloss=np.ones(1)), 500, bias=0.99).any()
    assert advance(start(frictionloss=np.ones(1)), 500, bias=1.01)[-1] == pytest.approx(-0.01 * 0.5**2 / 2, rel=0.01)
    sticky = {"frictionloss": np.ones(1), "stribeck_ratio": 2.0, "stribeck_velocity": 0.1}
    assert not advance(start(**sticky), 500, bias=1.9).any()
    assert advance(start(**sticky), 500, bias=2.1)[-1, 0] < -0.05


def test_two_coupled_joints_rest_and_slip_as_their_friction_allows():
    planted = one_joint(frictionloss=np.array([1.0, 0.5]), armature=np.zeros(2), torque_limit=np.ones(2))
    planted = replace(planted, **{key: np.zeros(2) for key in ("kp", "kd", "damping")})
    motion = ChainMotion(planted, np.zeros((1, 2)))
    mass = np.array([[[2.0, 0.6], [0.6, 1.0]]])
    for _ in range(100):
        motion.advance(np.zeros((1, 2)), mass, np.array([[0.3, -1.0]]), np.ones((1, 1)), H)
    assert motion.angle[0, 0] == 0.0  # 0.3 of the pull and 0.6 · 0.5 of the other joint's inertia are below 1
    assert motion.angle[0, 1] == pytest.approx((1.0 - 0.5) * 0.1**2 / 2, rel=0.02)


def test_a_servo_answers_a_step_as_its_equation_says_and_keeps_its_torque_limit():
    kp, kd, damping = 100.0, 4.0, 2.0
    servo = {"kp": np.full(1, kp), "kd": np.full(1, kd), "damping": np.full(1, damping)}
    motion = start(**servo)
    found = [*advance(motion, 1, target=0.05)[:, 0], *advance(motion, 999, target=0.1)[:, 0]]  # first: half a step
    rate, decay = np.sqrt(kp - 9.0), 3.0
    time = np.arange(1, 1001) * H
    exact = 0.1 * (1 - np.exp(-decay * time) * (np.cos(rate * time) + decay / rate * np.sin(rate * time)))
    np.testing.assert_allclose(found, exact, atol=2e-6)
    limited = advance(start(**servo, torque_limit=np.full(1, 0.5)), 100, target=0.1)[:, 0]
    exact = 0.5 * (0.1 / 2 - (1 - np.exp(-0.2)) / 4)  # a constant 0.5 N·m against the damping of 2
    assert limited[-1] == pytest.approx(exact, rel=0.03)
    sagged = advance(start(**servo), 4000, bias=3.0, fade=0.5)[-1, 0]
    assert sagged == pytest.approx(-3.0 / (0.5 * kp), abs=1e-6)


def test_a_motor_crosses_the_gap_before_its_link_moves_and_leans_on_it_afterwards():
    gear = Gear(stiffness=np.full(1, 1e4), damping=np.full(1, 20.0), gap=np.full(1, 0.02), link_encoder=False)
    motion = start(kp=np.full(1, 1e6), torque_limit=np.ones(1), gear=gear)
    path = advance(motion, 160, target=10.0, mass=0.5)
    link, motor = path.T
    crossing = int(np.sqrt(2 * 0.01) / H)  # 0.01 rad at 1 rad/s²
    assert not link[: crossing - 1].any()
    np.testing.assert_allclose(motor[: crossing - 1], 0.5 * (np.arange(1, crossing) * H) ** 2, atol=1e-4)
    assert link[-1] > 0.0
    held = start(kp=np.full(1, 400.0), kd=np.full(1, 40.0), gear=gear)
    link, motor = advance(held, 5000, bias=2.0, mass=0.5)[-1]
    assert motor == pytest.approx(-2.0 / 400.0, abs=1e-6)
    assert link == pytest.approx(motor - 0.01 - 2.0 / 1e4, abs=1e-6)


def test_a_link_swings_on_a_soft_gear_at_its_resonance():
    stiffness = 0.5 * (2 * np.pi * 8.0) ** 2
    gear = Gear(stiffness=np.full(1, stiffness), damping=np.zeros(1), gap=np.zeros(1), link_encoder=False)
    motion = start(frictionloss=np.full(1, 1e3), gear=gear)
    motion.angle[0, 0] = 0.01
    path = advance(motion, 2000, mass=0.5)
    assert not path[:, 1].any()
    ups = np.flatnonzero((path[:-1, 0] < 0) & (path[1:, 0] >= 0))
    assert len(ups) == 16
    assert (len(ups) - 1) / ((ups[-1] - ups[0]) * H) == pytest.approx(8.0, rel=2e-3)
    assert np.abs(path[-150:, 0]).max() == pytest.approx(0.01, rel=1e-2)  # nothing is lost


def test_held_values_change_when_they_arrive():
    values = np.array([[[1.0], [2.0], [5.0]]])
    arrivals = np.array([[[0.0], [0.25], [0.35]]])
    np.testing.assert_allclose(average_held(values, arrivals, np.linspace(0, 0.5, 6))[:, 0, 0], [1, 1, 1.5, 3.5, 5])
    overtaken = np.array([[[0.0], [0.4], [0.2]]])
    np.testing.assert_allclose(average_held(values, overtaken, np.linspace(0, 0.5, 6))[:, 0, 0], [1, 1, 5, 5, 5])


def test_a_delay_shifts_readings_by_itself_and_a_zero_shifts_commands_and_readings():
    twin, planted = load_robot("leg"), clean("leg")
    n, hz = len(planted.kp), twin.control_hz
    commands = make_commands(twin, "reach", 2, 1.5, generator(4, "motion"))

    def read(commands, **changes):
        return simulate(twin, replace(planted, **changes), commands, hz, generator(0, "none"))

    late = [read(commands, delay=np.full(n, delay)) for delay in (0.0, 0.03)]
    np.testing.assert_allclose(late[1][:, 3:], late[0][:, :-3], atol=1e-9)
    zero = np.array([0.03, -0.02, 0.01])
    moved = read(commands + zero, zero=np.zeros(n)) - zero
    np.testing.assert_allclose(read(commands, zero=zero), moved, atol=1e-12)
    np.testing.assert_allclose(read(commands, zero=zero), read(commands + 0.1, zero=zero, bias=-0.1), atol=1e-12)
    assert np.abs(read(commands, zero=zero) - read(commands, zero=np.zeros(n))).max() > 1e-4


def test_hot_motors_sag_more_in_later_episodes():
    twin = load_robot("so101")
    commands = np.tile(twin.home()[0][twin.joint_qpos], (6, 150, 1))
    planted = clean("so101", frictionloss=np.zeros(6), zero=np.zeros(6), fade_factor=0.5, fade_time=10.0)
    sag = np.abs(simulate(twin, planted, commands, 30.0, generator(0, "none")) - commands)[:, -1, 1]
    heat = 1 - np.exp(-(np.arange(6) * 5.0 + 149 / 30) / 10.0)
    np.testing.assert_allclose(sag * (1 - 0.5 * heat) / (sag[0] * (1 - 0.5 * heat[0])), 1.0, rtol=0.05)
    assert sag[-1] > 1.3 * sag[0]


@pytest.mark.parametrize("robot", ROBOTS)
def test_a_log_depends_on_its_arguments_alone_and_its_twin_knows_the_planted_values(robot):
    def readings(log):
        return [e.state if robot != "quadrotor" else e.signals["acceleration/imu"].values for e in log.episodes]

    logs = [make_log(robot, "steps", 5, episodes=2, seconds=0.5) for _ in range(2)]
    np.testing.assert_array_equal(readings(logs[0]), readings(logs[1]))
    assert logs[0].planted == make_log(robot, "reach", 5, effects_of(robot)[0], episodes=1, seconds=0.5).planted
    assert logs[0].planted != make_log(robot, "steps", 6, episodes=1, seconds=0.5).planted
    for name, value in logs[0].planted.items():
        logs[0].twin.params[name].check(value)


@pytest.mark.parametrize("effect", effects_of("leg"))
def test_an_effect_changes_readings_but_not_the_planted_values(effect):
    states = [make_log("leg", "reach", 5, e, episodes=1, seconds=1.5).episodes[0].state for e in (effect, "", None)]
    assert np.sqrt(np.mean((states[0] - states[1]) ** 2)) > 2e-5
    np.testing.assert_array_equal(states[1], states[2])


def test_each_effect_changes_what_a_flight_measures():
    def accelerations(effect):
        flights = fly(draw_quadrotor(generator(1, "truth"), effect)[0], "fourier", generator(1, "motion"), 2, 1.5)
        return np.stack([flight.signals["acceleration/imu"].values for flight in flights])

    without = accelerations(None)
    for effect in effects_of("quadrotor"):
        assert np.sqrt(np.mean((accelerations(effect) - without) ** 2)) > 0.01


@pytest.mark.parametrize("robot", TWINS)
def test_commands_stay_within_the_joint_ranges(robot):
    twin = load_robot(robot)
    for kind in KINDS:
        commands = make_commands(twin, kind, 4, 6.0, generator(7, kind))
        assert (commands > twin.joint_ranges[:, 0]).all()
        assert (commands < twin.joint_ranges[:, 1]).all()
        assert np.ptp(commands, axis=(0, 1)).min() > 0


@pytest.mark.parametrize(("robot", "noise"), [("leg", 1e-3), ("ur5e", 1e-4)])
def test_the_twin_with_the_planted_values_replays_a_log(robot, noise):
    log = make_log(robot, "reach", 8, episodes=1, seconds=3.0)
    logs = prepare_replay(log.twin, log.episodes)
    for values, expected in ((log.planted, True), ({}, False)):
        error = replay(open_backend(), logs, logs.twin.table(1, values))[0] - logs.measured
        assert (np.sqrt(np.nanmean(error**2)) < 6 * noise) == expected


def test_the_twin_with_the_planted_values_replays_flights():
    log = make_log("quadrotor", "steps", 8, episodes=1)
    compare = ("acceleration/imu", "angular_velocity/imu")
    logs = prepare_replay(log.twin, log.episodes, ReplayOptions(window=0.25, start="measured", compare=compare))
    error = replay(open_backend(), logs, logs.twin.table(1, log.planted))[0] - logs.measured
    rms = np.sqrt(np.nanmean(error**2, axis=(0, 1)))
    assert rms[:3].max() < 1.1 * 0.05
    assert rms[3:].max() < 3.0 * 0.01  # a window begins at a noisy rate


def test_the_planted_body_is_the_twins_with_the_planted_values():
    twin = load_quadrotor()
    planted, values = draw_quadrotor(generator(9, "truth"))
    fields = twin.fields(twin.table(1, values)).arrays
    body = twin.model.body("crazyflie").id
    np.testing.assert_allclose(fields["body_inertia"][0, body], planted.inertia, rtol=1e-9)
    assert fields["body_mass"][0, body] == pytest.approx(planted.mass)


def test_a_nominal_quadrotor_hovers_at_rest():
    (flight,) = fly(
        nominal_quadrotor(), "fourier", generator(0, "none"), flights=1, seconds=0.4
    )  # before the first move
    accelerations = flight.signals["acceleration/imu"].values
    np.testing.assert_allclose(accelerations.mean(axis=0), [0.0, 0.0, 9.81], atol=0.02)
    throttle = flight.signals["motor"].values
    np.testing.assert_allclose(throttle, throttle[0, 0], atol=1e-6)
    assert nominal_quadrotor().thrust @ throttle[0, 0] ** np.arange(3) == pytest.approx(0.027 * 9.81 / 4)
