"""Labels and dataset versions from the command line and from files: all of a file or nothing, and back again."""

from __future__ import annotations

import json

import pytest

from support.labelled import workspace
from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.label.exchange import read_labels, write_labels


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    ws, ids = workspace(tmp_path_factory.mktemp("commands") / "cell")
    ws.close()
    return ws.root, ids


def run(capsys, cell, *words, code=0):
    """The figures of a command in the workspace."""
    assert main([*words, "--workspace", str(cell[0]), "--json"]) == code, capsys.readouterr().err
    out = capsys.readouterr().out
    return json.loads(out.splitlines()[-1])


def test_a_day_of_labelling(cell, capsys, tmp_path):
    ids = cell[1]
    say = ["label", ids[0][:10], "first:1", "--success", "yes", "--tag", "blurry", "--tag", "night", "--author", "ada"]
    made = run(capsys, cell, *say, "--subtask", "reach:0-9", "--subtask", "grasp:10-30", "--number", "quality=4")
    assert (made["labels"], made["episodes"]) == (12, 2)
    bulk = run(capsys, cell, "label", "--where", "frames > 36", "--success", "no", "--author", "bob")
    assert bulk["episodes"] == 4
    shown = run(capsys, cell, "label", "show", "first:0")
    assert {row["kind"] for row in shown["labels"]} == {"success", "tag", "subtask", "number/quality"}
    assert shown["consensus"][-1]["value"] == "yes"
    assert run(capsys, cell, "label", "first:0", "--retract", "tag=night", "--author", "ada")["retracted"] == 1
    predicate = run(capsys, cell, "label", "--rule", "success/predicate")
    assert predicate["values"] == {"success=yes": 6}
    again = run(capsys, cell, "label", "--rule", "success/predicate", "--where", "frames > 36")
    assert (again["labels"], again["unchanged"]) == (0, 4)
    assert run(capsys, cell, "label", "--rule", "failure/pick_and_place")["unknown"]
    found = run(capsys, cell, "label", "agreement")
    assert found["observers"] == ["hand:ada", "hand:bob", "rule:success/predicate"]
    assert len(found["disagreements"]) == 4
    listed = run(capsys, cell, "label", "list")["labels"]
    assert sum(row["labels"] for row in listed) == 12 - 1 + 4 + 6 + 6
    assert run(capsys, cell, "label", "export", str(tmp_path / "all.csv"))["labels"] == 27
    back = run(capsys, cell, "label", "--from", str(tmp_path / "all.csv"))
    assert (back["labels"], back["statements"]) == (0, 0), "what comes back says nothing new"
    assert "grasp_missed" in run(capsys, cell, "label", "rules")["failures"]


def test_frozen_datasets_from_the_command_line(cell, capsys, tmp_path):
    root, ids = cell
    sql = "SELECT episode_id FROM episodes WHERE frames < 38"
    assert run(capsys, cell, "datasets", "freeze", "short", "--sql", sql, "--note", "for a try")["episodes"] == 3
    assert run(capsys, cell, "datasets", "freeze", "long", "--sql", sql.replace("<", ">="))["reference"] == "long@1"
    shown = run(capsys, cell, "datasets", "show", "short")
    assert (shown["composition"]["source"], shown["frames"]) == ({"sim": 3}, 35 + 36 + 37)
    assert shown["composition"]["task"] == {"put the cube back": 2, "put the cube into the zone": 1}
    assert run(capsys, cell, "datasets", "diff", "short", "long")["only_first"] == sorted(ids[:3])
    with Workspace.open(root) as ws:
        ws.record_policy("f" * 64, "act", "short")
    assert run(capsys, cell, "datasets", "lineage", "act")["episodes"] == 3
    assert run(capsys, cell, "datasets", "lineage", "first:0")["policies"][0]["name"] == "act"
    assert run(capsys, cell, "datasets", "lineage", "first:5")["policies"] == []
    for word, near in (("atc", "act"), ("shrot", "short")):
        assert main(["datasets", "lineage", word, "--workspace", str(root)]) == 2
        said = capsys.readouterr().err
        assert f"Unknown policy, dataset version or episode '{word}'" in said
        assert f"Nearest existing: {near}." in said
    assert run(capsys, cell, "datasets", "lineage", "short")["policies"][0]["policy"] == "f" * 64
    assert [row["policies"] for row in run(capsys, cell, "datasets", "list")["datasets"]] == [0, 1]
    run(capsys, cell, "datasets", "materialize", "short", "--output", str(tmp_path / "out"))
    assert sorted(DatasetReader(tmp_path / "out").episode_ids) == sorted(ids[:3])
    error = run(capsys, cell, "datasets", "show", "shrt", code=2)
    assert "Unknown dataset version 'shrt'. Nearest existing: short" in error["message"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["first:0"], "No label is given. Give labels"),
        (["first:0", "--success", "yes", "--rule", "success/predicate"], "labels and --rule are given together"),
        (["--success", "yes"], "No episode is named"),
        (["first:0", "--subtask", "reach:5"], "--subtask reach:5 is not WORD:FIRST-LAST"),
        (["first:0", "--subtask", "reach:30-40"], "has the frames 0 to 34"),
        (["first:0", "--failure", "grasp_mised"], "Nearest existing: grasp_missed"),
        (["first:0", "--number", "quality"], "--number quality is not NAME=VALUE"),
        (["--where", "frames > 1000", "--success", "yes"], "--where frames > 1000 selects no episode"),
        (["first:0", "--retract", "language", "--author", "eve"], "hand:eve gave no language"),
        (["--from", "labels.txt"], "is neither a .csv nor a .jsonl file"),
        (["first:0", "--from", "labels.csv"], "The file of --from names its episodes"),
        (["--rule", "success/predicat"], "Unknown rule 'success/predicat'"),
    ],
)
def test_wrong_words_are_named(cell, capsys, words, said):
    assert said in run(capsys, cell, "label", *words, code=2)["message"]


