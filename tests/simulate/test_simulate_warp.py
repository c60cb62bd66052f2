"""Worlds of mujoco_warp against the plain loop, on the CPU device; a GPU runs the same code (``-m gpu``)."""

from __future__ import annotations

import copy
import dataclasses
import sys

import mujoco
import numpy as np
import pytest

from support.one_joint import joints_twin
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.params import SeedPath
from twinloop.core.seeds import uniforms
from twinloop.randomize import Plan, default_draws
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.protocol import state_columns
from twinloop.twin import load_twin
from twinloop.twin.load import compile_twin
from twinloop.twin.spec import parse_spec

pytest.importorskip("mujoco_warp", reason="mujoco-warp is not installed: pip install 'twinloop[gpu]'")
torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'twinloop[gpu]'")

from twinloop.simulate.arrays import to_host  # noqa: E402
from twinloop.simulate.warp import BackendWarp, estimate_max_contacts, estimate_max_rows  # noqa: E402
from twinloop.simulate.warp_model import WarpModel  # noqa: E402

NSTEP = 8


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


def randomized(twin, nworld):
    return Plan(twin=twin, run_seed=3, draws=tuple(default_draws(twin))).draw(range(nworld))


def waves(twin, nworld, nstep):
    """Smooth commands around home, with a different phase for each world and actuator."""
    _, home = twin.home()
    phase = uniforms(0, "phase", range(nworld), size=len(home))[:, None]
    time = np.arange(nstep)[:, None] / twin.control_hz
    swing = 0.3 * (np.sin(2 * np.pi * (time + phase)) - np.sin(2 * np.pi * phase))
    return np.clip(home + swing, *twin.model.actuator_ctrlrange.T)


def both(twin, table, commands, *, warp=None, start=None, **options):
    start, nstep = start or InitialState.home(twin, table.nworld), commands.shape[1]
    return [
        rollout(backend, twin, table, start, commands, nstep, **options)
        for backend in (open_backend("threads"), warp or BackendWarp("cpu"))
    ]


def largest(runs, part):
    return np.abs(runs[0].state_component(int(part)) - runs[1].state_component(int(part))).max(initial=0.0)


def test_rotors_start_at_the_speed_of_the_throttles_before():
    twin = load_twin("crazyflie")
    throttles = np.random.default_rng(3).uniform(0.2, 0.8, size=(60, 4))
    values = {"rotors/all/lag": [0.05, 0.1], "rotors/all/second_lag": [0.0, 0.02]}
    table = twin.table(2, values)
    home = InitialState.home(twin, 2)
    before = np.repeat(throttles[None, :40], 2, axis=0)
    start = dataclasses.replace(home, command=before[:, 0], earlier=before[:, 1:])
    commands = np.repeat(throttles[None, 40:], 2, axis=0)
    exact, run = both(twin, table, commands, start=start, record=("sensordata",))
    plain, _ = both(twin, table, commands, record=("sensordata",))
    lift, expected, without = (one.records["sensordata"][..., 2] for one in (run, exact, plain))
    np.testing.assert_allclose(lift[:, 1:], expected[:, 1:], rtol=1e-3, atol=1e-3)
    assert np.abs(without[:, 1] - expected[:, 1]).min() > 0.05


@pytest.mark.parametrize(
    "name", ["so101_tabletop", "cube_toss", pytest.param("panda_tabletop", marks=pytest.mark.slow)]
)
def test_one_physics_step_is_the_reference_s_within_single_precision(name):
    """Rounding of a float32 is 6e-8 of a number, so a depth of 0.1 mm at 0.2 m has a relative error of 1e-4.

    That part of a contact's acceleration of hundreds of m/s² is lost, for 2 ms.
    Free bodies begin 0.1 mm deep in their support, because at zero depth rounding decides whether they
    touch, and fall, slide and spin on it.
    """
    twin = load_twin(name)
    single = twin.spec.model_copy(update={"control_hz": twin.control_hz * twin.substeps, "substeps": 1})
    twin = dataclasses.replace(twin, spec=single)
    start = InitialState.home(twin, 4)
    qpos, qvel = start.qpos.copy(), start.qvel.copy()
    free = twin.model.jnt_type == mujoco.mjtJoint.mjJNT_FREE
    qpos[:, twin.model.jnt_qposadr[free] + 2] -= 1e-4
    qvel[:, twin.model.jnt_dofadr[free][:, None] + np.arange(6)] = [0.3, 0.3, -0.3, 0.3, 0.3, 0.3]
    start = dataclasses.replace(start, qpos=qpos, qvel=qvel)
    runs = both(twin, randomized(twin, 4), waves(twin, 4, 1), start=start)
    kinds = mujoco.mjtState
    assert runs[1].valid.all()
    assert largest(runs, kinds.mjSTATE_TIME) < 1e-9
    assert largest(runs, kinds.mjSTATE_QPOS) < 1e-6
    assert largest(runs, kinds.mjSTATE_QVEL) < 1e-3
    assert largest(runs, kinds.mjSTATE_WARMSTART) < 0.5
    assert largest(runs, kinds.mjSTATE_MOCAP_POS) < 1e-7
    assert np.abs(runs[0].qvel[:, 1] - qvel).max() > 0.01


