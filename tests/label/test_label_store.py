"""Labels: an append-only history, the newest statement of each author, one answer for several authors."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.labelled import workspace
from twinloop.catalog import Workspace
from twinloop.catalog.label_checks import Label
from twinloop.catalog.labels import ReviewRecord, retract_labels
from twinloop.core.errors import InputError, UnknownNameError


@pytest.fixture
def made(tmp_path):
    ws, ids = workspace(tmp_path / "cell")
    with ws:
        yield ws, ids


def one(episode, kind, value, *, author="ada", source="hand", **more):
    return Label(episode_id=episode, kind=kind, value=value, source=source, author=author, **more)


def part(episode, word, first, last, author="ada"):
    return one(episode, "subtask", word, author=author, first_frame=first, last_frame=last)


def held(ws, episode, kind):
    sql = "SELECT value, author, first_frame, last_frame FROM labels WHERE episode_id = ? AND kind = ? ORDER BY 2, 3, 1"
    return [tuple(row.values()) for row in ws.query(sql, [episode, kind]).to_pylist()]


def count(ws, table="label_history"):
    return ws.query(f"SELECT count(*) AS n FROM {table}")["n"][0].as_py()


def test_the_newest_statement_of_each_author_holds_and_history_keeps_all(made):
    ws, ids = made
    ws.label([one(ids[0], "success", "yes"), one(ids[0], "success", "no", author="bob")])
    written = ws.label([one(ids[0], "success", "No", reason="looked again")])
    assert (written.labels, written.replaced, written.unchanged) == (1, 1, 0)
    assert held(ws, ids[0], "success") == [("no", "ada", None, None), ("no", "bob", None, None)]
    assert count(ws) == 3
    again = ws.label([one(ids[0], "success", "no", reason="looked again")])
    assert (again.labels, again.unchanged, count(ws)) == (0, 1, 3)


def test_subtasks_are_one_statement_and_tags_stand_alone(made):
    ws, ids = made
    ws.label([part(ids[0], "reach", 0, 9), part(ids[0], "grasp", 10, 20), one(ids[0], "tag", "blurry")])
    ws.label([part(ids[0], "reach", 0, 12), one(ids[0], "tag", "night")])
    assert held(ws, ids[0], "subtask") == [("reach", "ada", 0, 12)]
    assert [row[0] for row in held(ws, ids[0], "tag")] == ["blurry", "night"]
    ws.label([part(ids[0], "grasp", 13, 20)], add=True)
    assert held(ws, ids[0], "subtask") == [("reach", "ada", 0, 12), ("grasp", "ada", 13, 20)]
    assert retract_labels(ws, [ids[0]], "tag", author="ada", value="blurry") == 1
    assert [row[0] for row in held(ws, ids[0], "tag")] == ["night"]
    assert retract_labels(ws, [ids[0]], "subtask", author="ada") == 2
    assert held(ws, ids[0], "subtask") == []
    ws.label([one(ids[0], "tag", "blurry")])
    assert [row[0] for row in held(ws, ids[0], "tag")] == ["blurry", "night"]
    with pytest.raises(InputError, match="hand:bob gave no tag 'night' to these 1 episodes"):
        retract_labels(ws, [ids[0]], "tag", author="bob", value="night")


def test_who_looks_again_takes_back_what_no_longer_shows(made):
    ws, ids = made
    rule = {"source": "rule", "author": "r"}
    ws.label([one(ids[i], "failure", "dropped", **rule) for i in range(3)])
    ws.label([one(ids[0], "failure", "timeout")])
    survey = ReviewRecord(source="rule", author="r", episode_ids=frozenset(ids[:2]))
    written = ws.label([one(ids[0], "failure", "dropped", **rule)], review=survey)
    assert (written.labels, written.unchanged, written.retracted) == (0, 1, 1)
    said = [(row["episode_id"], row["author"]) for row in ws.query("SELECT * FROM labels").to_pylist()]
    assert sorted(said) == sorted([(ids[0], "r"), (ids[0], "ada"), (ids[2], "r")])
    last = ws.query("SELECT * FROM label_history ORDER BY seq DESC LIMIT 1").to_pylist()[0]
    assert (last["episode_id"], last["retracted"], last["value"]) == (ids[1], True, None)


def test_one_answer_where_several_speak(made):
    ws, ids = made
    say = []
    answers = {
        0: ["hand:ada=yes"],
        1: ["hand:ada=no", "rule:r=yes", "rule:s=yes", "model:m=yes"],
        2: ["hand:ada=no", "hand:bob=yes", "hand:eve=yes", "rule:r=no"],
        3: ["hand:ada=no", "hand:bob=yes"],
        4: ["hand:ada=unknown", "model:m=no", "model:n=no"],
    }
    for episode, said in answers.items():
        for text in said:
            who, value = text.split("=")
            source, author = who.split(":")
            say.append(one(ids[episode], "success", value, author=author, source=source))
    for author, grade in (("ada", "1"), ("bob", "5"), ("eve", "2")):
        say.append(one(ids[0], "number/quality", grade, author=author))
    ws.label(say)
    rows = {(row["episode_id"], row["kind"]): row for row in ws.query("SELECT * FROM consensus").to_pylist()}
    assert len(rows) == 6
    found = [rows[ids[i], "success"] for i in range(5)]
    assert [(row["value"], row["source"], row["decided"]) for row in found] == [
        ("yes", "hand", "only one"),
        ("no", "hand", "only one"),
        ("yes", "hand", "majority"),
        (None, "hand", "tie"),
        ("no", "model", "unanimous"),
    ]
    assert (found[0]["conflict"], found[4]["conflict"]) == (None, None)
    assert found[1]["conflict"] == "hand:ada=no, rule:r=yes, rule:s=yes, model:m=yes"
    assert (found[2]["votes"], found[2]["voters"], found[2]["said"]) == (2, 3, 4)
    quality = rows[ids[0], "number/quality"]
    assert (quality["number"], quality["decided"]) == (2.0, "median")


HOSTILE = "x'); DROP TABLE label_history; --"


def test_text_stays_text(made):
    ws, ids = made
    texts = [HOSTILE, '{"a": [1]}', "=HYPERLINK(1)", 'a\nb,c;"d"', "тест ⚙", "%s {x} $1 ?"]
    for text in texts:
        ws.label([one(ids[0], "language", text, author=text)])
    assert sorted(row[:2] for row in held(ws, ids[0], "language")) == sorted((text, text) for text in texts)
    assert ws.query("SELECT value FROM labels WHERE value = ?", [HOSTILE]).num_rows == 1


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ({"kind": "success", "value": "perhaps"}, "is neither yes nor no. Write yes, no or unknown"),
        (
            {"kind": "failure", "value": "grasp_mised"},
            "Unknown failure class 'grasp_mised'.*Nearest existing: grasp_missed",
        ),
        ({"kind": "sucess", "value": "yes"}, "Unknown kind of label 'sucess'. Nearest existing: success"),
        ({"kind": "subtask", "value": "reach"}, "has no frames, but a subtask needs them. Write reach:FIRST-LAST"),
        (
            {"kind": "subtask", "value": "reach", "first_frame": 5, "last_frame": 35},
            "has the frames 0 to 34",
        ),
        ({"kind": "subtask", "value": "reach", "first_frame": 5, "last_frame": 4}, "has the frames 5 to 4"),
        (
            {"kind": "subtask", "value": "reach", "first_frame": -1, "last_frame": 4},
            "Frames count from 0, the smaller one first",
        ),
        ({"kind": "tag", "value": "x", "first_frame": 1}, "has only one of first and last frame"),
        ({"kind": "success", "value": "yes", "first_frame": 1, "last_frame": 2}, "applies to the whole episode"),
        ({"kind": "number/quality", "value": "nan"}, "is not a finite number"),
        ({"kind": "number/quality", "value": "four"}, "is not a finite number"),
        ({"kind": "language", "value": "  "}, "is empty"),
        ({"kind": "language", "value": "x" * 20_001}, "more than 20000 characters"),
        ({"kind": "language", "value": "a\x00b"}, "a zero byte"),
        ({"kind": "success", "value": "yes", "confidence": 1.2}, "it must be between 0 and 1"),
        ({"kind": "success", "value": "yes", "confidence": float("nan")}, "it must be between 0 and 1"),
        ({"kind": "success", "value": "yes", "author": ""}, "has no author"),
        ({"kind": "success", "value": "yes", "source": "robot"}, "Unknown source 'robot'"),
    ],
)
def test_what_cannot_be_is_named_and_nothing_is_written(made_once, label, said):
    ws, ids = made_once
    good = one(ids[1], "success", "yes")
    with pytest.raises(InputError, match=said):
        ws.label([good, one(ids[0], **label)])
    assert count(ws) == 0


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    ws, ids = workspace(tmp_path_factory.mktemp("once") / "cell")
    with ws:
        yield ws, ids


def test_unknown_and_buried_episodes_are_refused_with_what_exists(made):
    ws, ids = made
    near = ids[0][:-4] + "0000"
    with pytest.raises(UnknownNameError, match=f"Unknown episode '{near}'.*which has 6 episodes.*{ids[0]}"):
        ws.label([one(near, "success", "yes")])
    ws.exclude_episodes([ids[1]], "no cube", "ada")
    with pytest.raises(InputError, match=rf"Episode {ids[1][:12]} is excluded \(no cube\). Include it with"):
        ws.label([one(ids[0], "success", "yes"), one(ids[1], "success", "yes")])
    assert count(ws) == 0


def test_one_author_says_one_thing_at_a_time(made):
    ws, ids = made
    with pytest.raises(InputError, match=r"hand:ada gives success 2 times for episode .* \(yes, no\). Give it once"):
        ws.label([one(ids[0], "success", "yes"), one(ids[0], "success", "no")])
    with pytest.raises(InputError, match="gives reach until frame 9 and grasp from frame 9"):
        ws.label([part(ids[0], "grasp", 9, 12), part(ids[0], "reach", 0, 9)])
    assert count(ws) == 0


def test_a_workspace_adds_words_and_can_close_lists(made):
    ws, ids = made
    (ws.root / "labels.yaml").write_text("failures: {slipped: turned in the fingers}\ntags: [blurry]\n")
    ws.label([one(ids[0], "failure", "slipped"), one(ids[1], "failure", "dropped"), one(ids[0], "tag", "blurry")])
    with pytest.raises(UnknownNameError, match="Unknown tag 'blury' in .*labels.yaml. Nearest existing: blurry"):
        ws.label([one(ids[0], "tag", "blury")])
    (ws.root / "labels.yaml").write_text("failure: [x]\n")
    with pytest.raises(UnknownNameError, match="Unknown key 'failure' in .*labels.yaml. Nearest existing: failures"):
        ws.label([one(ids[0], "tag", "blurry")])


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from twinloop.catalog import Workspace, labels
from twinloop.catalog.label_checks import Label

ws, after = Workspace.open(sys.argv[2]), int(sys.argv[3])
ids = ws.query("SELECT episode_id FROM episodes")["episode_id"].to_pylist()
tags = [(name, f"t{i}") for name in ids for i in range(300)]
rows = [Label(episode_id=name, kind="tag", value=tag, source="hand", author="ada") for name, tag in tags]

class Dying:
    def __init__(self, connection): self._connection = connection
    def __getattr__(self, name): return getattr(self._connection, name)
    def executemany(self, sql, rows):
        for number, row in enumerate(rows):
            if number == after: os.kill(os.getpid(), signal.SIGKILL)
            self._connection.execute(sql, row)

inner = labels._commit_statements
labels._commit_statements = lambda connection, *args, **kwargs: inner(Dying(connection), *args, **kwargs)
ws.label(rows)
"""


@pytest.mark.parametrize(
    "after", [pytest.param(0, marks=pytest.mark.slow), 700, pytest.param(1799, marks=pytest.mark.slow)]
)
def test_kill_9_in_the_middle_leaves_nothing_of_the_statement(made, after):
    ws, ids = made
    ws.label([one(ids[0], "success", "yes")])
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parents[1]), str(ws.root), str(after)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Workspace.open(ws.root) as opened:
        assert count(opened) == count(ws) == 1
        opened.label([one(ids[0], "tag", "after")])
        assert count(opened) == 2
