"""SQL over the workspace: every table, one statement that reads and nothing else, errors that name the nearest."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.catalog_workspace import NUMBERS, score
from support.dataset_writer import JOINTS, SPEC, planted, write_all
from twinloop.catalog import Workspace
from twinloop.catalog.reference import EXAMPLE_QUERIES, update_page
from twinloop.catalog.schema import TABLES
from twinloop.catalog.state_schema import STATE_TABLES
from twinloop.catalog.view_tables import select_first_copies, select_newest_rows
from twinloop.catalog.views import NAMES
from twinloop.cli.main import main
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.dataset.lerobot.tables import content_hash
from twinloop.dataset.lerobot.writer import DatasetWriter


@pytest.fixture(name="cell", scope="module")
def workspace(tmp_path_factory):
    """A workspace with two batches, one of which has fewer joints."""
    root = tmp_path_factory.mktemp("cell")
    with Workspace.create(root) as ws:
        ws.add(write_all(root / "data" / "planted"))
        units = dataclasses.replace(SPEC.units, joints=SPEC.units.joints[:2])
        spec = dataclasses.replace(SPEC, joints=JOINTS[:2], units=units, success=False)
        with DatasetWriter.open(root / "data" / "two", spec) as writer:
            whole = planted(50)
            few = {name: getattr(whole, name)[:, :2] for name in ("commands", "action", "observation")}
            writer.commit_block(0, [dataclasses.replace(whole, number=0, **few)])
        ws.add(root / "data" / "two")
        yield ws


def test_every_view_answers(cell):
    for name in NAMES:
        table = cell.query(f"SELECT * FROM {name}")
        assert len(set(table.column_names)) == len(table.column_names), name
    assert set(cell.query("SELECT view_name FROM duckdb_views() WHERE NOT internal")["view_name"].to_pylist())


def test_parameters_are_values_whatever_they_say(cell):
    hostile = "x'); DROP TABLE episodes; --"
    assert cell.query("SELECT ? AS said", [hostile])["said"].to_pylist() == [hostile]
    assert len(cell.query("SELECT 1 FROM episodes WHERE task = $task", {"task": hostile})) == 0
    assert len(cell.query("SELECT 1 FROM episodes")) == len(NUMBERS) + 1


def test_frames_come_with_the_names_of_their_episodes(cell):
    name = content_hash(planted(8))
    rows = cell.query('SELECT frame_index, action, "next.success" FROM frames WHERE episode_id = ?', [name])
    np.testing.assert_array_equal(rows["action"].to_pylist(), planted(8).action.astype(np.float32))
    assert rows["frame_index"].to_pylist() == list(range(len(planted(8))))
    widths = cell.query("SELECT batch, max(len(action)) AS n, count(*) AS frames FROM frames GROUP BY ALL ORDER BY ALL")
    assert widths["n"].to_pylist() == [3, 2]
    # A column of that name is no reason to read the frames.
    assert cell.query("SELECT sum(frames) AS n FROM episodes")["n"].to_pylist() == [sum(widths["frames"].to_pylist())]


def test_frames_leave_out_a_batch_whose_folder_is_gone_and_say_so(tmp_path, caplog):
    with Workspace.create(tmp_path / "cell") as ws:
        folder = write_all(ws.root / "data" / "planted")
        ws.add(folder)
        with DatasetWriter.open(ws.root / "data" / "other", SPEC) as writer:
            writer.commit_block(0, [dataclasses.replace(planted(50), number=0)])
        ws.add(ws.root / "data" / "other")
        shutil.rmtree(folder)
        assert len(ws.query("SELECT frames FROM episodes")) == len(NUMBERS) + 1
        assert not caplog.messages
        assert ws.query("SELECT DISTINCT batch FROM frames")["batch"].to_pylist() == ["other"]
        [message] = caplog.messages
        assert "Left out of the view frames: Batch planted is no longer at" in message
        assert "`twinloop add`" in message
        shutil.rmtree(ws.root / "data" / "other")
        with pytest.raises(DatasetError, match=r"Batch planted is no longer at .*data/planted"):
            ws.query("SELECT * FROM frames")


def test_frames_leave_out_a_batch_with_a_damaged_file_and_name_it(tmp_path, caplog):
    with Workspace.create(tmp_path / "cell") as ws:
        ws.add(write_all(ws.root / "data" / "planted"))
        ws.add(write_all(ws.root / "data" / "other"))
        batches = "SELECT DISTINCT batch FROM frames ORDER BY batch"
        assert ws.query(batches)["batch"].to_pylist() == ["other", "planted"]
        last = max((ws.root / "data" / "planted" / "data").glob("*/*.parquet"))
        last.write_bytes(last.read_bytes()[:-30])
        assert ws.query(batches)["batch"].to_pylist() == ["other"]
        assert f"Left out of the view frames: {last} is damaged or missing" in caplog.text
        assert "Run `twinloop fsck`." in caplog.text


def test_sums_of_integers_are_integers_in_every_format(cell, capfd):
    sql = (
        "SELECT sum(frames) AS frames, 1.5 AS half, sum(frames) * 100000000000000000000::HUGEINT AS huge FROM episodes"
    )
    answer = cell.query(sql)
    assert [field.type for field in answer.schema][:2] == [pa.int64(), pa.float64()]
    [row] = answer.to_pylist()
    assert (type(row["frames"]), row["half"], row["huge"]) == (int, 1.5, row["frames"] * 10**20)
    more = "now() AS at, 'a'::BLOB AS data, {'n': sum(frames)} AS nested, INTERVAL 1 DAY AS span"
    for words in (("--format", "json"), ("--json",)):
        code, out, _ = ask(
            capfd, f"SELECT {more}, {sql.removeprefix('SELECT ')}", "--workspace", str(cell.root), *words
        )
        said = json.loads(out)
        said = said["answer"][0] if "answer" in said else said
        assert (code, said["frames"], said["huge"], said["half"]) == (0, row["frames"], row["frames"] * 10**20, 1.5)
        assert (said["nested"], said["data"]) == ({"n": row["frames"]}, "61")


@pytest.mark.parametrize(
    ("sql", "kind", "message"),
    [
        (
            "SELECT * FROM episode",
            UnknownNameError,
            "Unknown table 'episode' in the catalog. Nearest existing: episodes",
        ),
        ("SELECT taks FROM episodes", UnknownNameError, "Unknown column 'taks'.*Nearest existing: task"),
        ("SELECT e.taks FROM episodes e", UnknownNameError, "Unknown column 'taks'.*task"),
        ("SELECT fps(task) FROM episodes", InputError, "There is no function fps in DuckDB's SQL. Did you mean"),
        ("SELEC 1", InputError, 'syntax error at or near "SELEC" Near: SELEC 1'),
        ("SELECT 1; SELECT 2", InputError, "this text has 2. Give one SELECT"),
        ("", InputError, "this text has 0"),
        ("CREATE TABLE x AS SELECT 1", InputError, "CREATE is not allowed"),
        ("INSERT INTO episodes SELECT * FROM episodes", InputError, "INSERT is not allowed"),
        ("WITH x AS (DELETE FROM episodes RETURNING *) SELECT * FROM x", InputError, "."),
        ("COPY episodes TO '/tmp/x.csv'", InputError, "COPY"),
        ("ATTACH '/tmp/x.db'", InputError, "ATTACH"),
        ("SET threads = 1", InputError, "SET|VARIABLE_SET"),
        ("SELECT * FROM read_csv('/etc/passwd')", InputError, "can read only the catalog's views"),
        ("SELECT * FROM read_text('/etc/passwd')", InputError, "can read only the catalog's views"),
        ("SELECT * FROM '/etc/passwd.parquet'", InputError, "."),
        ("SELECT * FROM glob('/etc/*')", InputError, "can read only the catalog's views"),
        ("SELECT ?", InputError, "no values for 1 question marks"),
    ],
)
def test_what_does_not_read_or_does_not_exist_is_refused(cell, sql, kind, message):
    with pytest.raises(kind, match=f"(?s){message}"):
        cell.query(sql)
    assert len(cell.query("SELECT 1 FROM episodes")) == len(NUMBERS) + 1


def test_no_variable_of_python_is_a_table(cell):
    secret = pa.table({"a": [1]})
    with pytest.raises(UnknownNameError, match="Unknown table 'secret'"):
        cell.query("SELECT * FROM secret")
    assert len(secret) == 1


def test_limits_are_taken_from_the_workspace(tmp_path):
    root = Workspace.create(tmp_path / "cell").root
    (root / "twinloop.yaml").write_text("name: cell\nquery: {memory: 20MB, threads: 1}\n")
    with Workspace.open(root) as ws:
        # A statement of a user does not read settings.
        sql = "SELECT current_setting('threads') AS n, current_setting('memory_limit') AS m"
        found = ws._queries._prepare_engine(set()).query_unchecked(sql).to_pylist()
        assert found == [{"n": 1, "m": "19.0 MiB"}]
    (root / "twinloop.yaml").write_text("name: cell\nquery: {memroy: 20MB}\n")
    with pytest.raises(UnknownNameError, match="Unknown setting 'memroy'.*memory"):
        Workspace.open(root)


def test_the_ten_questions_answer(cell):
    name = content_hash(planted(0))
    cell.append("scores", score(name, 2.0), run_id="01")
    for question in EXAMPLE_QUERIES:
        given = {**question.example, **({"episode": name} if "episode" in question.example else {})}
        assert cell.query(question.sql, given).num_columns > 1, question.name
    assert len({question.name for question in EXAMPLE_QUERIES}) == 10
    unscored = {row["batch"]: row["unscored"] for row in cell.query(EXAMPLE_QUERIES[8].sql).to_pylist()}
    assert unscored == {"planted": len(NUMBERS) - 1, "two": 1}


def test_another_process_sees_what_is_committed_at_once(cell):
    with Workspace.open(cell.root) as other:
        before = other.query("SELECT count(*) AS n FROM score_history")["n"][0].as_py()
        cell.append("scores", score("e", 1.0, "recording/blur"), run_id="02")
        assert other.query("SELECT count(*) AS n FROM score_history")["n"][0].as_py() == before + 1


@pytest.mark.parametrize("hashed", [False, True])
def test_the_newest_verdicts_are_those_that_sql_finds(hashed):
    rng = np.random.default_rng(0)
    size = 4000
    history = (
        pa.table(
            {
                "episode_id": [f"{i:064x}" if hashed else f"e{i}" for i in rng.integers(0, 60, size)],
                "check": pa.array([f"c{i}" for i in rng.integers(0, 3, size)]).dictionary_encode(),
                "channel": pa.array(["", "left"]).take(pa.array(rng.integers(0, 2, size))),
                "run_id": pa.array([f"{i:02d}" for i in rng.permutation(size) % 50]).dictionary_encode(),
            }
        )
        .group_by(["episode_id", "check", "channel", "run_id"])
        .aggregate([])
    )
    history = history.append_column("row", pa.array(range(len(history))))
    slow = duckdb.sql(
        """SELECT * FROM history WHERE run_id = (SELECT arg_max(h.run_id, h."row") FROM history h WHERE h.episode_id =
        history.episode_id AND h."check" = history."check")"""
    )
    assert slow is not None
    rows = [tuple(row.values()) for row in select_newest_rows(history.combine_chunks()).to_pylist()]
    assert sorted(rows) == sorted(tuple(row.values()) for row in slow.to_arrow_table().to_pylist())


@pytest.mark.parametrize("width", [1, 64])
def test_an_episode_is_shown_once_unless_it_is_buried(width):
    names = [name * width for name in "babca"]
    places = pa.table({"episode_id": names, "batch": ["1", "1", "2", "2", "3"]})
    first = {"episode_id": [name * width for name in "bac"], "batch": ["1", "1", "2"]}
    assert select_first_copies(places, frozenset()).to_pydict() == first
    rest = {"episode_id": [name * width for name in "ac"], "batch": ["1", "2"]}
    assert select_first_copies(places, frozenset({"b" * width})).to_pydict() == rest
    several = pa.table({"episode_id": [f"{i:064x}" for i in range(9)], "batch": ["1"] * 9})
    assert select_first_copies(several, frozenset()) is several


def test_a_damaged_part_is_named(tmp_path):
    with Workspace.create(tmp_path / "cell") as ws:
        ws.add(write_all(tmp_path / "planted"))
        [part] = ws.parts.list_parts("episodes")
        path = ws.parts.path("episodes", part.part)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(DatasetError, match=rf"{part.part} is damaged or missing.*`twinloop fsck`"):
            ws.query("SELECT * FROM episodes")
        [drawn] = ws.parts.list_parts("params")
        ws.parts.path("params", drawn.part).unlink()
        with pytest.raises(DatasetError, match=r"`twinloop fsck`"):
            ws.query("SELECT * FROM params")


def test_parts_say_of_themselves_what_they_are(cell):
    part = cell.parts.list_parts("params")[0]
    about = json.loads(pq.read_schema(cell.parts.path("params", part.part)).metadata[b"twinloop"])
    assert (about["table"], about["batch"], about["revision"], about["commit"]["parts"]) == ("params", "planted", 1, 2)
    assert about["batch_record"]["path"] == "data/planted"


def test_the_pages_hold_the_declared_columns_and_questions():
    root = Path(__file__).parents[2]
    pages = ["docs/guides/catalog.md", "docs/reference/catalog.md"]
    texts = [(root / page).read_text() for page in pages]
    command = f"python -m twinloop.catalog.reference {' '.join(pages)}"
    assert texts == [update_page(text) for text in texts], f"The pages on the catalog are out of date. Run: {command}"
    assert "<!-- questions -->" in texts[0]
    assert all(f"### {name}" in texts[1] for name in (*TABLES, *STATE_TABLES))


def ask(capfd, *words: str) -> tuple[int, str, str]:
    """Run the command; its exit code, standard output and standard error."""
    code = main(["query", *words])
    sys.stdout.flush()
    said = capfd.readouterr()
    return code, said.out, said.err


def test_the_command_prints_or_writes_every_format(cell, tmp_path, capfd):
    sql, at = "SELECT number, task FROM episodes ORDER BY number", ("--workspace", str(cell.root))
    numbers = sorted([*NUMBERS, 0])
    code, out, _ = ask(capfd, sql, *at)
    assert code == 0
    assert "put the cube back" in out
    assert "10 rows" in out
    code, out, _ = ask(capfd, sql, *at, "--format", "json")
    assert [json.loads(line)["number"] for line in out.splitlines()] == numbers
    _, out, _ = ask(capfd, sql, *at, "--json")
    assert [row["number"] for row in json.loads(out)["answer"]] == numbers
    for kind, read in (("parquet", pq.read_table), ("arrow", lambda path: pa.ipc.open_stream(path).read_all())):
        file = tmp_path / f"answer.{kind}"
        code, _, _ = ask(capfd, sql, *at, "--format", kind, "--output", str(file))
        assert (code, read(file)["number"].to_pylist()) == (0, numbers)
    answer = (
        "SELECT 1 AS n, [0.5, 'nan'::DOUBLE] AS list, {'a': 'x, \"y\"'} AS struct, NULL::INT[] AS none, 'a, b' AS said"
    )
    file = tmp_path / "answer.csv"
    _, out, _ = ask(capfd, answer, *at, "--format", "csv")
    code, _, _ = ask(capfd, answer, *at, "--output", str(file))
    assert (code, file.read_text()) == (0, out)
    rows = list(csv.reader(out.splitlines()))
    assert rows[0] == ["n", "list", "struct", "none", "said"]
    assert [rows[1][0], *rows[1][3:]] == ["1", "", "a, b"]
    assert [json.loads(cell) for cell in rows[1][1:3]] == [[0.5, None], {"a": 'x, "y"'}]
    file = tmp_path / "answer.txt"
    ask(capfd, "SELECT '[bold]' AS said", *at, "--output", str(file))
    assert "[bold]" in file.read_text()


def test_the_command_takes_parameters_and_written_questions(cell, capfd):
    at = ("--workspace", str(cell.root), "--format", "json")
    _, out, _ = ask(capfd, "SELECT $low + 1 AS n, $who AS who", *at, "--params", "low=0.5", "who=it's me")
    assert json.loads(out) == {"n": 1.5, "who": "it's me"}
    code, out, _ = ask(capfd, "success", *at)
    assert code == 0
    assert {json.loads(line)["source"] for line in out.splitlines()} == {"sim"}
    code, _, err = ask(capfd, "sucess", *at)
    assert code == 2
    assert "Unknown query 'sucess' in the predefined queries" in err
    assert "Nearest existing: success" in err
    code, _, err = ask(capfd, "SELECT 1", *at, "--params", "low")
    assert "--params low: write NAME=VALUE" in err
    code, _, err = ask(capfd, "SELECT * FROM episode", *at)
    assert (code, "Unknown table 'episode'" in err) == (2, True)