def test_one_second_of_motion_stays_within_a_hundredth_of_a_millimetre(twin):
    nstep = round(twin.control_hz)
    runs = both(twin, randomized(twin, 4), waves(twin, 4, nstep))
    assert runs[1].valid.all()
    assert largest(runs, mujoco.mjtState.mjSTATE_QPOS) < 1e-5
    assert np.ptp(runs[0].qpos[:, -1], axis=0).max() > 0.05


def test_a_run_repeats_bit_for_bit_and_a_world_is_the_same_alone_and_in_company(twin):
    table, commands = randomized(twin, 3), waves(twin, 3, NSTEP)
    first, again = (rollout(BackendWarp("cpu"), twin, table, InitialState.home(twin, 3), commands, NSTEP) for _ in "ab")
    np.testing.assert_array_equal(first.states, again.states)
    alone = rollout(BackendWarp("cpu"), twin, table.take([2]), InitialState.home(twin, 1), commands[2:], NSTEP)
    np.testing.assert_array_equal(first.states[2], alone.states[0])


def test_begun_anew_a_world_forgets_and_the_others_do_not_notice(twin):
    table, other, commands = randomized(twin, 3), randomized(twin, 6).take([5]), waves(twin, 3, 2 * NSTEP)
    start = InitialState.home(twin, 3)
    simulation = BackendWarp("cpu").start(twin, table, start, 2 * NSTEP, derived=("xpos",))
    for step in range(2 * NSTEP):
        if step == NSTEP:
            kept = simulation.read_derived("xpos")
            simulation.restart([1], other, InitialState.home(twin, 1))
            np.testing.assert_array_equal(simulation.read_derived("xpos")[[0, 2]], kept[[0, 2]])
        simulation.advance(commands[:, step])
    whole = rollout(BackendWarp("cpu"), twin, table, start, commands, 2 * NSTEP)
    fresh = rollout(BackendWarp("cpu"), twin, other, InitialState.home(twin, 1), commands[[1], NSTEP:], NSTEP)
    np.testing.assert_array_equal(simulation.state[[0, 2]], whole.states[[0, 2], -1])
    np.testing.assert_array_equal(simulation.state[1], fresh.states[0, -1])


def test_constants_that_follow_from_parameters_are_those_that_mujoco_derives(twin):
    table = randomized(twin, 3)
    simulation = BackendWarp("cpu").start(twin, table, InitialState.home(twin, 3), 1)
    expected = [written(twin, table, world) for world in range(3)]
    for field in (
        "body_mass",
        "body_subtreemass",
        "body_invweight0",
        "dof_invweight0",
        "actuator_acc0",
        "dof_armature",
    ):
        got = simulation.device.model.view(field).numpy()
        np.testing.assert_allclose(got, [getattr(model, field) for model in expected], rtol=2e-4, err_msg=field)
        assert np.ptp(got, axis=0).max() > 0


def written(twin, table, world):
    model = copy.copy(twin.model)
    twin.fields(table.take([world])).write_inplace(model, 0)
    return model


DRIVES = {
    "supply/bus/resistance": 0.3,
    "actuator/j0/torque_constant": 1.1,
    "actuator/j0/resistance": 3.0,
    "actuator/j0/firmware_gain": 20.0,
    "actuator/j0/no_load_speed": 5.0,
    "actuator/j0/temperature_rise": 20.0,
    "joint/j0/frictionloss": 0.05,
    "joint/j0/stiction": 1.5,
    "joint/j0/load_friction": 0.2,
}


