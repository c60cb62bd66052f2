"""The workspace: datasets are added without a copy, and one query returns all data of their episodes."""

from __future__ import annotations

import datetime
import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

from support.catalog_workspace import NUMBERS, score
from support.dataset_writer import SPEC, commit, planted, write_all
from twinloop.catalog import Workspace
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.tables import content_hash
from twinloop.dataset.lerobot.writer import DatasetWriter


@pytest.fixture(name="ws")
def workspace(tmp_path):
    with Workspace.create(tmp_path / "cell", name="cell") as made:
        yield made


@pytest.fixture(name="batch")
def planted_batch(ws):
    return write_all(ws.root / "data" / "planted")


def test_a_workspace_is_found_from_within_and_made_once(tmp_path, monkeypatch):
    made = Workspace.create(tmp_path / "cell", twin="so101_tabletop")
    assert made.config == {"schema": 1, "name": "cell", "twin": "so101_tabletop"}
    (made.root / "data" / "deep").mkdir()
    monkeypatch.chdir(made.root / "data" / "deep")
    assert Workspace.open().root == made.root
    with pytest.raises(InputError, match="is already a workspace"):
        Workspace.create(made.root)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"No workspace here or in a folder above.*`twinloop init FOLDER`"):
        Workspace.open()
    with pytest.raises(InputError, match="nowhere is not a workspace"):
        Workspace.open(tmp_path / "nowhere")


def test_rows_are_what_the_episodes_say_of_themselves(ws, batch):
    added = ws.add(batch)
    assert (added.batch, added.episodes, added.new, added.known) == ("planted", 9, 9, 0)
    rows = ws.query("SELECT * FROM episodes ORDER BY episode_index").to_pylist()
    for index, (row, number) in enumerate(zip(rows, NUMBERS, strict=True)):
        episode = planted(number)
        assert row["episode_id"] == content_hash(episode)
        assert (row["episode_index"], row["number"], row["frames"]) == (index, number, len(episode))
        assert row["duration_s"] == pytest.approx(len(episode) / 30)
        assert (row["task"], row["source"], row["twin"]) == (episode.provenance.task, "sim", "so101_tabletop")
        assert (row["seed"], row["attempt"], row["success"], row["valid"]) == (7, 0, True, True)
        assert (row["parents"], row["cameras"], row["licence"]) == ([], [], None)
        assert json.loads(row["units"]) == SPEC.units.to_json()
    drawn = ws.query("SELECT e.number, name, value FROM params JOIN episodes e USING (episode_id)").to_pylist()
    found = {(row["number"], row["name"]): row["value"] for row in drawn}
    assert found == {(n, name): value for n in NUMBERS for name, value in planted(n).provenance.params.items()}


def test_adding_again_after_a_resume_adds_only_what_is_new(ws):
    folder = ws.root / "data" / "grows"
    with DatasetWriter.open(folder, SPEC) as writer:
        commit(writer, 0)
        assert ws.add(folder).new == 3
        for block in (1, 2, 3):
            commit(writer, block)
    added = ws.add(folder)
    assert (added.episodes, added.new, added.known) == (9, 6, 3)
    assert ws.add(folder).parts == ()
    assert ws.query("SELECT number FROM episodes ORDER BY number")["number"].to_pylist() == NUMBERS
    assert ws.query("SELECT count(*) AS n FROM params")["n"][0].as_py() == 18


def test_a_copy_is_another_place_of_the_same_episodes(ws, batch, tmp_path):
    ws.add(batch)
    copy = shutil.copytree(batch, tmp_path / "copy")
    added = ws.add(copy)
    assert (added.batch, added.new, added.known) == ("copy", 0, 9)
    assert ws.query("SELECT count(*) AS n FROM episodes")["n"][0].as_py() == 9
    assert ws.query("SELECT count(*) AS n FROM places")["n"][0].as_py() == 18
    assert ws.query("SELECT count(*) AS n FROM params")["n"][0].as_py() == 18
    paths = dict(zip(*ws.query("SELECT batch, path FROM batches").to_pydict().values(), strict=True))
    assert paths == {"planted": "data/planted", "copy": str(copy)}
    name = ws.query("SELECT episode_id FROM episodes LIMIT 1")["episode_id"][0].as_py()
    shutil.rmtree(batch)
    assert ws.locate(name).folder == copy


