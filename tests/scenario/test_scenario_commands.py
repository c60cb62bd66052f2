"""The commands on real worlds: exit codes, stored data, refusals, and planted causes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml

from support.releases import policy_folder
from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import SeedPath
from twinloop.generate.config import read_config
from twinloop.release import PolicyRegistry
from twinloop.rollout import ExpertActor, run_batch
from twinloop.rollout.scenario import Scenario
from twinloop.rollout.scenario_files import read_scenario, rewrite_scenario, write_scenario
from twinloop.scenario.regress import format_stored_outcomes
from twinloop.scenario.trials import TrialOutcomes, try_actor
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.twin import load_twin
from twinloop.workflows.scenario import references
from twinloop.workflows.scenario.augment import write_plan
from twinloop.workflows.scenario.failure import RebuiltWorld, find_actor

SLIP = "object/cube/friction/slide"
TRIES = 5  # the fewest of which, where all turn, chance is below 5 %: 2⁻⁵


def pin(name, **values):
    """A world of the expert with these parameters, stored after its first steps."""
    twin = load_twin("so101_tabletop")
    task = open_task("pick_and_place", twin)
    task.nstep = 5
    table = twin.table(1, values).with_seeds(SeedPath.of(3, [0]))
    made = run_batch(twin, task, table, run_seed=3, episodes=[0], backend=open_backend(nthread=1))
    return Scenario.of_episode(made.episode(0), twin, task, name=name)


@pytest.fixture(scope="module")
def slippery():
    return pin("slippery", **{SLIP: 0.05, "object/cube/position/x": 0.24})


def said(capsys, *words):
    code = main(["scenario", *words, "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_scenario_that_succeeded_and_now_fails_fails_the_build(slippery, tmp_path, capsys):
    was = TrialOutcomes.of_outcomes("1" * TRIES, "a better one")
    write_scenario(
        replace(slippery, evidence={"expected": format_stored_outcomes("expert", was)}), tmp_path / "slippery"
    )
    code, found = said(capsys, "regress", "--scenarios", str(tmp_path))
    assert code == 1
    assert found["regressed"] == ["slippery"]
    (row,) = found["scenarios"]
    assert row["verdict"] == "regressed"
    assert row["lost"] == TRIES
    assert row["p_fell"] == pytest.approx(0.5**TRIES)


def test_the_box_lies_around_the_scenario_and_within_what_is_possible(slippery, tmp_path):
    file, box = write_plan(slippery, tmp_path / "generate.yaml", episodes=12)
    assert set(box.ranges) == {SLIP, "object/cube/position/x"}
    low, high = box.ranges["object/cube/position/x"]
    assert (low, high) == pytest.approx((0.24 - 0.125 * 0.09, 0.24 + 0.125 * 0.09))
    assert box.ranges[SLIP][0] == 0.05  # its physical bound
    config = read_config(file)
    assert config.episodes == 12
    assert config.file.rollout.environment_state
    only = write_plan(slippery, tmp_path / "only.yaml", episodes=2, only=["object/*/position/x"], width=0.0)[1]
    assert only.ranges == {"object/cube/position/x": (0.24, 0.24)}
    assert only.fixed == ("object/cube/position/x",)
    with pytest.raises(UnknownNameError, match="object/cube/position/x"):
        write_plan(slippery, tmp_path / "none.yaml", episodes=2, only=["object/cube/position/y"])
    with pytest.raises(InputError, match="--width -1"):
        write_plan(slippery, tmp_path / "none.yaml", episodes=2, width=-1)
    with pytest.raises(InputError, match="--episodes 0"):
        write_plan(slippery, tmp_path / "none.yaml", episodes=0)
    with pytest.raises(InputError, match="has only nominal parameters"):
        write_plan(replace(slippery, non_nominal=()), tmp_path / "none.yaml", episodes=2)


def test_what_is_not_there_is_named_with_what_is(slippery, tmp_path, monkeypatch):
    write_scenario(slippery, tmp_path / "slippery")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match="Nearest existing: slippery"):
        references.open_scenario("slipery", tmp_path)
    assert references.open_scenario(str(tmp_path / "slippery"), tmp_path / "elsewhere")[1].name == "slippery"
    with pytest.raises(InputError, match="holds no scenario. Make one of a failed episode"):
        references.open_scenarios((), tmp_path / "none")
    with pytest.raises(InputError, match="some/where is not the folder of a LeRobot dataset"):
        references.locate_episode("some/where:3")
    with pytest.raises(InputError, match="no workspace here to look it up in"):
        references.locate_episode("0a1b2c")
    with pytest.raises(InputError, match="not a policy's folder"):
        references.policy_folder("champion")


def test_questions_without_sense_end_with_two_and_store_nothing(slippery, tmp_path, capsys):
    write_scenario(slippery, tmp_path / "slippery")
    where = ["--scenarios", str(tmp_path), "--policy", "expert"]
    for words, text in [
        (["counterfactual", "slippery"], "Give the change"),
        (["counterfactual", "slippery", "--change", SLIP, "--tries", "1"], "is not understood"),
        (["ablate", "slippery", "--tries", "0"], "give at least one"),
        (["ablate", "slippery", "--term", "frictoin", "--tries", "1"], "joint friction"),
        (["regress"], "has no stored outcomes to compare with"),
        (["show", "slipery"], "slippery"),
    ]:
        code, found = said(capsys, *words, *(where if words[0] != "show" else where[:2]))
        assert code == 2, words
        assert text in found["message"], words
    code, found = said(capsys, "show", "slippery", "--scenarios", str(tmp_path))
    assert (code, found["parameters"][SLIP]) == (0, 0.05)
    code, found = said(capsys, "list", "--scenarios", str(tmp_path))
    assert [one["scenario"] for one in found["scenarios"]] == ["slippery"]


@pytest.mark.slow
def test_the_cause_that_was_planted_in_a_world_comes_first(tmp_path, capsys):
    """One world each with commands that are late, a cube that slips, joints that stick; all else a little off."""
    off = {"object/cube/mass": 0.04, "joint/elbow_flex/damping": 0.7, "sensor/wrist_flex/offset": 0.01}
    twin = load_twin("so101_tabletop")
    delays = {name: 0.28 for name in twin.params if name.startswith("actuator/") and name.endswith("/delay")}
    stuck = {name: 0.5 for name in twin.params if name.startswith("joint/") and name.endswith("/frictionloss")}
    for cause, values in (("command delay", delays), ("object friction", {SLIP: 0.06}), ("joint friction", stuck)):
        scenario = pin("planted", **{**off, **values})
        folder = tmp_path / cause.replace(" ", "-")
        write_scenario(scenario, folder / "planted")
        code, found = said(capsys, "ablate", "planted", "--policy", "expert", "--scenarios", str(folder))
        assert code == 0
        first = found["terms"][0]
        assert first["term"] == cause
        assert first["needed"] == 1.0
        assert first["verdict"] == "needed and enough"
        assert found["base"]["failures"] == 16
        assert found["bare"]["failures"] == 0


@pytest.mark.slow
def test_a_failure_of_a_dataset_becomes_a_scenario_with_its_evidence(tmp_path, capsys):
    plan = {
        "scene": {"robot": "so101", "task": "pick_and_place"},
        "randomization": {"default": True, "params": {SLIP: [0.05, 0.09]}},
        "rollout": {"parallel_envs": 4},
    }
    (tmp_path / "hard.yaml").write_text(yaml.safe_dump(plan))
    data, home = str(tmp_path / "data"), str(tmp_path / "scenarios")
    assert main(["generate", str(tmp_path / "hard.yaml"), "--output", data, "--keep", "all", "--workers", "1"]) in (
        0,
        1,
    )
    capsys.readouterr()
    words = ["from-failure", f"{data}:0", "--scenarios", home, "--tries", "8", "--name"]
    code, found = said(capsys, *words, "slips")
    assert code == 0
    assert found["bit_for_bit"] is True
    assert found["expected"]["failures"] >= 6
    scenario = read_scenario(tmp_path / "scenarios/slips")
    twin, task = scenario.open()
    again = try_actor(scenario, twin, task, ExpertActor(task=task), 8, backend=open_backend("reference"))
    assert again.outcomes == found["expected"]["outcomes"]  # on another backend too
    assert scenario.reason.split(":")[0] in ("grasp_missed", "dropped", "pushed_away")
    assert said(capsys, *words, "slips")[0] == 2  # the name is taken
    code, found = said(capsys, "regress", "--scenarios", home)
    assert (code, found["scenarios"][0]["verdict"]) == (0, "unchanged")
    better = replace(
        scenario, evidence={"expected": format_stored_outcomes("expert", TrialOutcomes.of_outcomes("1" * 8))}
    )
    rewrite_scenario(better, tmp_path / "scenarios/slips")
    assert said(capsys, "regress", "--scenarios", home)[0] == 1
    assert said(capsys, "regress", "--scenarios", home, "--accept")[0] == 0
    assert said(capsys, "regress", "--scenarios", home)[0] == 0
    what = f"{SLIP}=0.06..0.5:4"
    code, found = said(capsys, "counterfactual", "slips", "--change", what, "--tries", "8", "--refine", "2",
                       "--scenarios", home, "--output", str(tmp_path / "cf"))  # fmt: skip
    assert code == 0
    (crossing,) = found["crossings"]
    assert 0.05 < crossing["low"] < crossing["high"] < 0.36
    assert found["contrasts"][-1]["success_rate"] == 1.0
    assert np.isfinite(found["contrasts"][-1]["difference_low"])


def test_who_acted_is_taken_from_the_episode_where_that_policy_is_here(slippery, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = policy_folder(tmp_path / "pick", 1)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hash": "a" * 64}))

    twin = load_twin("so101_tabletop")
    task = open_task("pick_and_place", twin)

    def who(actor: str, digest: str = "") -> tuple[str, str]:
        world = replace(slippery, origin=replace(slippery.origin, actor=actor))
        made = RebuiltWorld(world=world, twin=twin, task=task, exact=None, parameters="", lines=(), policy_hash=digest)
        return find_actor(made)

    assert who(task.expert_version) == ("expert", "Actor: the task's expert, as in the episode.")
    assert who("policy:pick", "a" * 64) == (
        "pick",
        "Actor: the policy pick, as recorded in the episode; --policy selects another.",
    )
    assert who("policy:pick", "b" * 64) == (
        "",
        "The episode records the policy pick (bbbbbbbbbbbb) as its actor, which is not available here.",
    )
    assert who("policy:gone@3")[0] == ""
    with Workspace.create(tmp_path / "cell") as ws:
        PolicyRegistry(ws).add(folder, policy="a" * 64)
    monkeypatch.chdir(tmp_path / "cell")
    assert who("policy:somewhere/else", "a" * 64)[0] == "a" * 64  # by its hash, under any name
