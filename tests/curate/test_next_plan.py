"""A planted hole is ranked first, and the planned data close it: in quick form without physics, and in full."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import yaml

from support.covered import AWAY, MASS, X, Y, generate_file, write_generated
from twinloop.cli.main import main
from twinloop.dataset.lerobot.reader import DatasetReader

PARAMETERS = ("--embedding", "parameters")


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    real = write_generated(folder / "real", generate_file(), episodes=60, seed=5)
    sim = write_generated(folder / "sim", generate_file(AWAY), episodes=80, seed=6)
    return real, sim


def run(capsys, *words) -> tuple[int, dict, str]:
    capsys.readouterr()
    code = main([*(str(word) for word in words), "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out.splitlines()[-1]), " ".join(said.err.split())


def in_hole(params) -> bool:
    return params[Y] > 0.03


@pytest.mark.slow
def test_a_planted_hole_is_ranked_first_and_the_next_run_closes_it(sides, tmp_path, capsys):
    real, sim = sides
    words = ("--real", real, "--sim", sim)
    code, plan, said = run(capsys, "plan", *words, "--episodes", 40, "--output", tmp_path / "next.yaml")
    assert re.search(r"of reality \(\d+ episodes\), \d+% \[\d+%, \d+%\] failing", said)
    assert code == 0
    first, *others = plan["holes"]
    reader = DatasetReader(real)
    inside = [in_hole(reader.provenance(clip).params) for clip in first["clips"]]  # episodes are one clip long
    assert np.mean(inside) > 0.9
    assert first["mass"] > 3 * max((hole["mass"] for hole in others), default=0.0)
    assert f"The largest is {first['mass']:.1%} of reality" in said
    assert "% explained): a regression predicts clips of the box" in said
    assert "Removed: the constraint" in said

    text = (tmp_path / "next.yaml").read_text()
    value = yaml.safe_load(text)
    assert "# Made by `twinloop plan`" in text
    assert "- episodes: 40" in text
    (box,) = value["randomization"]["boxes"]
    assert Y in box["params"]
    assert MASS not in box["params"]  # it moves nothing
    assert box["params"][Y][0] > 0.0
    assert box["params"][Y][1] >= 0.07
    assert plan["boxes"][0]["episodes"] == 40
    assert value["rollout"]["parallel_envs"] * value["rollout"]["episodes_per_env"] == 40

    fill = write_generated(tmp_path / "fill", value, episodes=40, seed=7)
    code, after, said = run(
        capsys, "coverage", *words, fill, "--output", tmp_path / "out", "--fail-if", "coverage < 0.9"
    )
    assert code == 0
    assert after["metrics"]["coverage"]["low"] > plan["metrics"]["coverage"]["estimate"]
    assert all(hole["episodes"] < 3 for hole in after["holes"])
    assert (tmp_path / "out" / "result.json").is_file()
    page = (tmp_path / "out" / "report.html").read_text()
    for title in ("How much of reality does simulation cover?", "on one map", "The parameter space"):
        assert title in page


def test_in_the_parameter_space_the_box_is_the_hole_itself(sides, capsys, tmp_path):
    real, sim = sides
    code, plan, said = run(capsys, "plan", "--real", real, "--sim", sim, *PARAMETERS)
    assert code == 0
    found = plan["boxes"][0]["box"]
    assert set(found) == {Y}
    assert found[Y] == pytest.approx([0.03, 0.1], abs=0.021)
    assert "- episodes: 128" in said


@pytest.mark.slow
def test_a_place_where_simulation_fails_is_planned_by_how_much_of_reality_is_there(sides, capsys, tmp_path):
    real, _ = sides
    sim = write_generated(
        tmp_path / "failing", generate_file(), episodes=110, seed=8, succeeds=lambda params: params[MASS] < 0.07
    )
    code, metrics, said = run(capsys, "coverage", "--real", real, "--sim", sim, *PARAMETERS, "--axes", MASS)
    assert code == 0
    assert re.search(r"Of 110 simulated episodes [2-8]\d\.\d% \[\d+\.\d%, \d+\.\d%\] succeed", said)
    assert f"They fail more often where {MASS} above 0.0" in said
    worst = [cell for cell in metrics["parameters"]["cells"] if cell["low"] >= 0.07]
    assert worst
    assert all(cell["rate"] == 0.0 and cell["rate_high"] < 0.5 for cell in worst if cell["judged"] > 4)
    _, plan, said = run(capsys, "plan", "--real", real, "--sim", sim, *PARAMETERS)
    target = next(item for item in plan["targets"] if item["kind"] == "failures")
    assert target["box"][MASS][0] == pytest.approx(0.07, abs=0.01)
    assert target["failure"] > 0.8
    reader = DatasetReader(real)
    masses = np.array([reader.provenance(i).params[MASS] for i in range(len(reader))])
    assert target["mass"] == pytest.approx(np.mean(masses >= 0.07), abs=0.1)
    assert target["weight"] == pytest.approx(target["mass"] * target["failure"])


@pytest.mark.slow
def test_where_nothing_is_missing_nothing_is_planned(sides, capsys, tmp_path):
    real, _ = sides
    sim = write_generated(tmp_path / "alike", generate_file(), episodes=150, seed=9)
    code, plan, said = run(
        capsys, "plan", "--real", real, "--sim", sim, *PARAMETERS, "--output", tmp_path / "next.yaml"
    )
    assert code == 0
    assert "Nothing is planned: there is no hole of three or more episodes" in said
    assert plan["output"] is None
    assert not (tmp_path / "next.yaml").exists()


def test_what_cannot_be_planned_is_said(sides, capsys, tmp_path):
    real, sim = sides
    (tmp_path / "there.yaml").write_text("")
    for words, message in (
        (("--output", tmp_path / "there.yaml"), "there.yaml exists. Choose another --output"),
        (("--holes", 0), "--holes 0: give 1 or more"),
        (("--embedding", "parameters", "--axes", "nothing/*"), "unknown drawn parameter 'nothing/*'"),
        (("--base", tmp_path / "there.yaml", *PARAMETERS), "there.yaml is not a generate file: it has no scene"),
    ):
        assert main(["plan", "--real", str(real), "--sim", str(sim), *(str(word) for word in words)]) == 2
        assert message.lower() in " ".join(capsys.readouterr().err.split()).lower()


@pytest.mark.slow
def test_generating_the_plan_with_physics_closes_the_hole(tmp_path, capsys):
    """SO-101 pick and place under all that is randomized by default; reality is another seed, without the hole."""
    names = {"real": (128, 22, []), "sim": (192, 11, [f"{X} < 0.225 or {Y} < 0.03"])}
    for name, (episodes, seed, constraints) in names.items():
        value = {"scene": {"robot": "so101", "task": "pick_and_place"}, "randomization": {"default": True}}
        if constraints:
            value["randomization"]["constraints"] = constraints
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(value))
        words = ["generate", tmp_path / f"{name}.yaml", "--output", tmp_path / name, "--episodes", episodes]
        assert main([str(word) for word in (*words, "--seed", seed, "--keep", "all", "--workers", "2")]) == 0
    sides = ["--real", tmp_path / "real", "--sim", tmp_path / "sim"]
    _, before, _ = run(capsys, "coverage", *sides)
    code, plan, _ = run(capsys, "plan", *sides, "--episodes", 96, "--output", tmp_path / "next.yaml")
    assert code == 0
    assert set(plan["boxes"][0]["box"]) == {X, Y}
    words = ["generate", tmp_path / "next.yaml", "--output", tmp_path / "fill", "--keep", "all", "--workers", "2"]
    assert main([str(word) for word in words]) == 0
    _, after, _ = run(capsys, "coverage", *sides, tmp_path / "fill")
    assert before["holes"][0]["episodes"] >= 8
    assert after["metrics"]["coverage"]["low"] > before["metrics"]["coverage"]["estimate"]
    assert all(hole["episodes"] < 3 for hole in after["holes"])
