"""A policy sees in running worlds what a dataset of the same episodes holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from twinloop.core.contract import ENVIRONMENT, STATE
from twinloop.core.errors import InputError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate import resolve_config
from twinloop.generate.readings import environment_spec
from twinloop.generate.states import generate_states
from twinloop.rollout import EpisodeStart, ExpertActor, TrackerNoise, WorldObserver, offered_contract, run_batch
from twinloop.rollout.labelling import move_free_bodies
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.tasks.reaching import heading
from twinloop.twin import load_twin

BASE = {
    "scene": {"robot": "so101", "task": "pick_and_place"},
    "randomization": {"params": {"object/cube/position/x": [0.19, 0.25], "object/cube/yaw": [-0.7, 0.7]}},
    "rollout": {"parallel_envs": 4, "episodes_per_env": 1},
}


@pytest.fixture(scope="module")
def task():
    return open_task("pick_and_place", load_twin("so101_tabletop"))


def resolved(value):
    return resolve_config(value, where="test", folder=Path())


class Spy:
    """An expert that keeps what a policy would have seen."""

    name = "spy"

    def __init__(self, task, tracker=None):
        self.task, self.tracker, self.seen = task, tracker or TrackerNoise(), []

    def begin(self, worlds: EpisodeStart):
        act = ExpertActor(task=self.task).begin(worlds)
        observer = WorldObserver(self.task.twin, self.task, worlds, tracker=self.tracker)

        def controller(simulation):
            self.seen.append(observer.observe_worlds(simulation.state, simulation.step_index))
            return act(simulation)

        return controller


def table(twin, n, **values):
    return twin.table(n, {name: np.full(n, value) for name, value in values.items()})


def test_readings_of_running_worlds_are_those_of_the_record():
    task = open_task("pick_and_place", load_twin("so101_tabletop"))
    task.nstep = 30  # the way to the cube: every joint moves
    params = table(task.twin, 2, **{"sensor/elbow_flex/offset": 0.02, "timing/readings/delay": 0.02})
    spy = Spy(task)
    result = run_batch(
        task.twin, task, params, run_seed=1, episodes=[0, 1], actor=spy, backend=open_backend("threads", nthread=1)
    )
    seen = np.stack([entry[STATE] for entry in spy.seen], axis=1)
    np.testing.assert_array_equal(seen, result.observation)
    there = np.stack([entry[ENVIRONMENT] for entry in spy.seen], axis=1)
    np.testing.assert_array_equal(there, task.environment(result.trajectories.states[:, :-1]))


def test_a_tracker_errs_by_its_offset_and_noise_alone(task):
    names = task.environment_names
    true, half = np.zeros((2, len(names))), np.full((2, len(names)), 0.5)
    seen = TrackerNoise(noise=0.1, offset=(0.01, 0.02, 0.03)).add_errors(true, names, half)
    wanted = {"x": 0.01, "y": 0.02, "z": 0.03}
    np.testing.assert_allclose(seen, [[wanted.get(name.rpartition(".")[2], 0.0) for name in names]] * 2)


def test_a_drawn_offset_of_a_tracker_is_constant_in_an_episode_and_uniform_over_episodes(task):
    params = table(task.twin, 400)
    spy, numbers = Spy(task, TrackerNoise(offset=(0.1, 0.0, 0.0), spread=0.003)), range(400)
    task.nstep = 2
    batch = run_batch(task.twin, task, params, run_seed=1, episodes=numbers, actor=spy)
    true = task.environment(batch.trajectories.states[:, :-1])
    error = np.stack([entry[ENVIRONMENT] for entry in spy.seen], axis=1) - true
    columns = [task.environment_names.index(f"cube.{axis}") for axis in "xyz"]
    np.testing.assert_allclose(error[:, 0], error[:, 1], atol=1e-12)
    drawn = error[:, 0, columns] - [0.1, 0.0, 0.0]
    assert np.abs(drawn).max() <= 0.003
    np.testing.assert_allclose(drawn.std(axis=0), 0.003 / 3**0.5, rtol=0.1)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.15
    assert not error[:, :, task.environment_names.index("cube.heading.cos")].any()


def test_errors_that_wander_have_the_size_and_the_correlation_time_asked_for_and_keep_headings_on_the_circle(task):
    task.nstep, count = 40, 300
    params = table(task.twin, count)

    def errors(numbers):
        spy = Spy(task, TrackerNoise(wander=0.01, turn=0.2))
        batch = run_batch(task.twin, task, params.take(numbers), run_seed=1, episodes=numbers, actor=spy)
        seen = np.stack([entry[ENVIRONMENT] for entry in spy.seen], axis=1)
        return seen, task.environment(batch.trajectories.states[:, :-1])

    seen, true = errors(range(count))
    columns = {name: i for i, name in enumerate(task.environment_names)}
    error = seen - true
    for name, sd in {"cube.x": 0.01, "target.y": 0.01, "cube.z": 0.005}.items():
        # A standard deviation that is uniform up to sd has the mean square sd² / 3.
        assert np.sqrt(3.0 * (error[:, [0, 39], columns[name]] ** 2).mean()) == pytest.approx(sd, rel=0.15)
    along = error[..., columns["cube.x"]]
    assert (along[:, :-12] * along[:, 12:]).mean() / (along**2).mean() == pytest.approx(np.exp(-1.0), abs=0.12)
    pairs = error[:, 0][:, [columns["cube.x"], columns["cube.y"], columns["target.x"]]]
    assert np.abs(np.corrcoef(pairs.T) - np.eye(3)).max() < 0.2
    cos, sin = columns["cube.heading.cos"], columns["cube.heading.sin"]
    np.testing.assert_allclose(np.hypot(seen[..., cos], seen[..., sin]), 1.0)
    turned = np.angle((seen[..., cos] + 1j * seen[..., sin]) / (true[..., cos] + 1j * true[..., sin]))
    assert np.sqrt(3.0 * (turned[:, [0, 39]] ** 2).mean()) == pytest.approx(0.2, rel=0.15)
    np.testing.assert_array_equal(errors([7, 3])[0], seen[[7, 3]])


def test_bodies_are_moved_to_where_tracked_values_say(task):
    states = task.reset(table(task.twin, 5), run_seed=2, episodes=range(5))
    chance = np.random.default_rng(0)
    qpos = np.array(states.qpos)
    names = task.environment_names
    wanted = {name: chance.uniform(-0.1, 0.1, 5) for name in ("cube.x", "cube.y", "cube.z")}
    yaw = chance.uniform(-3.0, 3.0, 5)
    wanted |= {"cube.heading.cos": np.cos(yaw), "cube.heading.sin": np.sin(yaw), "target.x": np.zeros(5)}
    tracked = np.zeros((5, len(names)))
    for name, values in wanted.items():
        tracked[:, names.index(name)] = values
    tilted = qpos.copy()
    half = 0.3
    tilted[:, task.object.qpos + 3 : task.object.qpos + 7] = [np.cos(half), np.sin(half), 0, 0]  # about x
    moved = move_free_bodies(task.twin, tilted, names, tracked)
    place = moved[:, task.object.qpos : task.object.qpos + 3]
    np.testing.assert_allclose(place.T, [wanted[f"cube.{axis}"] for axis in "xyz"])
    turn = moved[:, task.object.qpos + 3 : task.object.qpos + 7]
    np.testing.assert_allclose(np.angle(np.exp(1j * (heading(turn) - yaw))), 0.0, atol=1e-12)
    np.testing.assert_allclose(
        1.0 - 2.0 * (turn[:, 1] ** 2 + turn[:, 2] ** 2), np.cos(2 * half), atol=1e-12
    )  # the tilt
    others = np.delete(np.arange(qpos.shape[1]), np.arange(task.object.qpos, task.object.qpos + 7))
    np.testing.assert_array_equal(moved[:, others], qpos[:, others])


def test_generated_frames_hold_what_a_tracker_sees(tmp_path, task):
    config = resolved({**BASE, "rollout": {**BASE["rollout"], "environment_state": True}})
    generate_states(config, tmp_path / "out")
    reader = DatasetReader(tmp_path / "out")
    assert reader.info["features"][ENVIRONMENT]["names"] == list(task.environment_names)
    there = reader.array(0, ENVIRONMENT)
    np.testing.assert_allclose(there, task.environment(reader.states(0)[:-1]), atol=1e-6)
    plain = resolved(BASE)
    assert "environment_state" not in plain.model_dump_json()
    assert plain.hash != config.hash


def test_a_contract_offers_what_the_twin_and_the_task_have(task):
    offered = offered_contract(task.twin, task, cameras={"front": (96, 128)})
    assert offered.environment == task.environment_names
    assert offered.action == task.twin.units
    assert offered.cameras == {"front": (96, 128)}


def test_a_task_without_a_tracker_says_so():
    class Blind:
        name = "blind"

    with pytest.raises(InputError, match="The task blind has no tracked values"):
        environment_spec(Blind())
