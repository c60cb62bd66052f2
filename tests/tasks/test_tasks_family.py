"""What holds of every task of the library, on every twin that it is listed for."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.checks.task import RandomActor, StillActor, draw_worlds
from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.randomize import section_plan
from twinloop.rollout.actor import EpisodeStart, ExpertActor
from twinloop.rollout.labelling import require_labels
from twinloop.simulate import open_backend, rollout
from twinloop.simulate.protocol import state_columns
from twinloop.tasks import open_task
from twinloop.tasks.protocol import has_expert, has_labels, has_phases, has_progress, has_tracked_values
from twinloop.tasks.reactive import ReactiveExpert
from twinloop.twin import load_twin
from twinloop.twin.load import library_names, read_spec

SEED, EPISODES = 11, range(10)
LARGE, FEWER = 60, 3  # degrees of freedom of cloth, cables and granules, whose worlds are slow, and number of these


def list_pairs():
    """Every task with every twin that has settings for it; beyond one twin per task and robot type, tests are slow."""
    pairs = [("so101_tabletop", "pick_and_place"), ("panda_tabletop", "pick_and_place")]
    pairs += [(name, task) for name in library_names() for task in read_spec(name).task]
    tasks, robots = set(), set()
    for twin, task in pairs:
        robot = read_spec(twin).robot.type
        marks = [pytest.mark.slow] if task in tasks and robot in robots else []
        tasks.add(task)
        robots.add(robot)
        yield pytest.param((twin, task), id=f"{twin}-{task}", marks=marks)


@pytest.fixture(scope="module", params=list_pairs())
def task(request):
    twin, name = request.param
    try:
        return open_task(name, load_twin(twin))
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def params(task):
    numbers = EPISODES[: FEWER if task.twin.model.nv > LARGE else None]
    return draw_worlds(task.twin, "nominal", numbers, SEED)


@pytest.fixture(scope="module")
def initial(task, params):
    return task.reset(params, run_seed=SEED, episodes=EPISODES[: params.nworld])


def run(task, params, initial, actions):
    return rollout(open_backend("threads"), task.twin, params, initial, actions, task.nstep)


def begin(task, params, initial, actor):
    numbers = np.array(EPISODES[: params.nworld])
    return actor.begin(EpisodeStart(numbers=numbers, params=params, initial=initial, run_seed=SEED))


@pytest.fixture(scope="module")
def acted(task, params, initial):
    """The worlds under the task's expert; under random commands if it has none."""
    actor = ExpertActor(task=task) if has_expert(task) else RandomActor(twin=task.twin)
    return run(task, params, initial, begin(task, params, initial, actor))


@pytest.fixture(scope="module")
def expert(task, acted):
    if not has_expert(task):
        pytest.skip("the task has no expert")
    return acted


def test_a_world_is_a_function_of_its_episode_alone(task, params, initial):
    rows = np.array([2, 0])
    alone = task.reset(params.take(rows), run_seed=SEED, episodes=[2, 0])
    for field in ("qpos", "qvel", "mocap_pos", "mocap_quat", "command"):
        np.testing.assert_array_equal(getattr(alone, field), getattr(initial, field)[rows])
    other = task.reset(params, run_seed=SEED + 1, episodes=EPISODES[: params.nworld])
    assert not np.array_equal(other.qpos, initial.qpos)


def test_worlds_begin_within_the_joints_limits_even_when_all_is_drawn(task):
    plan = section_plan("default", task.twin, run_seed=SEED, episodes=len(EPISODES), where="", named=dict)
    begun = task.reset(plan.draw(EPISODES, nstep=task.nstep), run_seed=SEED, episodes=EPISODES)
    model = task.twin.model
    limited = np.flatnonzero(model.jnt_limited)
    qpos = begun.qpos[:, model.jnt_qposadr[limited]]
    low, high = model.jnt_range[limited].T
    assert (qpos >= low - 1e-9).all()
    assert (qpos <= high + 1e-9).all()
    assert np.isfinite(begun.command).all()


def test_an_experts_commands_depend_on_their_world_alone(task, params, initial, expert):
    rows = np.array([2])
    some = initial.take(rows)
    alone = run(task, params.take(rows), some, task.expert(some))
    np.testing.assert_array_equal(alone.states[0], expert.states[2])


def test_the_expert_succeeds(task, expert):
    assert task.success(expert.states)[:, -1].mean() >= 0.9


def test_nothing_or_chance_does_not_succeed(task, params, initial):
    half = np.arange((params.nworld + 1) // 2)
    params, initial = params.take(half), initial.take(half)
    for actor in (StillActor(), RandomActor(twin=task.twin)):
        states = run(task, params, initial, begin(task, params, initial, actor)).states
        assert task.success(states).any(axis=1).mean() <= 0.05


def test_an_expert_without_memory_succeeds_too(task):
    """It reads the joints as a policy does, and believes in nominal parameters, as when it teaches."""
    if not has_labels(task):
        pytest.skip("the task has no expert without memory")
    nominal = task.twin.table(len(EPISODES))
    for worlds in ("nominal", "default"):
        made = draw_worlds(task.twin, worlds, range(len(EPISODES)), SEED)
        begun = task.reset(made, run_seed=SEED, episodes=EPISODES)
        if isinstance(task.expert(begun), ReactiveExpert):
            pytest.skip("it is the task's expert, which has a test")
        teacher = task.memoryless_expert(begun, made, believed=nominal)
        rate = task.success(run(task, made, begun, teacher).states)[:, -1].mean()
        if rate < 0.9 and (task.twin.name, task.name) == ("ur5e_tabletop", "pick_and_place"):
            pytest.xfail("the cube fills as much of the gripper as its opening after a release: 8 and 6 of 10")
        assert rate >= 0.9, worlds


def test_a_task_without_an_expert_names_the_next_step(task, params, initial):
    if has_expert(task):
        pytest.skip("the task has an expert")
    for use in (
        lambda: begin(task, params, initial, ExpertActor(task=task)),
        lambda: require_labels(task, task.twin, None),
    ):
        with pytest.raises(InputError, match=f"The task {task.name} has no scripted expert.*twinloop reinforce"):
            use()


def test_success_and_progress_are_functions_of_states_up_to_each_moment(task, acted):
    states, kept = acted.states, acted.states.copy()
    success = task.success(states)
    assert success.shape == states.shape[:2]
    half = task.nstep // 2
    np.testing.assert_array_equal(task.success(states[1:3, :half]), success[1:3, :half])
    if has_progress(task):
        progress = task.progress(states)
        assert ((progress >= 0) & (progress <= 1)).all()
        assert (progress[success] == 1).all()
    if has_tracked_values(task):
        seen = task.environment(states)
        assert seen.shape == (*states.shape[:2], len(task.environment_names))
        np.testing.assert_array_equal(task.environment(states[2, 9]), seen[2, 9])
    np.testing.assert_array_equal(states, kept)


def test_states_that_are_not_finite_are_no_success(task, acted):
    states = acted.states.copy()
    states[:, -1, state_columns(task.twin.model, 2)] = np.nan
    assert not task.success(states)[:, -1].any()


def test_phases_begin_in_order_and_success_has_no_failure(task, acted):
    if not has_phases(task):
        pytest.skip("the task explains nothing")
    fps, done = task.twin.control_hz, task.success(acted.states)[:, -1]
    for states, succeeded in zip(acted.states, done, strict=True):
        starts = [start for _, start in task.phases(states, fps) if start is not None]
        assert starts == sorted(starts)
        assert (task.failure(states, fps) is None) == succeeded
    assert task.failure(acted.states[0, :5], fps) is not None