LINES = {
    "bad.csv": ("episode,kind,value,frame\na,success,yes,1\n", "Unknown column 'frame' in .*first_frame"),
    "short.csv": ("episode,value\na,yes\n", "has no column kind"),
    "long.csv": ("episode,kind,value\na,success,yes,more\n", "line 2 has more fields than the header"),
    "type.csv": (
        "episode,kind,value,first_frame\nabcd,tag,x,one\n",
        "line 2: first_frame: input should be",
    ),
    "empty.csv": ("episode,kind,value\n", "contains no label"),
    "not.jsonl": ("{'a': 1}\n", "line 1 is not valid JSON .*Nothing was written"),
    "list.jsonl": ("[1]\n", "line 1 is not a JSON object"),
    "deep.jsonl": ('{"episode": "abcd", "kind": "tag", "value": {"$ref": "x"}}\n', "line 1: value.*valid string"),
    "more.jsonl": ('{"episode": "abcd", "kind": "tag", "value": "x", "run": "rm"}\n', "line 1: run: extra inputs"),
    "who.jsonl": (
        '{"episode": "abcd", "kind": "tag", "value": "x", "source": "god"}\n',
        "line 1: source: ",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_file_that_is_wrong_is_named_by_line(tmp_path, name):
    text, said = LINES[name]
    (tmp_path / name).write_text(text)
    with pytest.raises((InputError, UnknownNameError), match=said):
        read_labels(tmp_path / name)


def test_a_file_is_written_whole_or_not_at_all(cell, capsys, tmp_path):
    root, ids = cell
    good = {"episode": "first:2", "kind": "language", "value": "take it; DROP TABLE labels", "confidence": 0.5}
    bad = {"episode": ids[3], "kind": "subtask", "value": "reach", "first_frame": 0, "last_frame": 9999}
    path = tmp_path / "predictions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (good, bad)))
    words = ["label", "--from", str(path), "--source", "model", "--author", "vlm", "--author-hash", "abc123"]
    assert "ends at frame 9999; the episode has the frames 0 to 37" in run(capsys, cell, *words, code=2)["message"]
    with Workspace.open(root) as ws:
        sql = "SELECT value, confidence, author_hash, source FROM labels WHERE author = 'vlm'"
        assert ws.query(sql).num_rows == 0
        path.write_text(json.dumps(good | {"source": "hand"}) + "\n")
        assert "label 1 has the source 'hand', and the command" in run(capsys, cell, *words, code=2)["message"]
        path.write_text(json.dumps(good) + "\n")
        run(capsys, cell, *words)
        assert ws.query(sql).to_pylist() == [
            {"value": good["value"], "confidence": 0.5, "author_hash": "abc123", "source": "model"}
        ]


def test_values_with_commas_quotes_and_lines_come_back(tmp_path):
    texts = ['a, "b"\nc', "=1+1", "ünï;code", "yes", "0012"]
    rows = [
        {"episode_id": "abcd", "kind": "language", "value": text, "source": "hand", "author": "a"} for text in texts
    ]
    for name in ("x.csv", "x.jsonl"):
        write_labels(tmp_path / name, rows)
        assert [line.value for line in read_labels(tmp_path / name)] == texts
    with pytest.raises(InputError, match="neither a .csv nor a .jsonl"):
        write_labels(tmp_path / "x.txt", rows)