def test_an_episode_is_located_and_read(ws, batch):
    ws.add(batch)
    name = content_hash(planted(8))
    place = ws.locate(name)
    assert (place.folder, place.index, place.batch) == (batch, 3, "planted")
    np.testing.assert_array_equal(ws.reader("planted").states(place.index), planted(8).states)
    with pytest.raises(UnknownNameError, match=f"Unknown episode '{name[:8]}'.*{name[:8]}"):
        ws.locate(name[:8])
    with pytest.raises(UnknownNameError, match="Unknown batch 'plantd'.*planted"):
        ws.reader("plantd")


def test_scores_are_appended_and_the_newest_counts(ws, batch):
    ws.add(batch)
    name = content_hash(planted(0))
    now = datetime.datetime.now(datetime.UTC)
    first = ws.record_run("curate", ws.root / "runs" / "a", {"bad": 1}, now, now, ["--all"])
    second = ws.record_run("curate", None, {}, now, now, [])
    ws.append("scores", score(name, 2.0), run_id=first)
    ws.append_many({"scores": score(name, 0.5)}, run_id=second)
    assert ws.query("SELECT value, run_id FROM scores").to_pylist() == [{"value": 0.5, "run_id": second}]
    assert ws.query("SELECT value FROM score_history ORDER BY run_id")["value"].to_pylist() == [2.0, 0.5]
    run = ws.query("SELECT verb, folder, result, arguments FROM runs ORDER BY run_id").to_pylist()[0]
    assert run == {"verb": "curate", "folder": "runs/a", "result": '{"bad": 1}', "arguments": '["--all"]'}


def test_rows_that_do_not_fit_are_refused_and_nothing_is_appended(ws):
    with pytest.raises(UnknownNameError, match="Unknown table 'score'.*Nearest existing: scores"):
        ws.append("score", score("e", 1.0), run_id="r")
    with pytest.raises(UnknownNameError, match=r"Unknown column 'verdct' in the table scores.*verdict"):
        ws.append("scores", score("e", 1.0).rename_columns({"verdict": "verdct"}), run_id="r")
    with pytest.raises(InputError, match="Rows of the table scores need a column reason"):
        ws.append("scores", score("e", 1.0).drop_columns("reason"), run_id="r")
    with pytest.raises(InputError, match="value of the table scores must be double and is string"):
        ws.append("scores", score("e", 1.0).set_column(4, "value", pa.array(["much"])), run_id="r")
    with pytest.raises(InputError, match="1 of 1 rows of the table scores have no verdict"):
        ws.append("scores", score("e", 1.0).set_column(6, "verdict", pa.nulls(1, pa.string())), run_id="r")
    with pytest.raises(InputError, match="Rows of episodes come from datasets"):
        ws.append_many({"scores": score("e", 1.0), "episodes": score("e", 1.0)}, run_id="r")
    assert ws.query("SELECT count(*) AS n FROM parts")["n"][0].as_py() == 0


def test_buried_episodes_are_out_of_sight_and_come_back(ws, batch):
    ws.add(batch)
    name = content_hash(planted(3))
    assert ws.exclude_episodes([name, name], "arm was bumped", "ada") == 1
    assert name not in ws.query("SELECT episode_id FROM episodes")["episode_id"].to_pylist()
    assert ws.query("SELECT count(*) AS n FROM places")["n"][0].as_py() == 9
    assert ws.query("SELECT reason, said_by FROM tombstones").to_pylist() == [
        {"reason": "arm was bumped", "said_by": "ada"}
    ]
    assert ws.include_episodes([name]) == 1
    assert name in ws.query("SELECT episode_id FROM episodes")["episode_id"].to_pylist()


def test_a_folder_written_anew_is_noticed_and_added_again(ws, batch):
    ws.add(batch)
    shutil.rmtree(batch)
    with pytest.raises(DatasetError, match=r"Batch planted is no longer at .*data/planted"):
        ws.reader("planted")
    with DatasetWriter.open(batch, SPEC) as writer:
        writer.commit_block(0, [planted(2)])
    with pytest.raises(DatasetError, match=r"was rewritten.*`twinloop add .*data/planted`"):
        ws.locate(content_hash(planted(0)))
    added = ws.add(batch)
    assert (added.episodes, added.new) == (1, 1)
    assert ws.query("SELECT number FROM episodes")["number"].to_pylist() == [2]
    assert ws.query("SELECT revision FROM batches")["revision"].to_pylist() == [2]
    assert len(DatasetReader(ws.locate(content_hash(planted(2))).folder)) == 1
