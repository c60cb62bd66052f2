"""twinloop's extra files survive edits: side tables, invalid worlds, and the data for replay."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.annot_side_tables import NAME, rows
from support.annot_side_tables import write as write_tables
from support.dataset_writer import KEPT, SPEC, planted, write_all
from support.edits import foreign, whole
from support.generate_aside import value as value
from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.core.errors import InputError
from twinloop.dataset.edit.operations import merge, retask, select, split
from twinloop.dataset.edit.writing import EditSettings
from twinloop.dataset.invalid_worlds import invalid_world_numbers, read_invalid_world
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.generate import generate_states, replay_episode, replay_invalid_attempt, resolve_config
from twinloop.generate.replay import read_root_config

NUMBERS = [number for block in KEPT.values() for number in block]


def test_side_tables_come_with_their_episodes(tmp_path):
    source = write_tables(tmp_path / "in")
    select(source.path, tmp_path / "out", "6,0,8")
    new = DatasetReader(tmp_path / "out")
    for i, j in enumerate((6, 0, 8)):
        found = new.side_rows(NAME, i)
        assert set(found["episode_index"].to_pylist()) == {i}
        assert found.drop_columns(["episode_index"]).equals(rows(NUMBERS[j]))
    assert len(new.side_table(NAME).to_table()) == 15
    select(source.path, tmp_path / "less", "6", settings=EditSettings(leave_out=(NAME,)))
    assert DatasetReader(tmp_path / "less").side_tables == []


def test_tables_of_some_folders_stand_beside_the_episodes_of_others(tmp_path):
    one = write_tables(tmp_path / "one", kept={0: [0, 1]})
    two = write_all_of(tmp_path / "two", [2, 3])
    merge([two, one.path], tmp_path / "out")
    new = DatasetReader(tmp_path / "out")
    assert [len(new.side_rows(NAME, i)) for i in range(4)] == [0, 0, 5, 5]
    assert new.side_rows(NAME, 3)["number"].to_pylist() == [1] * 5


def write_all_of(path, numbers, table=None):
    """A dataset of a few planted episodes, with a side table where one is given."""
    with DatasetWriter.open(path, SPEC) as writer:
        writer.commit_block(0, [planted(number) for number in numbers], tables=None if table is None else {NAME: table})
        writer.finish()
    return path


@pytest.mark.slow
def test_tables_that_differ_in_type_are_refused_with_the_remedy(tmp_path):
    one = write_tables(tmp_path / "one", kept={0: [0, 1]})
    other = pa.table({"number": pa.array([2], pa.int64()), "frame_index": ["third"]})
    two = write_all_of(tmp_path / "two", [2], other)
    with pytest.raises(InputError, match=rf"side table {NAME} of .*two has other column types .* --leave-out {NAME}"):
        merge([one.path, two], tmp_path / "out")
    assert merge([one.path, two], tmp_path / "out", settings=EditSettings(leave_out=(NAME,))).episodes == 3


@pytest.mark.slow
def test_columns_of_drawn_parameters_are_united(tmp_path):
    one, two = write_all_of(tmp_path / "one", [0, 1]), write_all_of(tmp_path / "two", [2])
    path = two / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("provenance/rand.camera.tilt", pa.array([0.5])), path)
    merge([one, two], tmp_path / "out")
    new = DatasetReader(tmp_path / "out")
    assert [new.row(i)["provenance/rand.camera.tilt"] for i in range(3)] == [None, None, 0.5]
    assert new.row(1)["provenance/rand.object.cube.mass"] == planted(1).provenance.params["object/cube/mass"]


def test_children_of_other_programs_episodes_name_them_as_a_catalog_does(tmp_path):
    source = foreign(tmp_path / "in", [9, 7])
    retask(source, tmp_path / "out", task="wave", episodes="1")
    ws = Workspace.create(tmp_path / "ws", name="edits")
    for name in ("in", "out"):
        ws.add(tmp_path / name)
    found = ws.query("SELECT episode_id, batch, task, parents, transforms FROM places ORDER BY batch, episode_index")
    old, child = found.slice(0, 2).to_pylist(), found.slice(2, 2).to_pylist()
    assert child[0]["episode_id"] == old[0]["episode_id"]
    assert child[1]["parents"] == [old[1]["episode_id"]]
    assert json.loads(child[1]["transforms"])[0]["parameters"] == {"texts": {"open the drawer": "wave"}}
    assert child[1]["task"] == "wave"
    np.testing.assert_array_equal(whole(tmp_path / "out")["action"], whole(source)["action"])


@pytest.fixture(scope="module")
def runs(value, tmp_path_factory):
    """Two runs of one twin with different seeds and some invalid worlds."""
    folder, content = value
    root = tmp_path_factory.mktemp("runs")
    small = {**content, "rollout": {"parallel_envs": 5, "episodes_per_env": 2}}
    for name, seed in (("one", 0), ("two", 5)):
        generate_states(resolve_config(small, where="test", folder=folder, seed=seed), root / name, workers=1)
    return root / "one", root / "two"


@pytest.mark.slow
def test_episodes_of_merged_and_split_runs_replay_bit_for_bit(runs, tmp_path):
    merge(runs, tmp_path / "all")
    reader = DatasetReader(tmp_path / "all")
    lengths = [len(DatasetReader(run)) for run in runs]
    assert len(reader) == sum(lengths)
    split(tmp_path / "all", tmp_path / "parts", lists={"a": [lengths[0], 0], "b": [1]})
    retask(tmp_path / "parts" / "a", tmp_path / "new", task="swing on")
    for folder, episode in ((tmp_path / "all", 1), (tmp_path / "all", len(reader) - 1), (tmp_path / "new", 0)):
        result = replay_episode(folder, episode)
        assert result.equal, result.summary_line()
    assert DatasetReader(tmp_path / "new").provenance(0).seed_path[0] == 5
    with pytest.raises(InputError, match="has episodes of 2 runs, but this needs those of one. Select them"):
        read_root_config(reader)
    assert "generate" in read_root_config(DatasetReader(tmp_path / "parts" / "b"))


@pytest.mark.slow
def test_set_aside_attempts_come_with_whole_folders_and_stay_with_parts(runs, tmp_path):
    wanted = [number for run in runs for number in invalid_world_numbers(run)]
    assert wanted
    made = merge(runs, tmp_path / "all")
    assert sorted(invalid_world_numbers(tmp_path / "all")) == sorted(wanted)
    number = wanted[0]
    assert replay_invalid_attempt(tmp_path / "all", number).equal
    np.testing.assert_array_equal(
        read_invalid_world(tmp_path / "all", number).states, read_invalid_world(runs[0], number).states
    )
    twice = len(wanted) - len(set(wanted))
    assert any("share their number" in note for note in made.notes) == bool(twice)
    part = select(runs[0], tmp_path / "part", "0")
    count = len(invalid_world_numbers(runs[0]))
    assert part.notes == (f"{count} invalid worlds of {runs[0]} are not copied, because only some of its episodes are",)
    assert invalid_world_numbers(tmp_path / "part") == []


def test_the_command_edits_and_says_what_it_wrote(tmp_path, capsys):
    source = write_all(tmp_path / "in")
    words = ["edit", "split", str(source), "--output", str(tmp_path / "parts"), "--parts", "a=0.6", "b=0.4"]
    assert main([*words, "--by", "task", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert {name: part["episodes"] for name, part in metrics["parts"].items()} == {"a": 5, "b": 4}
    words = ["edit", "merge", str(tmp_path / "parts" / "a"), str(tmp_path / "parts" / "b"), "--output"]
    assert main([*words, str(tmp_path / "all")]) == 0
    assert "all: 9 episodes, 391 frames." in " ".join(capsys.readouterr().out.split())
    assert main(["edit", "delete", str(source), "--output", str(tmp_path / "less"), "--episodes", "0:3,8"]) == 0
    assert len(DatasetReader(tmp_path / "less")) == 5
    words = [
        "edit",
        "retask",
        str(source),
        "--output",
        str(tmp_path / "new"),
        "--rename",
        "put the cube back=return it",
    ]
    assert main(words) == 0
    assert (
        "return it" in DatasetReader(tmp_path / "new").row(0)["tasks"] + DatasetReader(tmp_path / "new").row(1)["tasks"]
    )
    words = ["edit", "rebalance", str(source), "--output", str(tmp_path / "even"), "--by", "task", "--json"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["groups"]["put the cube back"] == {"before": 5, "after": 4}
    assert "left out: 1 episodes, listed by --json" in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["split", "IN", "--parts", "a"], "--parts a: give each name once, as NAME=VALUE."),
        (["split", "IN", "--parts", "a=0.x", "b=0.5"], "--parts a=0.x: '0.x' is not a number. Separate"),
        (["select", "IN", "--episodes", "9"], "It has 9 episodes, numbered 0 to 8"),
        (["reencode", "IN", "--size", "64"], "--size 64: give HEIGHTxWIDTH in pixels, such as 240x320."),
        (["reencode", "IN"], "has no videos to encode"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, capsys, words, message):
    source = write_all(tmp_path / "in")
    given = [str(source) if word == "IN" else word for word in words]
    assert main(["edit", *given, "--output", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err.replace("\n", "")
    assert not (tmp_path / "out").exists()
