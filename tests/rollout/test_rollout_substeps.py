"""The physics steps of a stored episode, made again: each control step ends in the next stored state, bit for bit."""

from __future__ import annotations

import dataclasses
import fnmatch

import mujoco
import numpy as np
import pytest

from support.rollout_substeps import HARD
from support.worlds import make_world, start
from twinloop.core.errors import InputError
from twinloop.core.params import SeedPath
from twinloop.core.records import Provenance
from twinloop.core.seeds import uniforms
from twinloop.randomize import Plan, default_draws
from twinloop.randomize.distributions import Uniform
from twinloop.randomize.plan import Draw
from twinloop.rollout import run_batch
from twinloop.rollout.substeps import PhysicsStepper
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.tasks import open_task
from twinloop.twin import builtin_names, load_twin

NSTEP = 14
STEPPED = {"actuator/gripper/delay", "actuator/elbow_flex/kp", "object/cube/friction/slide"}


def moving(twin, nworld=3):
    """Worlds of drawn parameters under random commands, and their values."""
    low, high = twin.model.actuator_ctrlrange.T
    u = uniforms(0, "commands", range(nworld), size=NSTEP * max(twin.model.nu, 1))
    commands = low + (high - low) * u[:, : NSTEP * twin.model.nu].reshape(nworld, NSTEP, twin.model.nu)
    table = Plan(twin=twin, run_seed=3, draws=tuple(default_draws(twin))).draw(range(nworld))
    initial = InitialState.home(twin, nworld)
    run = rollout(open_backend(), twin, table, initial, commands, NSTEP)
    assert run.valid.all()
    return [
        PhysicsStepper(twin, table.take([w]), run.states[w], commands[w], initial.command[w]) for w in range(nworld)
    ]


@pytest.fixture(scope="module", params=["so101_tabletop", "so101_tabletop_geared"])
def hard(request):
    """An episode with everything that drives, clocks, commands and step parameters can do, from its provenance."""
    twin = load_twin(request.param)
    draws = [
        Draw(names=tuple(fnmatch.filter(twin.params, pattern)), distribution=Uniform(low=low, high=high))
        for pattern, (low, high) in HARD.items()
    ]
    draws += [
        Draw(names=(name,), distribution=Uniform(low=0.9 * nominal, high=1.1 * nominal + 0.02), scope="step")
        for name in sorted(STEPPED)
        if (nominal := twin.params[name].nominal) is not None
    ]
    named = {name for draw in draws for name in draw.names}
    plan = Plan(twin=twin, run_seed=0, draws=(*default_draws(twin, skip=sorted(named)), *draws))
    task = open_task("pick_and_place", twin)
    task.nstep = 25
    made = run_batch(twin, task, plan.draw([3, 4], nstep=25), run_seed=0, episodes=[3, 4]).episode(1)
    assert set(made.provenance.extra["step_params"]) == STEPPED
    return twin, dataclasses.replace(made, provenance=Provenance.from_json(made.provenance.to_json()))


@pytest.mark.parametrize("name", builtin_names())
def test_every_control_step_ends_in_the_next_stored_state(name):
    for world in moving(load_twin(name)):
        made = world.run()
        np.testing.assert_array_equal(made.states[:, 0], world.states[:-1])
        np.testing.assert_array_equal(made.states[:, -1], world.states[1:])
        assert (np.diff(made.time) > 0).all()
        assert np.ptp(made.qpos, axis=1).max() > 0


def test_all_at_once_is_stepped_to_the_bit(hard):
    made = PhysicsStepper.of_episode(*hard).run(record=("actuator_force", "voltage", "temperature_rise"))
    np.testing.assert_array_equal(made.states[:, -1], hard[1].states[1:])
    assert np.ptp(np.diff(made.time)) > 1e-6  # the loop keeps no exact time
    assert made.records["actuator_force"].shape == (25, 16, 6)
    assert np.ptp(made.records["voltage"], axis=(0, 1)).max() > 1e-3
    assert made.records["temperature_rise"][-1].max() > 1e-4


def test_some_steps_alone_are_those_of_the_whole(hard):
    whole = PhysicsStepper.of_episode(*hard).run(record=("qacc",))
    some = PhysicsStepper.of_episode(*hard)
    for steps in ([7], [20, 3, 3], [4]):
        part = some.run(steps, record=("qacc",))
        np.testing.assert_array_equal(part.states, whole.states[steps])
        np.testing.assert_array_equal(part.records["qacc"], whole.records["qacc"][steps])


def test_what_is_known_before_the_next_command_is_of_the_last(hard):
    """At the end of a control step the force is the old controls'; at the beginning of the next the new ones'."""
    world = PhysicsStepper.of_episode(*hard)
    made = world.run(record=("actuator_force", "ctrl"))
    np.testing.assert_array_equal(made.ends["ctrl"], made.records["ctrl"][:, -1])
    jump = np.abs(made.records["actuator_force"][1:, 0] - made.ends["actuator_force"][:-1]).max(axis=0)
    smooth = np.abs(made.records["actuator_force"][:, -1] - made.ends["actuator_force"]).max(axis=0)
    assert (jump > 3 * smooth).any()
    rest = world.read_initial_records(["ctrl", "actuator_force"])
    assert rest["ctrl"].shape == (6,)
    np.testing.assert_array_equal(world.run([3], record=("ctrl",)).states, made.states[[3]])