def test_unlike_clocks_chance_and_drives_are_as_in_the_reference(tmp_path):
    twin = joints_twin(tmp_path)
    clocks = {"timing/control/period": [1.0, 1.2, 0.9], "timing/control/jitter": 0.004, "timing/command/jitter": 0.02}
    table = twin.table(3, clocks | DRIVES).with_seeds(SeedPath.of(3, range(3)))
    commands = np.cumsum(0.1 * uniforms(1, "walk", range(3), size=2 * NSTEP)[..., None], axis=1)
    runs = both(twin, table, commands)
    assert largest(runs, mujoco.mjtState.mjSTATE_QPOS) < 1e-5
    np.testing.assert_allclose(runs[0].states[:, -1, 0], runs[1].states[:, -1, 0], rtol=1e-5)
    assert np.ptp(runs[1].states[:, -1, 0]) > 0.05
    without = twin.table(3, clocks).with_seeds(SeedPath.of(3, range(3)))
    assert np.abs(both(twin, without, commands)[1].qpos - runs[1].qpos).max() > 0.01


def test_parameters_that_change_every_step_do_so_as_in_the_reference(twin):
    friction = 0.2 * uniforms(1, "friction", range(2), size=NSTEP)
    table = twin.table(2).with_steps({"joint/elbow_flex/frictionloss": friction})
    runs = both(twin, table, waves(twin, 2, NSTEP))
    assert largest(runs, mujoco.mjtState.mjSTATE_QPOS) < 1e-5
    fixed = rollout(BackendWarp("cpu"), twin, twin.table(2), InitialState.home(twin, 2), waves(twin, 2, NSTEP), NSTEP)
    assert np.abs(fixed.qpos - runs[1].qpos).max() > 1e-3


WORLD = """
<mujoco model="slope">
  <option integrator="implicitfast" cone="elliptic"/>
  <default><geom friction="0.2 0.005 0.0001"/></default>
  <worldbody>
    <geom name="plate" type="box" size="0.3 0.3 0.02" pos="0 0 -0.02"/>
    <body name="post" pos="0.2 0 0"><geom name="post" type="box" size="0.02 0.1 0.05"/></body>
    <body name="puck" pos="0 0 0.0099">
      <freejoint/><geom name="puck" type="box" size="0.02 0.03 0.01" mass="0.25"/>
    </body>
  </worldbody>
</mujoco>
"""
MOVED = {
    "geom/plate/position/z": -0.01,
    "geom/plate/rotation/y": 0.3,
    "body/post/position/x": -0.17,
    "world/gravity/tilt_x": 0.3,
    "world/wind/x": 12.0,
    "world/air/density": 900.0,
    "world/air/viscosity": 8.0,
    "push/puck/force": 2.0,
    "object/puck/friction/slide": 0.05,
    "object/puck/mass": 0.5,
}


@pytest.fixture(scope="module")
def slope(tmp_path_factory):
    """A puck on a plate next to a post; a push, and moving air if both density and wind are set."""
    path = tmp_path_factory.mktemp("slope") / "slope.xml"
    path.write_text(WORLD)
    names = [*MOVED, "push/puck/time", "push/puck/duration"]
    params = [{"name": name, "source": "test"} for name in names]
    value = {"name": "slope", "model": path.name, "control_hz": 50, "substeps": 10, "params": params}
    return compile_twin(parse_spec(value, where="test"), path, where="test")


def test_what_stands_blows_and_pushes_in_one_world_does_so_there_alone(slope):
    """World i moves the i-th parameter; wind needs a dense air, friction and mass a push, to be felt."""
    nworld, names = len(MOVED) + 1, list(MOVED)
    values = {name: np.full(nworld, slope.params[name].nominal) for name in names}
    for world, (name, value) in enumerate(MOVED.items(), start=1):
        values[name][world] = value
    values["world/air/density"][1 + names.index("world/wind/x")] = 900.0
    values["push/puck/force"][1 + names.index("object/puck/friction/slide") :] = 2.0
    values["push/puck/duration"] = np.full(nworld, 0.13)
    table, commands = slope.table(nworld, values), np.zeros((nworld, 20, 0))
    runs = both(slope, table, commands)
    np.testing.assert_allclose(runs[1].qpos, runs[0].qpos, atol=2e-5)
    moved = np.abs(runs[1].qpos - runs[1].qpos[:1]).max(axis=(1, 2))
    felt = [name for name, effect in zip(names, moved[1:], strict=True) if effect > 1e-3]
    assert set(names) - set(felt) == {"world/air/density", "world/air/viscosity"}  # nothing moves through the air


