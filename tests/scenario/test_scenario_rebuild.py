"""From the log of a virtual robot to its world: objects within the tracker's noise, joints at their readings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.hardware.hidden import make_hidden_cell
from twinloop.rollout import ExpertActor, run_batch
from twinloop.rollout.observing import TrackerNoise
from twinloop.rollout.scenario import WorldOrigin
from twinloop.scenario.rebuild import TABLE, LoggedEpisode, place_objects, scenario_from_log
from twinloop.scenario.trials import try_actor, try_commands
from twinloop.simulate import open_backend
from twinloop.simulate.channels import TRACKER_OFFSET_M
from twinloop.tasks import open_task
from twinloop.twin import load_twin

SLIP = "object/cube/friction/slide"


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


def record(twin, *, nstep=None, tracker=None, changed=None, seed=3, episode=0):
    """The log of one episode of a virtual robot under the expert, and its true state."""
    cell = make_hidden_cell(twin, seed, changed=changed)
    task = open_task("pick_and_place", cell.twin)
    if nstep is not None:
        task.nstep = nstep
    params = cell.table(cell.plan(5).draw([episode]))
    backend = open_backend(nthread=1)
    made = run_batch(cell.twin, task, params, run_seed=5, episodes=[episode], backend=backend)
    true = task.environment(made.trajectories.states[0, :-1])
    chance = uniforms(5, "test/tracker", np.arange(len(true)), size=true.shape[1])
    log = LoggedEpisode(
        state=made.observation[0],
        action=made.action[0],
        environment=(tracker or cell.tracker).add_errors(true.copy(), task.environment_names, chance),
        environment_names=task.environment_names,
        units=made.units,
        hz=cell.twin.control_hz,
        origin=WorldOrigin(source="real", place="cell"),
    )
    return log, params.row(0), made


@pytest.fixture(scope="module")
def short(twin):
    return record(twin, nstep=40)


def test_things_lie_within_the_trackers_noise_and_offset(twin, short):
    log, true, _ = short
    noise = 0.001
    exact = record(twin, nstep=40, tracker=TrackerNoise(noise=noise))[0]
    found = place_objects(exact, twin)
    assert found.frames == 30  # a second, in which the arm only sets out
    for name, value in found.values.items():
        assert found.spread[name] == pytest.approx(noise / np.sqrt(30), rel=0.6)
        assert abs(value - true[name]) < 5 * noise / np.sqrt(30), name
    assert set(found.values) == {
        *(f"object/{o}/position/{a}" for o in ("cube", "target") for a in "xy"),
        "object/cube/yaw",
    }
    off = place_objects(log, twin).values
    assert all(abs(off[name] - true[name]) < 0.003 for name in off)  # its frame is up to 2 mm off


def test_frames_after_a_thing_was_moved_do_not_count(twin, short):
    log, true, _ = short
    pushed = log.environment.copy()
    pushed[6:, log.environment_names.index("cube.x")] += 0.02
    found = place_objects(replace(log, environment=pushed), twin)
    assert found.frames == 6
    assert abs(found.values["object/cube/position/x"] - true["object/cube/position/x"]) < 0.004


def test_joints_begin_where_their_readings_say_and_the_draws_spread_as_far_as_is_unknown(twin, short):
    log, _, made = short
    task = open_task("pick_and_place", twin)
    scenario = scenario_from_log(log, twin, task, name="x", ndraw=200)
    joints = scenario.initial.qpos[0, twin.joint_qpos]
    assert joints == pytest.approx(log.units.to_si(log.state[0]))
    true = made.trajectories.qpos[0, 0, made.twin.joint_qpos]
    assert np.abs(joints - true).max() < 0.035  # what the hidden encoders are off
    assert scenario.commands == pytest.approx(log.units.to_si(log.action))
    begun = scenario.make_worlds(200, twin=twin, task=task)
    places = np.stack([begun.params[f"object/{thing}/position/x"][1:] for thing in ("cube", "target")])
    assert places.std(axis=1) == pytest.approx(TRACKER_OFFSET_M, rel=0.2)
    shift = places - places.mean(axis=1, keepdims=True)
    assert np.corrcoef(shift)[0, 1] > 0.9  # the tracker's frame moves all things together
    assert np.ptp(begun.initial.qpos[:, twin.joint_qpos], axis=0).min() > 0.005  # encoders are not known either
    assert (begun.initial.command == scenario.initial.command).all()


def test_the_arm_is_held_where_it_begins(twin, short):
    task = open_task("pick_and_place", twin)
    scenario = scenario_from_log(short[0], twin, task, name="x", ndraw=0)
    still = replace(scenario, commands=np.tile(scenario.initial.command, (10, 1)))
    begun = still.make_worlds(twin=twin, task=task)
    from twinloop.simulate import rollout

    ran = rollout(open_backend(nthread=1), twin, begun.params, begun.initial, still.commands[None], 10)
    drift = ran.qpos[0, -1, twin.joint_qpos] - ran.qpos[0, 0, twin.joint_qpos]
    assert np.abs(drift).max() < 0.002


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hz": 15.0}, "recorded at 15 Hz, but the control rate of the twin so101_tabletop is 30 Hz"),
        ({"environment_names": ("a", "b")}, "has no object that the twin so101_tabletop can place"),
        ({"environment": 9.0}, r"object/cube/position/x = 9 m in the log cell is outside its physical bounds"),
    ],
)
def test_a_log_that_does_not_fit_says_why(twin, short, change, said):
    log = short[0]
    if "environment" in change:
        change = {"environment": np.full_like(log.environment, change["environment"])}
    with pytest.raises(InputError, match=said):
        scenario_from_log(replace(log, **change), twin, open_task("pick_and_place", twin), name="x")


def lifted(log, **by):
    """The log with things that much higher, in m."""
    seen = log.environment.copy()
    for thing, rise in by.items():
        seen[:, log.environment_names.index(f"{thing}.z")] += rise
    return replace(log, environment=seen)


def test_a_table_of_another_height_is_read_off_the_things_on_it(twin, short):
    log, _, _ = short
    task = open_task("pick_and_place", twin)
    level = scenario_from_log(log, twin, task, name="level", ndraw=8)
    assert TABLE not in level.non_nominal_values  # within what a tracker errs by
    high = scenario_from_log(lifted(log, cube=0.02, target=0.02), twin, task, name="high", ndraw=64)
    assert high.non_nominal_values[TABLE] == pytest.approx(0.02, abs=3 * TRACKER_OFFSET_M)
    cube = twin.model.jnt_qposadr[twin.model.body("cube").jntadr[0]]
    rise = high.initial.qpos[0, cube + 2] - level.initial.qpos[0, cube + 2]
    assert rise == pytest.approx(high.non_nominal_values[TABLE], abs=1e-9)
    assert high.draws is not None
    drawn = high.draws[:, high.params.names.index(TABLE)]
    assert drawn.std() == pytest.approx(TRACKER_OFFSET_M, rel=0.4)


def test_a_scene_of_which_something_would_be_lost_is_refused(twin, short):
    log, _, _ = short
    task = open_task("pick_and_place", twin)
    with pytest.raises(
        InputError,
        match=r"cube is 1[012]\.\d mm higher than .*target .*Either the table is tilted, or cube is on another",
    ):
        scenario_from_log(lifted(log, cube=0.011), twin, task, name="tilted", ndraw=0)
    names = (*log.environment_names, "bottle.x", "bottle.y")
    more = replace(log, environment=np.pad(log.environment, ((0, 0), (0, 2))), environment_names=names)
    with pytest.raises(InputError, match=r"has positions of bottle, .*it declares no object/bottle/position/x"):
        scenario_from_log(more, twin, task, name="bottle", ndraw=0)
    cluttered = load_twin("examples/so101_clutter.yaml")
    with pytest.raises(InputError, match=r"has random clutter \(distractors, screens\), and cell has no positions"):
        scenario_from_log(log, cluttered, open_task("pick_and_place", cluttered), name="clutter", ndraw=0)


def known(twin, **values):
    """A distribution of an identification that found these values within one percent."""
    names = tuple(values)
    return ParamDistribution(
        names=names,
        transforms=("log",) * len(names),
        mean=np.log(list(values.values())),
        covariance=np.diag(np.full(len(names), 1e-4)),
        low=np.array([twin.params[name].low for name in names]),
        high=np.array([twin.params[name].high for name in names]),
        determined=(True,) * len(names),
        clusters=10,
    )


@pytest.mark.slow
def test_a_failure_happens_again_where_its_cause_was_identified_and_is_a_gap_where_not(twin):
    """The cell's cube is too slippery to be lifted; the nominal twin's is not."""
    log, _, made = record(twin, changed={SLIP: 0.06})
    assert not made.success[0]
    task, backend = open_task("pick_and_place", twin), open_backend(nthread=1)
    gap = scenario_from_log(log, twin, task, name="gap", ndraw=15)
    assert try_actor(gap, twin, task, ExpertActor(task=task), 16, backend=backend).failures <= 2
    same = scenario_from_log(log, twin, task, name="again", identified=known(twin, **{SLIP: 0.06}), ndraw=15)
    tried = try_actor(same, twin, task, ExpertActor(task=task), 16, backend=backend)
    assert tried.failures >= 14
    assert try_commands(same, twin, task, 16, backend=backend).failures >= 14
    assert float(tried.failure_rate().low) > 0.6
