"""Invalid words and files of the data commands are refused in one line that names the next step."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.labelled import workspace
from twinloop.cli.main import main
from twinloop.curate.check import Measurement
from twinloop.curate.demonstration.gripper import GripperUse


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """A workspace with six episodes in the batch ``first``, which all that is refused leaves as it is."""
    folder = tmp_path_factory.mktemp("errors") / "cell"
    ws, _ = workspace(folder)
    ws.close()
    before = _files(folder / "data")
    yield folder
    assert _files(folder / "data") == before
    assert main(["fsck", "--workspace", str(folder)]) == 0


def _files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def inside(cell, monkeypatch):
    """Commands run in the workspace."""
    monkeypatch.chdir(cell)


def refused(capsys, words: list[str], code: int = 2) -> str:
    """Return a command's refusal; assert one line of text, and one line of JSON for programs."""
    assert main(words) == code
    message = capsys.readouterr().err.strip()
    assert message.startswith("twinloop: ")
    assert main([*words, "--json"]) == code
    assert json.loads(capsys.readouterr().out)["message"] == message.removeprefix("twinloop: ")
    return message


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            ["query", "range"],
            "no value for $high, $low, $name of the statement. Give it as a parameter: --params high=",
        ),
        (["query", "SELECT $a", "--params", "a=1", "b=2"], "has no parameter b. Parameters are written $NAME or ?"),
        (["query", "SELECT 1", "--output", "catalog/state.sqlite"], "where only the workspace itself writes"),
        (["query", "SELECT 1", "--output", "data/first/meta/info.json"], "Choose a file elsewhere"),
        (["query", "SELECT 1", "--output", "runs/../twinloop.yaml"], "twinloop.yaml, where only the workspace"),
        (["query", "COPY episodes TO 'x.csv'"], "COPY is not allowed"),
        (["query", "SELECT 1; DROP TABLE episodes"], "this text has 2. Give one SELECT"),
        (["query", "SELECT * FROM read_csv('/etc/passwd')"], "no files and no settings"),
        (["label", "--where", "true) UNION SELECT content FROM read_text('/etc/passwd') --", "--tag", "x"], "syntax"),
        (["label", "--where", "(SELECT count(*) FROM read_text('/etc/passwd')) > 0", "--tag", "x"], "no files and no"),
        (["add", "data"], "data is not a dataset but has 1. Add them: `twinloop add /"),
        (["label", "zzzz", "--success", "yes"], "Unknown episode 'zzzz'"),
        (["label", "first:0", "--subtask", "reach:9-3"], "frames 9 to 3. Frames count from 0, the smaller one first"),
        (["label", "first:0", "--tag", "two\nlines"], "has a line break or another control character. Write a word"),
        (["label", "--from", "nowhere.csv"], "nowhere.csv does not exist. Check the path."),
    ],
)
def test_a_wrong_word_is_named_with_what_to_do(capsys, words, answer):
    assert answer in refused(capsys, words)


def test_an_unknown_episode_is_not_answered_with_a_wall_of_ids(capsys):
    message = refused(capsys, ["label", "zzzz", "--success", "yes"])
    assert "which has 6. Existing: " in message
    assert all(len(word.strip(".,")) == 12 for word in message.split("Existing: ")[1].split())