def test_pushes_and_places_come_and_go_when_worlds_begin_anew(slope):
    """A world that resets with another changed parameter gets its array then; the others are unaffected."""
    start, commands = InitialState.home(slope, 2), np.zeros((2, 0))
    pushed = slope.table(1, {"push/puck/force": 2.0, "push/puck/duration": 0.1, "geom/plate/rotation/y": 0.3})
    simulations = [
        backend.start(slope, slope.table(2), start, 20) for backend in (open_backend("threads"), BackendWarp("cpu"))
    ]
    for step in range(20):
        for simulation in simulations:
            if step in (4, 12):
                fresh = pushed if step == 4 else slope.table(1)
                simulation.restart([1], fresh, InitialState.home(slope, 1))
            simulation.advance(commands)
        np.testing.assert_allclose(simulations[1].qpos, simulations[0].qpos, atol=2e-5)
        if step == 11:
            assert np.abs(simulations[1].qpos[1] - simulations[1].qpos[0]).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["so101_tabletop", "double_pendulum", "cube_toss"])
def test_every_parameter_does_to_a_world_what_it_does_in_the_reference(name):
    """World i moves the i-th parameter of the twin to an end of its range, or by a fifth."""
    twin = load_twin(name)
    params = [p for p in twin.params.values() if not p.quantity.visual and "geom_fluid" not in p.quantity.fields]
    nworld = len(params)
    values = {p.name: np.where(np.arange(nworld) == i, moved(p), p.nominal) for i, p in enumerate(params)}
    table = twin.table(nworld, values).with_seeds(SeedPath.of(0, range(nworld)))
    commands = np.tile(waves(twin, 1, NSTEP), (nworld, 1, 1)) if twin.model.nu else np.zeros((nworld, NSTEP, 0))
    runs = both(twin, table, commands)
    assert runs[1].valid.all()
    worst = np.abs(runs[0].qpos - runs[1].qpos).max(axis=(1, 2))
    assert {params[i].name: worst[i] for i in np.flatnonzero(worst > 1e-4)} == {}


def moved(param):
    """Where a parameter differs most from nominal within its range, or a fifth more where it has none."""
    ends = param.absolute(param.default_range, param.op) if param.default_range else [1.2 * param.nominal + 0.01]
    return np.clip(max(ends, key=lambda end: abs(end - param.nominal)), param.low, param.high)


def test_what_is_computed_on_the_way_is_the_reference_s(twin):
    table, commands = randomized(twin, 2), waves(twin, 2, NSTEP)
    names = ("xpos", "site_xmat", "actuator_force")
    runs = both(twin, table, commands, record=names)
    for name, tolerance in zip(names, (1e-5, 1e-4, 1e-2), strict=True):
        assert runs[1].records[name].shape == runs[0].records[name].shape
        np.testing.assert_allclose(runs[1].records[name], runs[0].records[name], atol=tolerance)
    simulations = [
        backend.start(twin, table, InitialState.home(twin, 2), NSTEP)
        for backend in (open_backend("reference"), BackendWarp("cpu"))
    ]
    body, point = twin.model.body("gripper").id, np.array([[0.2, 0.0, 0.1], [0.1, 0.1, 0.2]])
    jacobians = []
    for simulation in simulations:
        simulation.advance(commands[:, 0])
        jacobians.append(simulation.jacobian(body, point))
    np.testing.assert_allclose(jacobians[0], jacobians[1], atol=1e-5)


@pytest.mark.parametrize(
    ("room", "reason"), [({"nconmax": 1}, "mjWARN_CONTACTFULL"), ({"njmax": 8}, "mjWARN_CNSTRFULL")]
)
def test_a_world_that_runs_out_of_room_is_marked_with_what_it_ran_out_of(twin, room, reason):
    """A cube on a table touches it at four points; the first step already loses some of them."""
    result = both(twin, twin.table(2), waves(twin, 2, 3), warp=BackendWarp("cpu", **room))[1]
    np.testing.assert_array_equal(result.invalid_step, [0, 0])
    assert reason in result.reason[0]


def test_there_is_room_for_every_contact_of_a_grasp(twin):
    """Rows for all contacts at the largest dimension, so that only contacts beyond the room can be lost."""
    contacts = estimate_max_contacts(twin)
    assert contacts >= 48
    assert estimate_max_rows(twin.model, contacts) >= 6 * contacts


def test_a_world_that_is_told_nonsense_is_marked_and_stops_nobody(twin):
    commands = waves(twin, 3, NSTEP)
    commands[1, 4:] = np.nan
    result = rollout(BackendWarp("cpu"), twin, twin.table(3), InitialState.home(twin, 3), commands, NSTEP)
    np.testing.assert_array_equal(result.invalid_step, [-1, 4, -1])
    assert result.reason[1] == "mjWARN_BADCTRL"
    clean = rollout(BackendWarp("cpu"), twin, twin.table(3), InitialState.home(twin, 3), waves(twin, 3, NSTEP), NSTEP)
    np.testing.assert_array_equal(result.states[[0, 2]], clean.states[[0, 2]])


