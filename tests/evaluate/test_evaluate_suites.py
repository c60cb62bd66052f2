"""Suites as data: their expansion for a twin, and errors in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.evaluate.suite import builtin_suites, open_suite, parse_suite, read_suite
from twinloop.evaluate.variants import with_contact_sensors
from twinloop.evaluate.worlds import PlannedSuite, concatenate_tables, expand_suite
from twinloop.randomize import Plan, default_draws
from twinloop.tasks import open_task
from twinloop.twin import load_twin


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


@pytest.fixture(scope="module")
def task(twin):
    return open_task("pick_and_place", twin)


def suite(twin, task, images=False, **said):
    return expand_suite(parse_suite({"name": "own", **said}, where="own.yaml"), twin, task, images=images)


def test_every_axis_with_a_default_range_has_two_slices_at_its_ends(twin, task):
    made = expand_suite(open_suite("axes"), twin, task, images=True)
    ranged = [param for param in twin.params.values() if param.default_range is not None]
    assert [item.name for item in made.slices] == [f"{p.name}:{end}" for p in ranged for end in ("low", "high")]
    for low, high, param in zip(made.slices[::2], made.slices[1::2], ranged, strict=True):
        ends = [item.values[param.name] for item in (low, high)]
        assert ends == [float(param.absolute(end, param.op)) for end in param.default_range]
    bare = expand_suite(open_suite("axes"), twin, task)
    seen = {p.name for p in ranged if p.quantity.visual or p.quantity.device in ("camera", "depth", "lidar")}
    assert {name for item in bare.slices for name in item.values}.isdisjoint(seen)
    assert len(bare.slices) == 2 * (len(ranged) - len(seen))


def test_pairs_take_all_four_ends_of_each_two_axes(twin, task):
    made = suite(twin, task, pairs=["actuator/*/delay", "object/cube/mass", "joint/*/damping"])
    assert len(made.slices) == 3 * 4
    item = next(s for s in made.slices if s.name == "actuator/*/delay:high|object/cube/mass:low")
    assert set(item.values) == {*(f"actuator/{name}/delay" for name in twin.robot.joints), "object/cube/mass"}
    assert item.values["object/cube/mass"] == twin.params["object/cube/mass"].default_range[0]


def test_worlds_are_functions_of_seed_slice_and_number_alone(twin, task):
    said = [{"name": "a", "set": {"object/cube/mass": 0.05}}, {"name": "b"}]
    made, turned = suite(twin, task, slices=said), suite(twin, task, slices=said[::-1])
    (a, b), other = made.slices, turned.slices[1]
    rows = made.draw_table(a, a.get_episode_numbers([0, 1, 2]), run_seed=3, nstep=4)
    again = turned.draw_table(other, other.get_episode_numbers([2]), run_seed=3, nstep=4)
    np.testing.assert_array_equal(rows.values[2], again.values[0])
    assert (rows["object/cube/mass"] == 0.05).all()
    assert len(np.unique(rows["object/cube/position/x"])) == 3
    moved = {name for name in twin.find_changed_params(rows) if not name.startswith("object/")}
    assert not moved  # nominal physics
    both = concatenate_tables([rows, made.draw_table(b, b.get_episode_numbers([0, 1]), run_seed=3, nstep=4)])
    assert both.nworld == 5
    assert both.seeds.episodes.tolist() == [*a.get_episode_numbers([0, 1, 2]), *b.get_episode_numbers([0, 1])]
    assert rows["object/cube/position/x"][0] != both["object/cube/position/x"][3]
    assert (made.draw_table(a, a.get_episode_numbers([0]), run_seed=4, nstep=4).values != rows.values[0]).any()


def test_a_suite_of_its_own_sets_draws_declares_and_replaces(twin, task, tmp_path):
    text = """
name: mine
episodes: 3
declare:
  - {name: "push/{hand}/force", low: 0, high: 9, source: test}
slices:
  - {name: pushed, set: {"push/{hand}/force": 2.0}, episodes: 5}
  - {name: slippery, draw: {physics: {friction_coefficient: [0.2, 0.3]}}}
  - {name: can, object: {shape: cylinder, size: 0.02, mass: 0.07}}
