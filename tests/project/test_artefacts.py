"""What earlier versions wrote is opened by this one; `scripts/make_artefacts.py` packs it once for each version."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.core.extension import approve
from twinloop.dataset.lerobot.reader import DatasetReader

ARCHIVES = sorted((Path(__file__).parents[1] / "artefacts").glob("*.tar.xz"))


@pytest.fixture(name="cell", scope="module", params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def unpacked(request, tmp_path_factory):
    """A workspace of an earlier version, as it is after it came from another machine and was approved."""
    folder = tmp_path_factory.mktemp("artefacts")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    approve(folder / "cell")
    return folder / "cell"


def test_there_is_an_archive():
    assert ARCHIVES


def test_the_workspace_is_whole_and_answers(cell, monkeypatch):
    monkeypatch.chdir(cell)
    assert main(["fsck", "--deep"]) == 0
    with Workspace.open(cell) as ws:
        batches = ws.query("SELECT DISTINCT batch FROM places")["batch"].to_pylist()
        assert {"first", "picks", "images", "imported", "identified"} <= set(batches)
        assert ws.query("SELECT count(*) AS n FROM frames").to_pylist()[0]["n"] > 100
        assert ws.query("SELECT count(*) AS n FROM scores").to_pylist()[0]["n"] > 10
        assert len(ws.find_dataset_version("two").episode_ids) == 4


def test_datasets_are_read(cell):
    for info in sorted(cell.glob("data/*/meta/info.json")):
        reader = DatasetReader(info.parent.parent)
        for index in range(len(reader)):
            assert np.isfinite(reader.array(index, "action")).all()
            reader.provenance(index)


def test_episodes_are_replayed(cell, monkeypatch):
    monkeypatch.chdir(cell)
    assert main(["replay", "data/first", "0"]) == 0


def test_worlds_are_drawn_from_an_old_fit(cell, tmp_path, monkeypatch):
    monkeypatch.chdir(cell)
    assert main(["generate", "swing.yaml", "--randomize-from", "runs/fit", "--output", str(tmp_path / "new"),
                 "--workers", "1", "--keep", "all"]) == 0  # fmt: skip
    assert len(DatasetReader(tmp_path / "new")) == len(DatasetReader(cell / "data" / "identified"))


def test_a_twin_of_ones_own_and_runs_are_read(cell, monkeypatch):
    monkeypatch.chdir(cell)
    assert main(["twin", "show", "heavy.yaml"]) == 0
    for result in cell.glob("runs/*/result.json"):
        assert json.loads(result.read_text())
    words = "gap dynamics --twin double_pendulum --data log.csv --params runs/fit --no-why --output runs/gap"
    assert main(words.split()) == 0


def test_a_scenario_is_run(cell, monkeypatch):
    monkeypatch.chdir(cell)
    assert main(["scenario", "counterfactual", "slips", "--change", "object/cube/mass=0.05", "--tries", "1",
                 "--output", "runs/what"]) == 0  # fmt: skip


def test_a_policy_is_opened(cell, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(cell)
    assert main(["policies", "verify"]) == 0
    assert main(["policies", "show", "small"]) == 0