def test_another_engines_states_are_kept_within_a_control_step():
    """Every control step begins at the stored state, so that float32 states do not drift away from the record."""
    world = moving(load_twin("so101_tabletop"), 1)[0]
    rounded = world.states.astype(np.float32).astype(np.float64)
    rounded[:, 0] = world.states[:, 0]
    made = PhysicsStepper(world.twin, world.params, rounded, world._commands, world._initial[0]).run()
    np.testing.assert_array_equal(made.states[:, 0], rounded[:-1])
    assert 0 < np.abs(made.qpos[:-1, -1] - made.qpos[1:, 0]).max() < 1e-4


def test_pushes_are_felt_between_steps(tmp_path):
    body = '<body name="box"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="2"/></body>'
    names = [f"push/box/{quantity}" for quantity in ("force", "time", "duration")]
    twin = make_world(tmp_path, body, names, option='gravity="0 0 0"')
    table = twin.table(1, {"push/box/force": 4.0, "push/box/time": 0.0235, "push/box/duration": 0.004})
    run = rollout(open_backend(), twin, table, start(twin, 1), np.zeros((1, 5, 0)), 5)
    made = PhysicsStepper(twin, table, run.states[0], np.zeros((5, 0)), []).run([2], record=("qacc",))
    np.testing.assert_array_equal(made.states[0, -1], run.states[0, 3])
    share = [0, 0, 0, 0.5, 1, 1, 1, 0.5, 0, 0]  # of each millisecond from 20 ms on
    np.testing.assert_allclose(made.records["qacc"][0, :, 0], 2.0 * np.array(share), atol=1e-9)


def test_poses_between_steps_lie_on_the_way(tmp_path):
    body = '<body name="box"><freejoint/><geom type="box" size="0.1 0.2 0.3" mass="2"/></body>'
    twin = make_world(tmp_path, body, [], option='gravity="0 0 0"')
    speed = np.array([0.3, 0.0, -0.2, 0.0, 0.0, 5.0])  # spins about a principal axis: a rotation known in closed form
    run = rollout(open_backend(), twin, twin.table(1), start(twin, 1, qvel=speed), np.zeros((1, 20, 0)), 20)
    world = PhysicsStepper(twin, twin.table(1), run.states[0], np.zeros((20, 0)), [])
    times = uniforms(1, "times", range(40))[:, 0] * world.time[-1]
    qpos = world.poses_at(times).qpos
    np.testing.assert_allclose(qpos[:, :3], times[:, None] * speed[:3], atol=1e-12)
    expected = np.stack([np.cos(2.5 * times), 0 * times, 0 * times, np.sin(2.5 * times)], axis=1)
    np.testing.assert_allclose(qpos[:, 3:], expected, atol=1e-9)


def test_poses_at_physics_steps_are_theirs_to_the_bit_and_rest_outside(hard):
    world = PhysicsStepper.of_episode(*hard)
    made = world.run([0, 11])
    states = world.poses_at(made.time.ravel())
    np.testing.assert_array_equal(states.qpos, made.qpos.reshape(-1, made.qpos.shape[-1]))
    outside = world.poses_at([-1.0, 99.0]).qpos
    np.testing.assert_array_equal(outside, world.poses_at(world.time[[0, -1]]).qpos)


def test_a_variant_with_more_sensors_moves_alike():
    twin = load_twin("so101_tabletop")
    world = moving(twin, 1)[0]
    variant = twin.mjspec.copy()
    site = variant.site("tcp")
    variant.add_sensor(
        name="felt", type=mujoco.mjtSensor.mjSENS_ACCELEROMETER, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=site.name
    )
    again = PhysicsStepper(
        twin, world.params, world.states, world._commands, world._initial[0], model=variant.compile()
    ).run(record=("sensordata",))
    np.testing.assert_array_equal(again.states[:, -1], world.states[1:])
    assert again.records["sensordata"].shape == (NSTEP, 16, twin.model.nsensordata + 3)


def test_what_does_not_fit_says_why(hard):
    twin, episode = hard
    world = PhysicsStepper.of_episode(twin, episode)
    with pytest.raises(InputError, match="no control step 25. Its 25 control steps are numbered from 0"):
        world.run([3, 25])
    with pytest.raises(InputError, match="this is cube_toss .* Use the version"):
        PhysicsStepper.of_episode(load_twin("cube_toss"), episode)
    bare = dataclasses.replace(episode, provenance=dataclasses.replace(episode.provenance, extra={}))
    with pytest.raises(InputError, match="has no 'initial_command' in its provenance"):
        PhysicsStepper.of_episode(twin, bare)
    with pytest.raises(InputError, match=r"Give T \+ 1 states and T commands"):
        PhysicsStepper(twin, twin.table(1), episode.states[:-1], episode.commands, np.zeros(6))
    with pytest.raises(InputError, match="2 rows of parameters for one episode"):
        PhysicsStepper(twin, twin.table(2), episode.states, episode.commands, np.zeros(6))
    jitter = twin.table(1, {"timing/command/jitter": 0.01})
    with pytest.raises(InputError, match="no seed path"):
        PhysicsStepper(twin, jitter, episode.states, episode.commands, np.zeros(6))
    seeded = jitter.with_seeds(SeedPath.of(0, [1]))
    assert len(PhysicsStepper(twin, seeded, episode.states, episode.commands, np.zeros(6))) == 25
