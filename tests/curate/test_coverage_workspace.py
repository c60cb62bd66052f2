"""In a workspace, sides, joint ranges and similar clips are found without names; real parameters come from files."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from support.covered import AWAY, MASS, X, Y, generate_file, write_generated
from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.curate.recording import open_recordings
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.workflows.coverage.coverage import resolve_clip
from twinloop.workflows.coverage.sides import SideEpisode, find_substitute_twin

FEW = 24


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """A workspace with a real batch in ±100 without a calibration, and a simulated one that leaves a hole."""
    root = tmp_path_factory.mktemp("covered") / "cell"
    with Workspace.create(root, twin="so101_tabletop") as workspace:
        workspace.add(write_generated(root / "data" / "real", generate_file(), episodes=FEW, seed=5, bare=True))
        workspace.add(write_generated(root / "data" / "sim", generate_file(AWAY), episodes=FEW, seed=6))
    return root


def run(capsys, *words) -> tuple[int, dict, str]:
    capsys.readouterr()
    code = main([*(str(word) for word in words), "--json"])
    said = capsys.readouterr()
    metrics = json.loads(said.out.splitlines()[-1]) if said.out else {}
    return code, metrics, " ".join(said.err.split())


def test_the_nearest_workspace_has_both_sides_and_the_twin_and_keeps_what_was_encoded(cell, capsys, monkeypatch):
    monkeypatch.chdir(cell / "data")
    code, first, said = run(capsys, "coverage")
    assert code == 0
    assert (first["real"]["episodes"], first["sim"]["episodes"]) == (FEW, FEW)
    stands = "Logs without calibration use the joint ranges of so101_tabletop, the workspace's twin"
    assert stands in said
    assert (first["encoder"]["encoded"], first["encoder"]["known"]) == (2 * FEW, 0)
    code, plan, said = run(capsys, "plan")
    assert code == int(bool(plan["targets"]) and not plan["boxes"])
    assert stands in said
    assert plan["metrics"] == first["metrics"]  # of rows that were kept
    _likes(cell, capsys)


def _likes(cell, capsys) -> None:
    """Episodes and frames as people name them; every way leads to the same clip."""
    with Workspace.open(cell) as workspace:
        names = workspace.query("SELECT episode_id FROM places WHERE batch = 'real' ORDER BY episode_index")
        third = names["episode_id"].to_pylist()[3]
        for word, frame in (("real:3", 0), ("real:3:59", 59), (third[:10], 0), (f"{third[:10]}:30", 30), (third, 0)):
            assert resolve_clip(workspace, word) == (third, frame)
        for word, error, message in (
            ("real:99", InputError, "Batch real has no episode 99; it has 24"),
            (
                "real:3:x",
                InputError,
                "--nearest real:3:x: 'x' is not a frame number. Write EPISODE or EPISODE:FRAME, such as real:3",
            ),
            ("zzzz", UnknownNameError, "episode 'zzzz'"),
            ("abc", InputError, "'abc' is too short to identify an episode"),
        ):
            with pytest.raises(error, match=re.escape(message)):
                resolve_clip(workspace, word)
    code, answer, said = run(capsys, "coverage", "--nearest", "real:3:59", "--count", "2")
    assert code == 0
    assert (answer["episode_id"], answer["frame"], answer["clips"]) == (third, 59, 2 * FEW)
    assert [row["episode_id"] in said for row in answer["nearest"]] == [True, True]
    code, _, said = run(capsys, "coverage", "--nearest", "real:3:60")
    assert code == 2
    assert "has clips from frame 0 to 59, none at frame 60" in said


@pytest.mark.parametrize("side", ["real", "sim"])
def test_an_episode_that_cannot_be_read_is_named_and_the_others_are_compared(side, tmp_path, capsys):
    for name, seed in (("real", 1), ("sim", 2)):
        write_generated(tmp_path / name, generate_file(), episodes=8, seed=seed)
    clean = run(capsys, "coverage", "--real", tmp_path / "real", "--sim", tmp_path / "sim")[1]
    file = next((tmp_path / side / "data").rglob("*.parquet"))
    table = pq.read_table(file)
    values = np.array(table["observation.state"].to_pylist(), dtype=np.float32)
    values[table["episode_index"].to_numpy() == 0] = np.nan  # the first one, which also stands for its folder
    column = pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1])
    pq.write_table(table.set_column(table.column_names.index("observation.state"), "observation.state", column), file)
    code, found, said = run(capsys, "coverage", "--real", tmp_path / "real", "--sim", tmp_path / "sim")
    assert code == 0
    assert f"episode 0 of {side} was left out, because it cannot be read: " in said
    assert (found[side]["episodes"], clean[side]["episodes"]) == (7, 8)
    values[:] = np.nan
    column = pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1])
    pq.write_table(table.set_column(table.column_names.index("observation.state"), "observation.state", column), file)
    code, _, said = run(capsys, "coverage", "--real", tmp_path / "real", "--sim", tmp_path / "sim")
    assert code == 2
    assert "can be read." in said


def test_outside_of_a_workspace_something_must_be_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for verb in ("coverage", "plan"):
        code, _, said = run(capsys, verb)
        assert code == 2
        assert "No episodes are given, and there is no workspace here. Give --real LOG --sim DATASET" in said


def test_a_twin_of_another_robot_does_not_stand_in(cell):
    with Workspace.open(cell) as workspace:
        episode = open_recordings(cell / "data" / "real", [0])[0].episode
        member = SideEpisode(episode_id="a", title="a", folder=None, success=None, params={}, load=lambda: episode)
        workspace.config["twin"] = "xl330_pendulum"
        twin, (said,) = find_substitute_twin(None, workspace, [member])
        assert twin is None
        assert "xl330_pendulum, the workspace's twin, cannot replace it: it has no joint elbow_flex, gripper" in said
        assert find_substitute_twin(None, None, [member]) == (None, [])
        named, _ = find_substitute_twin("so101_tabletop", workspace, [member])
        assert named is not None
        assert named.name == "so101_tabletop"


def test_parameters_of_reality_come_from_a_table_or_an_identify_run(cell, tmp_path, capsys):
    """By the table, half of the real cubes are heavier than any simulated one."""
    masses = np.where(np.arange(FEW) % 2, np.linspace(0.12, 0.14, FEW), np.linspace(0.03, 0.09, FEW))
    table = tmp_path / "known.csv"
    with table.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["episode", MASS])
        lines.writerows([number, f"{mass:g}"] for number, mass in enumerate(masses))
    words = ("coverage", "--workspace", cell, "--embedding", "parameters", "--axes", "object/*")
    code, metrics, said = run(capsys, *words, "--real-params", table)
    assert code == 0
    assert metrics["parameters"]["known"] == [MASS]
    assert metrics["metrics"]["uncovered_clips"] == FEW // 2
    (box,) = (hole["box"] for hole in metrics["parameters"]["holes"])
    assert box[MASS][1] > 0.099
    assert f"have {MASS} above 0.0" in said
    table.write_text(f"episode,{MASS}\n0,heavy\n")
    assert "has a value that is not a number" in run(capsys, *words, "--real-params", table)[2]
    table.write_text(f"number,{MASS}\n0,0.06\n")
    assert (
        f"has no column episode (its number or its name); it has number, {MASS}"
        in (run(capsys, *words, "--real-params", table)[2])
    )
    _identified(tmp_path / "run", 0.13)
    code, metrics, said = run(capsys, *words, "--real-params", tmp_path / "run")
    assert code == 0
    assert "256 draws of the distribution identified" in metrics["parameters"]["source"]
    assert "Of 256 draws" in said
    assert metrics["metrics"]["coverage"]["estimate"] < 0.01


def _identified(folder, mass: float) -> None:
    """The result of an identify run that is sure of the mass to 2 %."""
    from twinloop.core.distribution import ParamDistribution

    known = ParamDistribution(
        names=(MASS,),
        transforms=("log",),
        mean=np.log([mass]),
        covariance=np.array([[4e-4]]),
        low=np.array([1e-4]),
        high=np.array([10.0]),
        determined=(True,),
        clusters=8,
    )
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"distribution": known.to_json()}))


@pytest.mark.slow
def test_a_plan_goes_on_from_the_file_that_is_named(tmp_path, capsys):
    """The base file's other sections are kept, and so are its explicit ranges."""
    real = write_generated(tmp_path / "real", generate_file(), episodes=60, seed=5)
    sim = write_generated(tmp_path / "sim", generate_file(AWAY), episodes=80, seed=6)
    base = generate_file(AWAY, physics={"object_mass_g": [30, 60]}, params={X: [0.2, 0.25], Y: [-0.1, 0.1]})
    base |= {"seed": 40, "rollout": {"parallel_envs": 16, "episodes_per_env": 2}}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    words = ("plan", "--real", real, "--sim", sim, "--embedding", "parameters", "--base", tmp_path / "base.yaml")
    code, plan, _ = run(capsys, *words, "--episodes", 32, "--output", tmp_path / "next.yaml")
    assert code == 0
    made = yaml.safe_load((tmp_path / "next.yaml").read_text())
    assert made["seed"] == 41
    assert made["randomization"]["physics"] == {"object_mass_g": [30, 60]}
    assert made["randomization"]["params"][X] == [0.2, 0.25]
    assert "constraints" not in made["randomization"]
    assert made["rollout"] == {"parallel_envs": 16, "episodes_per_env": 2}
    assert "The plan renders no images" not in " ".join(plan["notes"])
    fill = write_generated(tmp_path / "fill", made, episodes=32, seed=7)
    drawn = [DatasetReader(fill).provenance(number).params for number in range(32)]
    low, high = plan["boxes"][0]["box"][Y]
    assert all(low <= row[Y] <= high and 0.2 <= row[X] <= 0.25 and 0.03 <= row[MASS] <= 0.06 for row in drawn)