"""
    (tmp_path / "mine.yaml").write_text(text)
    made = expand_suite(read_suite(tmp_path / "mine.yaml"), twin, task)
    assert [item.episodes for item in made.slices] == [5, 3, 3]
    assert made.episodes == 11
    pushed, slippery, can = made.slices
    assert made.draw_table(pushed, pushed.get_episode_numbers([0]), run_seed=0, nstep=4)["push/gripper/force"] == 2.0
    drawn = made.draw_table(slippery, slippery.get_episode_numbers(range(9)), run_seed=0, nstep=4)[
        "object/cube/friction/slide"
    ]
    assert ((drawn >= 0.2) & (drawn <= 0.3)).all()
    assert len(set(drawn)) == 9
    model = made.open_variant(can).model
    assert model.body("cube").mass[0] == pytest.approx(0.07)
    assert model.geom("cube").size[1] == pytest.approx(twin.model.geom_aabb[twin.model.geom("cube").id, 5], rel=1e-3)
    assert made.open_variant(pushed) is made.twin
    assert made.spec.hash != open_suite("nominal").hash
    assert yaml.safe_load(yaml.safe_dump(made.spec.model_dump(mode="json"))) == made.spec.model_dump(mode="json")


def test_the_suite_of_the_page_is_one(twin, task):
    page = (Path(__file__).parents[2] / "docs" / "guides" / "evaluation.md").read_text()
    text = page.split("```yaml\n")[1].split("```")[0]
    made = expand_suite(parse_suite(yaml.safe_load(text), where="docs/guides/evaluation.md"), twin, task)
    assert len(made.slices) == 3 + 2 * 6 + 4
    for item in made.slices[:2]:
        assert made.draw_table(item, item.get_episode_numbers([0]), run_seed=0, nstep=2).nworld == 1
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and line.count("|") == 4}
    assert set(builtin_suites()) <= listed


def test_slices_that_a_twin_cannot_have_are_left_out_of_what_comes_with_us_and_refused_in_ones_own(twin, task):
    made = expand_suite(builtin_suites()["unseen"], twin, task)
    assert [line for line in made.left_out if "only the appearance" in line]
    assert "dark" not in {item.name for item in made.slices}
    assert "dark" in {item.name for item in expand_suite(builtin_suites()["unseen"], twin, task, images=True).slices}
    with pytest.raises(UnknownNameError, match="object/cube/masse"):
        suite(twin, task, slices=[{"name": "a", "set": {"object/cube/masse": 1.0}}])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"slices": [{"name": "a"}, {"name": "a"}]}, "two slices have the name a"),
        ({"slices": [{"name": "a b"}]}, "String should match"),
        ({"slices": [{"name": "a", "sett": {}}]}, "Nearest existing: set"),
        ({}, "the suite is empty: give it slices, axes, pairs or scenarios"),
        ({"pairs": ["object/cube/mass"]}, "pairs needs at least two names"),
        ({"slices": [{"name": "a", "set": {"timing/command/jitter": "high"}}]}, "has no default range"),
        ({"slices": [{"name": "a", "set": {"object/cube/mass": -1.0}}]}, "slice a"),
        ({"axes": ["timing/*"]}, "axis 'timing/\\*'"),
        ({"scenarios": "*"}, "no scenarios none matches"),
        ({"slices": [{"name": "a", "draw": {"physics": {"object_mas": [0.1, 0.2]}}}]}, "object_mass"),
    ],
)
def test_what_is_wrong_with_a_suite_is_named(twin, task, said, words):
    with pytest.raises(InputError, match=words):
        made = suite(twin, task, **said)
        made.draw_table(made.slices[0], made.slices[0].get_episode_numbers([0]), run_seed=0, nstep=1)


def test_unknown_suites_slices_and_numbers_are_named(twin, task):
    with pytest.raises(UnknownNameError, match=r"nomnal.*nominal"):
        open_suite("nomnal")
    made = expand_suite(open_suite("latency"), twin, task)
    with pytest.raises(UnknownNameError, match="late_\\*"):
        made.select_slices(["late_*"])
    assert len(made.select_slices(["command_*"]).slices) == 5
    with pytest.raises(InputError, match="0 episodes per slice"):
        made.with_episodes(0)


def test_sensors_of_contacts_change_no_bit_of_the_motion(twin):
    from twinloop.simulate import InitialState, open_backend, rollout

    seen = with_contact_sensors(twin)
    commands = np.tile(twin.home()[1], (1, 12, 1))
    commands[:, :, 1] -= 1.0  # the arm goes down to the table
    runs = [
        rollout(open_backend("reference"), made, made.table(1), InitialState.home(made, 1), commands, 12, record=record)
        for made, record in ((twin, ()), (seen, ("sensordata",)))
    ]
    np.testing.assert_array_equal(runs[0].states, runs[1].states)
    assert runs[1].records["sensordata"].shape == (1, 13, 6)
    assert seen.hash == twin.hash


def test_a_planned_suite_has_the_worlds_of_its_plan_at_the_seed_of_the_evaluation(twin, task):
    plan = Plan(twin=twin, run_seed=1, draws=tuple(default_draws(twin)))
    planned = PlannedSuite.of(plan, name="taught", episodes=4)
    [item] = planned.slices
    made = planned.create_worlds(item, np.arange(4), twin=twin, task=task, run_seed=5)
    drawn = replace(plan, run_seed=5).draw(made.numbers.tolist(), nstep=task.nstep)
    np.testing.assert_array_equal(made.params.values, drawn.values)
    other = PlannedSuite.of(replace(plan, draws=plan.draws[:1]), name="taught", episodes=4)
    assert other.spec.hash != planned.spec.hash
