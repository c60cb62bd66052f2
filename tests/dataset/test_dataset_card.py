"""The dataset card shows the most important facts first, and folds the rest."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml

from support.dataset_writer import KEPT, SPEC, planted, write_all
from twinloop.catalog import Workspace
from twinloop.catalog.label_checks import Label
from twinloop.cli.main import main
from twinloop.core.units import JointUnit, UnitMap
from twinloop.dataset.export.formats import exporter
from twinloop.dataset.folder_card import folder_card
from twinloop.dataset.lerobot.metadata import format_card
from twinloop.dataset.spec import DatasetSpec


@pytest.fixture
def spec():
    units = UnitMap(source="t", joints=(JointUnit(joint="pan", unit="deg", scale=0.0174532925, offset=0.0),))
    return DatasetSpec(name="t", robot_type="r", fps=30, joints=("pan",), units=units, config={"plan": {"seed": 7}})


def written(spec):
    return format_card(spec, episodes=1, frames=2, tasks=["Swing."], recorded=False)


def test_the_configuration_is_folded_and_whole(spec):
    folded = written(spec).split("<details>")[1].split("</details>")[0]
    assert json.loads(folded.split("```json")[1].split("```")[0]) == {"plan": {"seed": 7}}


def test_the_true_time_is_named_where_it_is_written(spec):
    assert "observation.time" not in written(spec)
    assert "`observation.time` is the true time of each step in s" in written(replace(spec, unsteady=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("cards") / "set", SPEC)


def front(text):
    return yaml.safe_load(text.split("---\n")[1])


def test_the_folders_card_counts_where_episodes_come_from(folder):
    text = folder_card(folder, repo_id="me/planted")
    assert "- source: sim × 9" in text
    assert "- twin: so101_tabletop (tttttttttttt) × 9" in text
    assert "- simulator: 4.0.0 × 9" in text
    assert "9 of 9 episodes succeeded: 100.0 % (95 % Clopper–Pearson interval 66.4 to 100.0 %)." in text
    masses = [planted(number).provenance.params["object/cube/mass"] for numbers in KEPT.values() for number in numbers]
    row = next(line for line in text.splitlines() if line.startswith("| `object.cube.mass`"))
    cells = [float(cell) for cell in row.split("|")[2:5]]
    np.testing.assert_allclose(cells, np.quantile(masses, [0, 0.5, 1]), rtol=1e-5)
    assert 'LeRobotDataset("me/planted")' in text
    assert "twinloop pull me/planted" in text
    assert front(text)["tags"] == ["LeRobot", "so101_follower", "sim"]
    assert front(text)["size_categories"] == ["n<1K"]
    assert folder_card(folder, repo_id="me/planted") == text


def test_a_card_tells_of_any_folder_and_of_what_is_passed_in(folder, tmp_path):
    exporter("lerobot").export(folder, tmp_path / "foreign")
    rows = [{"check": "physics/torque", "verdict": "bad|ugly", "episodes": 2}]
    text = folder_card(tmp_path / "foreign", name="Cubes", licence="cc-by-4.0", tables={"Quality": rows})
    assert "# Cubes\n" in text
    assert front(text)["license"] == "cc-by-4.0"
    assert "## Quality\n\n| check | verdict | episodes |\n|---|---|---|\n| physics/torque | bad\\|ugly | 2 |" in text
    assert "- source: sim × 9" in text  # the columns of the episode table came along
    assert "| `observation.state` | float32 | 3 |" in text
    assert "| elbow_flex | deg |" in text


def test_the_hub_reads_the_front_matter(folder):
    hub = pytest.importorskip("huggingface_hub")
    data = hub.DatasetCard(folder_card(folder)).data
    assert data.license == "other"
    assert data.task_categories == ["robotics"]


def test_the_command_writes_it_with_what_the_workspace_knows(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "ws/data/set")
    with Workspace.create(tmp_path / "ws") as workspace:
        workspace.add(tmp_path / "ws/data/set")
        episodes = workspace.query("SELECT episode_id FROM episodes ORDER BY episode_id").to_pylist()
        said = {"kind": "success", "value": "yes", "source": "hand", "author": "me"}
        workspace.label([Label(episode_id=row["episode_id"], **said) for row in episodes[:4]])
    assert main(["export", "card", str(tmp_path / "ws/data/set"), "--set", "repo_id=me/x", "--json"]) == 0
    assert "Labels" in json.loads(capsys.readouterr().out.splitlines()[-1])["sections"]
    assert "| success | hand | yes | 4 |" in (tmp_path / "ws/data/set/README.md").read_text()
    with Workspace.open(tmp_path / "ws") as workspace:
        assert len(workspace.reader("set")) == 9  # a new card leaves the catalog's entry of the folder valid
    assert main(["export", "card", str(folder), "--output", str(tmp_path / "x.md"), "--set", "colour=red"]) == 2
