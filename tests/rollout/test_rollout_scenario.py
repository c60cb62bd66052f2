"""A scenario reruns bit for bit, and separates its values from its twin's; changed files are refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import yaml

from twinloop.core.errors import BoundsError, InputError, UnknownNameError
from twinloop.core.params import SeedPath
from twinloop.randomize import Plan, default_draws
from twinloop.rollout import run_batch, scenario_files
from twinloop.rollout.scenario import Scenario
from twinloop.rollout.scenario_files import list_scenarios, read_scenario, rebase, write_scenario
from twinloop.simulate import open_backend, rollout
from twinloop.tasks import open_task
from twinloop.twin import load_twin
from twinloop.twin.spec import ParamSpec
from twinloop.twin.variant import declare_params

STEPS = 12


@pytest.fixture(scope="module")
def world():
    twin = load_twin("so101_tabletop")
    task = open_task("pick_and_place", twin)
    task.nstep = STEPS
    plan = Plan(twin=twin, run_seed=9, draws=tuple(default_draws(twin)))
    made = run_batch(
        twin, task, plan.draw([4, 5], nstep=STEPS), run_seed=9, episodes=[4, 5], backend=open_backend(nthread=1)
    )
    return twin, task, made, Scenario.of_episode(made.episode(1), twin, task, name="slipped", meaning="for tests")


def run(scenario, twin, task, n, **options):
    begun = scenario.make_worlds(n, twin=twin, task=task, **options)
    return run_batch(
        twin,
        task,
        begun.params,
        run_seed=begun.run_seed,
        episodes=begun.numbers,
        attempt=begun.attempt,
        initial=begun.initial,
        backend=open_backend(nthread=1),
    )


def test_world_zero_is_the_pinned_one_to_the_bit_and_others_have_chance_of_their_own(world):
    twin, task, made, scenario = world
    varied = run(scenario, twin, task, 3)
    assert varied.trajectories.states[0].tobytes() == made.trajectories.states[1].tobytes()
    joints = varied.initial.qpos[:, twin.joint_qpos]
    assert np.abs(joints[1:] - joints[0]).max() > 1e-4  # the reset's joint noise
    assert (varied.initial.mocap_pos == varied.initial.mocap_pos[0]).all()
    held = run(scenario, twin, task, 3, random_numbers="held")
    assert (held.trajectories.states == held.trajectories.states[0]).all()


def test_the_stored_commands_give_the_stored_states(world):
    twin, task, made, scenario = world
    begun = scenario.make_worlds(twin=twin, task=task)
    again = rollout(
        open_backend("reference"), twin, begun.params, begun.initial, scenario.commands[None], scenario.nstep
    )
    assert again.states[0].tobytes() == made.trajectories.states[1].tobytes()


def test_a_changed_placement_moves_what_it_places_and_nothing_else(world):
    twin, task, _, scenario = world
    there = scenario.make_worlds(
        2, twin=twin, task=task, random_numbers="held", values={"object/cube/position/x": [0.2, 0.25]}
    )
    row = task.object.qpos
    assert there.initial.qpos[:, row] == pytest.approx([0.2, 0.25], abs=1e-12)
    rest = np.delete(there.initial.qpos, [row, row + 2], axis=1)  # the table may be tilted
    assert (rest == np.delete(np.tile(scenario.initial.qpos, (2, 1)), [row, row + 2], axis=1)).all()
    assert (there.initial.command == scenario.initial.command).all()


def test_draws_come_after_the_world_itself_and_a_value_set_holds_in_all(world):
    twin, task, _, scenario = world
    column = scenario.params.names.index("object/cube/mass")
    draws = np.tile(scenario.params.values, (2, 1))
    draws[:, column] = [0.03, 0.06]
    uncertain = dataclasses.replace(scenario, draws=draws)
    own = float(scenario.params["object/cube/mass"][0])
    assert uncertain.make_worlds(4, twin=twin, task=task).params["object/cube/mass"].tolist() == [own, 0.03, 0.06, 0.03]
    certain = uncertain.make_worlds(3, twin=twin, task=task, uncertain=False)
    assert (certain.params.values == scenario.params.values).all()
    told = uncertain.make_worlds(3, twin=twin, task=task, values={"object/cube/mass": 0.05})
    assert (told.params["object/cube/mass"] == 0.05).all()


def test_joints_of_a_log_stand_where_each_draws_encoders_put_them(world):
    twin, task, _, scenario = world
    name = "sensor/elbow_flex/offset"
    readings = np.linspace(-0.2, 0.2, len(twin.robot.joints))
    logged = dataclasses.replace(scenario, readings=readings)
    begun = logged.make_worlds(3, twin=twin, task=task, values={name: np.array([0.0, 0.01, 0.02])})
    elbow = twin.robot.joints.index("elbow_flex")
    scale = begun.params["sensor/elbow_flex/scale"]
    assert begun.initial.qpos[:, twin.joint_qpos[elbow]] == pytest.approx([0, 0.01, 0.02] + scale * readings[elbow])
    assert (begun.initial.command == scenario.initial.command).all()


def test_files_give_back_the_same_world(world, tmp_path):
    _, _, _, scenario = world
    write_scenario(scenario, tmp_path / "slipped")
    again = read_scenario(tmp_path / "slipped")
    assert again.hash == scenario.hash
    assert again.non_nominal_values == scenario.non_nominal_values
    assert set(again.arrays) == set(scenario.arrays)
    assert all((again.arrays[key] == value).all() for key, value in scenario.arrays.items())
    with pytest.raises(InputError, match="holds a scenario already"):
        write_scenario(scenario, tmp_path / "slipped")
    text = (tmp_path / "slipped/scenario.yaml").read_text()
    (tmp_path / "slipped/scenario.yaml").write_text(text.replace("meaning: for tests", "meaning: other words"))
    assert read_scenario(tmp_path / "slipped").meaning == "other words"
    assert list_scenarios(tmp_path) == [tmp_path / "slipped"]
    assert list_scenarios(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("success: ", "success: !!python/object/apply:os.system [true] #", "the tag .* is not allowed"),
        ("schema: 1", "schema: 2", "schema"),
        ("name: slipped", "name: ../../slipped", "is not a valid scenario name"),
        ("steps: 12", "steps: 11", "was changed after it was stored"),
        ("steps: 12", "stepps: 12", "Nearest existing: steps"),
        ("attempt: 0", "attempt: -3", "chance.attempt"),
        ("evidence: {}", "evidence: {rate: 0.9}", "Only `meaning` may be edited"),
    ],
)
def test_a_changed_or_hostile_file_is_refused(world, tmp_path, old, new, said):
    folder = write_scenario(world[3], tmp_path / "slipped")
    text = (folder / "scenario.yaml").read_text()
    assert old in text
    (folder / "scenario.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=said):
        read_scenario(folder)


def test_a_parameter_edited_by_hand_names_the_command_that_tries_it(world, tmp_path):
    folder = write_scenario(world[3], tmp_path / "slipped")
    said = yaml.safe_load((folder / "scenario.yaml").read_text())
    said["parameters"]["object/cube/mass"] = 0.5
    (folder / "scenario.yaml").write_text(yaml.safe_dump(said))
    with pytest.raises(InputError, match="counterfactual slipped --change 'object/cube/mass=0.5'"):
        read_scenario(folder)


def test_arrays_with_pickles_bombs_or_gaps_are_refused(world, tmp_path, monkeypatch):
    folder = write_scenario(world[3], tmp_path / "slipped")
    with np.load(folder / "arrays.npz") as file:
        arrays = dict(file)
    for bad, said in [
        ({"qpos": np.array([{}], dtype=object)}, "qpos.npy holds an array of objects, which could run any code"),
        ({"qpos": arrays["qpos"] * np.nan}, "the array qpos has values that are not finite"),
        ({"params": arrays["params"][:-1]}, "parameters"),
        ({"qvel": arrays["qvel"] + 1}, "was changed after it was stored"),
    ]:
        np.savez(folder / "arrays.npz", **{**arrays, **bad})
        with pytest.raises(InputError, match=said):
            read_scenario(folder)
    np.savez(folder / "arrays.npz", **{key: value for key, value in arrays.items() if key != "qvel"})
    with pytest.raises(InputError, match="lacks qvel"):
        read_scenario(folder)
    monkeypatch.setattr(scenario_files, "_MOST_BYTES", 2**21)
    np.savez_compressed(folder / "arrays.npz", **arrays, more=np.zeros(2**19))
    with pytest.raises(InputError, match="unpacks to 4 MiB; at most 2 are read"):
        read_scenario(folder)
    (folder / "arrays.npz").unlink()
    with pytest.raises(InputError, match="does not exist"):
        read_scenario(folder)
    with pytest.raises(InputError, match=r"holds no scenario\.yaml"):
        read_scenario(tmp_path)


def test_another_version_of_the_twin_is_refused_until_it_is_moved_over(world):
    twin, task, _, scenario = world
    worn = declare_params(twin, [ParamSpec(name="joint/wrist_roll/stiction", nominal=1.5, source="test")])
    worn = dataclasses.replace(worn, hash="f" * 64)
    with pytest.raises(InputError, match="re-based|Move it with"):
        scenario.open(worn)
    moved = rebase(scenario, worn, task)
    assert moved.moved == {"joint/wrist_roll/stiction": (1.0, 1.5)}
    assert "joint/wrist_roll/stiction 1 → 1.5" in moved.text
    assert moved.world.non_nominal_values == scenario.non_nominal_values
    assert moved.world.params["joint/wrist_roll/stiction"] == 1.5
    assert (moved.world.initial.qpos == scenario.initial.qpos).all()
    assert moved.world.open(worn)[0] is worn


def test_a_twin_that_lacks_what_the_world_is_about_is_refused_with_the_difference(world):
    twin, task, _, scenario = world
    params = {name: param for name, param in twin.params.items() if name != "object/cube/mass"}
    lacking = dataclasses.replace(twin, params=params, hash="f" * 64)
    with pytest.raises(InputError, match=r"it has no parameter object/cube/mass \(stored: 0\.\d+\)"):
        rebase(scenario, lacking, task)
    heavy = dataclasses.replace(params["object/cube/size"], low=1.5, high=2.0)
    bounded = dataclasses.replace(twin, params={**twin.params, "object/cube/size": heavy}, hash="f" * 64)
    with pytest.raises(InputError, match="object/cube/size = .* is outside its bounds"):
        rebase(scenario, bounded, task)


def test_what_cannot_be_pinned_or_run_says_so(world):
    twin, task, made, scenario = world
    episode = made.episode(0)
    with pytest.raises(InputError, match="was made with so101_tabletop"):
        Scenario.of_episode(episode, dataclasses.replace(twin, hash="f" * 64), task, name="other")
    with pytest.raises(InputError, match="cannot be stored as a scenario"):
        Scenario.of_episode(dataclasses.replace(episode, states=np.empty((0, 0))), twin, task, name="other")
    with pytest.raises(InputError, match="at least one"):
        scenario.make_worlds(0, twin=twin, task=task)
    with pytest.raises(UnknownNameError, match="object/cube/mass"):
        scenario.make_worlds(twin=twin, task=task, values={"object/cube/mas": 0.1})
    with pytest.raises(BoundsError, match="object/cube/mass = 50 kg"):
        scenario.make_worlds(twin=twin, task=task, values={"object/cube/mass": 50})


def test_a_cluttered_and_tilted_scene_is_pinned_to_the_bit_and_its_clutter_stays():
    twin = load_twin("examples/so101_clutter.yaml")
    task = open_task("pick_and_place", twin)
    task.nstep = 3
    given = {"geom/table/rotation/x": 0.01, "geom/table/position/z": 0.01, "scene/distractors/count": 2.0}
    table, backend = twin.table(1, given).with_seeds(SeedPath.of(3, [0])), open_backend(nthread=1)
    episode = run_batch(twin, task, table, run_seed=3, episodes=[0], backend=backend).episode(0)
    scenario = Scenario.of_episode(episode, twin, task, name="cluttered")
    begun = scenario.make_worlds(twin=twin, task=task)
    ran = rollout(backend, twin, begun.params, begun.initial, episode.commands[None], len(episode.commands))
    assert ran.states[0].tobytes() == np.ascontiguousarray(episode.states).tobytes()
    assert twin.scene is not None
    places = twin.scene.qpos[twin.scene.clutter][:, None] + np.arange(7)
    like = scenario.make_worlds(3, twin=twin, task=task)
    assert like.params.seeds is not None
    assert like.params.seeds.episodes.tolist() == [0, 1, 2]  # chance of sensors and commands is varied
    np.testing.assert_array_equal(like.initial.qpos[:, places], np.tile(scenario.initial.qpos[:, places], (3, 1, 1)))