def test_columns_of_one_name_are_told_apart(capsys, tmp_path):
    assert main(["query", "SELECT 1 AS a, 2 AS a, 3 AS a_2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == [{"a": 1, "a_3": 2, "a_2": 3}]
    joined = "SELECT p.episode_id, e.episode_id FROM places p JOIN episodes e USING (episode_id)"
    assert main(["query", joined, "--output", str(tmp_path / "x.parquet")]) == 0
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column_names == ["episode_id", "episode_id_2"]
    assert table["episode_id"].to_pylist() == table["episode_id_2"].to_pylist()


def test_the_name_of_a_file_says_its_format(capsys, tmp_path):
    assert main(["query", "SELECT 7 AS seven", "--output", str(tmp_path / "x.jsonl")]) == 0
    assert json.loads((tmp_path / "x.jsonl").read_text()) == {"seven": 7}
    assert main(["query", "SELECT 7 AS seven", "--format", "table", "--output", str(tmp_path / "y.json")]) == 0
    assert "seven" in (tmp_path / "y.json").read_text().splitlines()[1]


@pytest.mark.parametrize("words", [["query"], ["datasets", "nope"], ["label", "show"], ["curate", "--nope", "3"]])
def test_words_that_no_command_has_are_answered_to_programs_too(capsys, words):
    with pytest.raises(SystemExit) as end:
        main([*words, "--json"])
    told = capsys.readouterr()
    assert end.value.code == 2
    assert json.loads(told.out)["error"] == "UsageError"
    assert told.err
    assert "│" not in json.loads(told.out)["message"]


def edited(path, change) -> None:
    """A Parquet file with its table changed."""
    pq.write_table(change(pq.read_table(path)), path)


def put(name: str, make):
    """A change that puts another column of the same name."""

    def change(table: pa.Table) -> pa.Table:
        values = pa.array(make(len(table)))
        return table.set_column(table.column_names.index(name), name, values)

    return change


@pytest.mark.parametrize(
    ("damage", "answer"),
    [
        ({"fps": 0}, "fps is 0; it must be a number above 0"),
        ({"fps": "thirty"}, "fps is 'thirty'; it must be a number above 0"),
        ({"features": []}, "features is []; it must be a table of features by name"),
        ({"features": {}}, "features is {}; it must be a table of features by name"),
        ({"data_path": "../../../etc/passwd"}, "leaves the dataset's folder"),
        ({"data_path": "{chunk_index.__class__}"}, "cannot be filled"),
        ([1], "holds a list, not a JSON object"),
        (put("length", lambda rows: [10**9] * rows), "by the episode table, but meta/info.json has"),
        (put("length", lambda rows: [-1] * rows), "length of the episode table (meta/episodes) is not a whole number"),
        (put("data/file_index", lambda rows: ["../x"] * rows), "data/file_index of the episode table"),
    ],
)
def test_a_dataset_that_says_what_cannot_be_is_refused_before_it_is_read(cell, capsys, tmp_path, damage, answer):
    folder = shutil.copytree(cell / "data" / "first", tmp_path / "bad")
    where = folder / "meta" / "info.json"
    if callable(damage):
        edited(folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet", damage)
    else:
        info = json.loads(where.read_text())
        where.write_text(json.dumps({**info, **damage} if isinstance(damage, dict) else damage))
    output = tmp_path / "out"
    assert answer in refused(capsys, ["add", str(folder)])
    assert answer in refused(capsys, ["edit", "select", str(folder), "--episodes", "0", "--output", str(output)])
    assert not list(tmp_path.glob("*out*"))


def test_a_table_that_was_cut_off_is_not_vouched_for(cell, capsys, tmp_path):
    folder = shutil.copytree(cell / "data" / "first", tmp_path / "cut")
    path = folder / "data" / "chunk-000" / "file-000.parquet"
    path.write_bytes(path.read_bytes()[:-99])
    assert "file-000.parquet is truncated or damaged" in refused(capsys, ["add", str(folder)])
    assert main(["fsck", "--json"]) == 0


def test_a_run_is_not_written_into_a_dataset(capsys):
    words = ["curate", "data/first", "--checks", "recording/units", "--output", "data/first/quality"]
    assert "is inside the dataset" in refused(capsys, words)


def test_a_robot_without_a_gripper_is_scored():
    recording: Any = SimpleNamespace(episode_id="e", group=("b", "r", "real"), task="t")
    said = "No joint is named a gripper or finger."
    scores = list(GripperUse().judge([recording], [[Measurement(value=None, text=said)]]))
    assert [(score.verdict, score.channel, score.reason) for score in scores] == [("unknown", "", said)]