def test_a_world_that_diverges_is_marked_and_stops_nobody(twin):
    start = InitialState.home(twin, 3)
    speeding = start.qvel.copy()
    speeding[1] = 1e12
    result = rollout(
        BackendWarp("cpu"), twin, twin.table(3), dataclasses.replace(start, qvel=speeding), waves(twin, 3, 4), 4
    )
    np.testing.assert_array_equal(result.invalid_step, [-1, 0, -1])
    assert "mjWARN_BADQ" in result.reason[1]
    clean = rollout(BackendWarp("cpu"), twin, twin.table(3), start, waves(twin, 3, 4), 4)
    np.testing.assert_array_equal(result.states[[0, 2]], clean.states[[0, 2]])


def test_a_field_that_all_worlds_share_is_refused_by_the_parameter_s_name(twin):
    model = WarpModel(twin, 2)
    with pytest.raises(InputError, match=r"cannot vary this between worlds.*keeps one geom_condim.*backend threads"):
        model.check(twin.table(2), ["geom_condim"])


def test_the_device_shows_what_the_host_is_shown(twin):
    simulation = BackendWarp("cpu").start(twin, twin.table(2), InitialState.home(twin, 2), 1)
    simulation.device.advance(torch.as_tensor(waves(twin, 2, 1)[:, 0]))
    assert simulation.step_index == simulation.device.step_index == 1
    columns = state_columns(twin.model, int(mujoco.mjtState.mjSTATE_QPOS))
    np.testing.assert_array_equal(simulation.state[:, columns], to_host(simulation.device.qpos))


def test_the_bare_loop_takes_as_many_steps_as_the_rollout_it_is_measured_against(twin):
    backend, commands = BackendWarp("cpu"), waves(twin, 2, 5)
    simulation = backend.start(twin, twin.table(2), InitialState.home(twin, 2), 5)
    assert backend.measure_bare_seconds(simulation, commands) > 0
    np.testing.assert_allclose(simulation.state[:, 0], 5 / twin.control_hz, rtol=1e-5)
    data = mujoco.MjData(twin.model)
    data.qpos[:] = twin.home()[0]
    for command in commands[1]:
        data.ctrl[:] = command
        mujoco.mj_step(twin.model, data, twin.substeps)
    np.testing.assert_allclose(simulation.qpos[1], data.qpos, atol=1e-5)


@pytest.mark.gpu
def test_a_gpu_repeats_a_run_bit_for_bit_and_stays_with_the_reference(twin):
    table, commands = randomized(twin, 256), waves(twin, 256, round(twin.control_hz))
    runs = both(twin, table, commands, warp=BackendWarp("cuda"))
    again = rollout(BackendWarp("cuda"), twin, table, InitialState.home(twin, 256), commands, round(twin.control_hz))
    assert runs[1].valid.all()
    np.testing.assert_array_equal(runs[1].states, again.states)
    assert largest(runs, mujoco.mjtState.mjSTATE_QPOS) < 1e-3


@pytest.mark.gpu
def test_worlds_begin_anew_on_a_gpu_as_on_the_cpu(twin):
    table, other, commands = randomized(twin, 64), randomized(twin, 65).take([64]), waves(twin, 64, NSTEP)
    simulations = [
        BackendWarp(device).start(twin, table, InitialState.home(twin, 64), NSTEP) for device in ("cpu", "cuda")
    ]
    for step in range(NSTEP):
        for simulation in simulations:
            if step == 4:
                simulation.restart([7], other, InitialState.home(twin, 1))
            simulation.advance(commands[:, step])
    np.testing.assert_allclose(simulations[0].qpos, simulations[1].qpos, atol=1e-5)


def test_unknown_and_missing_devices_are_said_by_name(monkeypatch):
    with pytest.raises(InputError, match="Unknown Warp device 'tpu'. Use cuda, cuda:0"):
        open_backend("warp:tpu")
    monkeypatch.setattr("warp.is_cuda_available", lambda: False)
    with pytest.raises(MissingDependencyError, match="finds no CUDA device.*warp:cpu") as caught:
        open_backend("warp")
    assert caught.value.exit_code == 3
    with pytest.raises(UnknownNameError, match="warp:cpu"):
        open_backend("wrap")


def test_without_mujoco_warp_the_command_that_adds_it_is_said(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("twinloop.simulate.warp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    said = r'backend warp needs a package .*mujoco_warp.*pip install "twinloop\[gpu\]"'
    with pytest.raises(MissingDependencyError, match=said):
        open_backend("warp:cpu")