@pytest.mark.slow
def test_images_of_a_camera_are_compared_and_those_of_a_hole_are_on_the_page(tmp_path, capsys):
    """Simulation never puts the cube to the left; the page shows real clips, and below the simulated ones nearest."""
    for name, right, seed in (("real", 0.1, 3), ("sim", -0.02, 4)):
        value = generate_file() | {"randomization": {"params": {X: [0.18, 0.27], Y: [-0.1, right]}}}
        value |= {"rollout": {"parallel_envs": 6}, "render": {"cameras": ["front"], "height": 96, "width": 128}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(value))
        words = ("generate", tmp_path / f"{name}.yaml", "--output", tmp_path / name, "--seed", seed, "--keep", "all")
        assert main([str(word) for word in (*words, "--workers", "1")]) == 0
    sides = ("--real", tmp_path / "real-images", "--sim", tmp_path / "sim-images", "--embedding", "classical", "--k", 1)
    code, metrics, _ = run(capsys, "coverage", *sides, "--camera", "front", "--output", tmp_path / "out")
    assert code == 0
    assert metrics["encoder"]["name"] == "images:classical"
    assert metrics["encoder"]["settings"]["camera"] == "front"
    assert metrics["holes"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "from the robot&#x27;s camera" in page or "from the robot's camera" in page
    assert "The middle image of the simulated clip nearest to each of them" in page
    assert page.count("data:image/") >= 2
    code, _, said = run(capsys, "coverage", *sides, "--camera", "nowhere")
    assert code == 2
    assert "nowhere" in said
