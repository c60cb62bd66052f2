"""Workspace commands: create a workspace, fill it from other commands, and leave other work undisturbed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from support.releases import evaluation, policy_folder
from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.release import PolicyRegistry

LOG = "time_s,action/hip,state/hip\n" + "".join(f"{i / 10},{i % 7},{i % 5}\n" for i in range(20))


@pytest.fixture
def cell(tmp_path, monkeypatch):
    assert main(["init", str(tmp_path / "cell"), "--robot", "so101"]) == 0
    monkeypatch.chdir(tmp_path / "cell")
    (tmp_path / "log.csv").write_text(LOG)
    return tmp_path / "cell"


def imported(log, output):
    return main(["import", str(log), "--units", "deg", "--task", "swing", "--output", str(output)])


def test_init_makes_a_workspace_with_a_plan_to_begin_with(cell):
    assert Workspace.open(cell).config["twin"] == "so101_tabletop"
    assert "robot: so101" in (cell / "generate.yaml").read_text()
    assert main(["generate", "generate.yaml", "--output", "data/first", "--episodes", "2"]) == 0
    with Workspace.open() as workspace:
        rows = workspace.query("SELECT source, twin, success FROM episodes").to_pylist()
        assert rows == [{"source": "sim", "twin": "so101_tabletop", "success": True}] * 2
        drawn = workspace.query("SELECT count(DISTINCT name) AS n FROM params").to_pylist()
        assert drawn[0]["n"] > 50


def test_a_run_within_a_workspace_is_written_down_and_its_dataset_added(cell, capsys):
    assert imported(cell.parent / "log.csv", "data/teleop") == 0
    assert "Batch teleop of the workspace: 1 new episodes, 0 known." in " ".join(capsys.readouterr().err.split())
    with Workspace.open() as workspace:
        (row,) = workspace.query("SELECT task, source, frames, batch FROM episodes").to_pylist()
        assert row == {"task": "swing", "source": "real", "frames": 20, "batch": "teleop"}
        (run,) = workspace.query("SELECT verb, folder, arguments, result FROM runs").to_pylist()
        assert (run["verb"], run["folder"]) == ("import", "data/teleop")
        assert json.loads(run["arguments"])[:2] == ["import", str(cell.parent / "log.csv")]
        assert json.loads(run["result"])["exit_code"] == 0


def test_the_workspace_is_that_of_the_output_wherever_the_command_is_typed(cell, monkeypatch):
    monkeypatch.chdir(cell.parent)
    assert imported("log.csv", "cell/data/teleop") == 0
    assert imported("log.csv", "outside") == 0
    monkeypatch.chdir(cell)
    assert imported("../log.csv", "../beside") == 0
    with Workspace.open(cell) as workspace:
        assert workspace.query("SELECT batch FROM batches").to_pylist() == [{"batch": "teleop"}]


def test_what_is_measured_decided_and_kept_is_written_down_too(cell, monkeypatch):
    def runs() -> list[tuple]:
        with Workspace.open(cell) as workspace:
            rows = workspace.query("SELECT verb, folder, arguments, result FROM runs ORDER BY run_id").to_pylist()
        return [
            (row["verb"], row["folder"], json.loads(row["arguments"])[1:2], json.loads(row["result"])) for row in rows
        ]

    assert main(["evidence", "--failure-rate", "0.1", "--output=runs/claim"]) == 0
    with Workspace.open(cell) as workspace:
        PolicyRegistry(workspace).add(policy_folder(cell / "trained" / "pick", 1), policy="pick")
    evaluation("pick", np.ones(100, dtype=bool)).write(cell / "runs" / "pick")
    off = {"waived": "not asked here"}
    asked = {"success": off, "floor": {"success": 0.5}, "regressions": off, "latency": off, "context": off}
    asked |= {"candidate": "pick@1", "champion": None, "evidence": {"candidate": ["runs/pick"]}}
    (cell / "gate.yaml").write_text(yaml.safe_dump(asked))
    monkeypatch.chdir(cell.parent)
    assert main(["gate", "cell/gate.yaml"]) == 0  # the workspace is the file's
    monkeypatch.chdir(cell)
    assert main(["compare", "runs/pick", "runs/pick"]) == 0
    assert main(["scenario", "list"]) == 0  # which comes to nothing that is kept
    found = runs()
    assert [(verb, folder, words) for verb, folder, words, _ in found] == [
        ("evidence", "runs/claim", ["--failure-rate"]),
        ("gate", None, ["cell/gate.yaml"]),
        ("compare", None, ["runs/pick"]),
    ]
    assert found[1][3]["passed"] is True
    assert [result["exit_code"] for *_, result in found] == [0, 0, 0]


def test_what_a_command_did_stands_where_the_workspace_is_damaged(cell, capsys):
    (cell / "catalog" / "state.sqlite").write_bytes(b"not a database at all" * 100)
    assert imported(cell.parent / "log.csv", "data/teleop") == 0
    assert (cell / "data" / "teleop" / "meta" / "info.json").is_file()
    assert "Not recorded in the workspace" in " ".join(capsys.readouterr().err.split())


def test_add_takes_folders_from_anywhere_and_again(cell, capsys):
    assert imported(cell.parent / "log.csv", cell.parent / "elsewhere") == 0
    capsys.readouterr()
    assert main(["add", str(cell.parent / "elsewhere"), "--batch", "old", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batches"][0]["new"] == 1
    assert main(["add", str(cell.parent / "elsewhere"), "--batch", "old", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batches"][0] | {"folder": ""} == {
        "batch": "old",
        "folder": "",
        "episodes": 1,
        "new": 0,
        "known": 1,
        "resealed": [],
        "first_sealed": 0,
        "unreadable": [],
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["init", ".", "--robot", "so101"], "is already a workspace. Choose another folder"),
        (["init", "new", "--robot", "so101"], "cell. Work in that one, or choose a folder outside it."),
        (["init", "data/new"], "data/new is inside the workspace /"),
        (["init", "new", "--robot", "so100"], "Unknown robot 'so100' in the built-in twins; --twin takes"),
        (["init", "new", "--robot", "so101", "--twin", "panda_tabletop"], "Give only one of them."),
        (["init", "new", "--twin", "panda_tabletob"], "Unknown twin 'panda_tabletob'"),
        (["add", "nowhere"], "nowhere"),
        (["add", "a", "b", "--batch", "both"], "--batch both names one dataset, and 2 were given"),
        (["add", "..", "--workspace", "data"], "data is not a workspace: there is no twinloop.yaml. Create one"),
    ],
)
def test_what_cannot_be_is_said(cell, capsys, words, message):
    assert main(words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(cell.glob("**/new"))
