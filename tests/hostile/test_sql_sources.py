"""Every place that takes SQL, and every name in data that becomes a part of SQL."""

from __future__ import annotations

import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from _sql import file_hashes, make_cell
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.dataset_writer import SPEC, planted
from twinloop.catalog import Workspace
from twinloop.catalog.episode_lookup import select_episodes
from twinloop.cli.main import main
from twinloop.core.errors import InputError, TwinloopError
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.label.rules import SqlRule
from twinloop.train.config import SourceConfig
from twinloop.train.sources import open_sources
from twinloop.workflows.coverage.sides import workspace_side
from twinloop.workflows.data import labels

WRITER = "WITH a AS (COPY (SELECT 1 AS episode_id) TO '{path}' (FORMAT PARQUET)) SELECT episode_id FROM episodes"
CONDITION = (
    "episode_id IN (WITH a AS (COPY (SELECT 1 AS e) TO '{path}' (FORMAT PARQUET)) SELECT episode_id FROM episodes)"
)


@pytest.fixture(name="template", scope="module")
def workspace_template(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources") / "cell"
    make_cell(root).close()
    return root


@pytest.fixture(name="root")
def workspace_folder(template, tmp_path):
    return shutil.copytree(template, tmp_path / "cell")


def _add(ws: Workspace, folder: Path, *, columns: dict[str, object] | None = None, batch: str | None = None) -> None:
    """Add a dataset whose data files have more columns than its metadata."""
    with DatasetWriter.open(folder, SPEC) as writer:
        writer.commit_block(0, [replace(planted(30), number=0)])
    for path in folder.rglob("data/*/*.parquet"):
        table = pq.read_table(path)
        for name, value in (columns or {}).items():
            table = table.append_column(name, pa.array([value] * len(table)))
        pq.write_table(table, path)
    ws.add(folder, batch=batch)


def _rule(root: Path, sql: str) -> Path:
    file = root.parent / "rule.yaml"
    file.write_text(yaml.safe_dump({"name": "tag/sent", "kind": "tag", "sql": sql}))
    return file


WHOLE = {
    "twinloop query": lambda root, sql: ["query", sql],
    "twinloop query --json": lambda root, sql: ["query", sql, "--json"],
    "twinloop datasets freeze": lambda root, sql: ["datasets", "freeze", "bad", "--sql", sql],
    "twinloop label --where": lambda root, sql: ["label", "--where", sql, "--tag", "x"],
    "twinloop label --rule FILE.yaml": lambda root, sql: ["label", "--rule", str(_rule(root, sql))],
    "twinloop label export --where": lambda root, sql: ["label", "export", "out.csv", "--where", sql],
    "twinloop label agreement --where": lambda root, sql: ["label", "agreement", "--where", sql],
    "twinloop train --data": lambda root, sql: ["train", "--policy", "mlp", "--data", sql, "--output", "policies/p"],
}
CONDITIONS = {
    "twinloop curate --where": lambda root, sql: ["curate", "--where", sql],
    "twinloop coverage --real-where": lambda root, sql: ["coverage", "--workspace", str(root), "--real-where", sql],
    "twinloop coverage --sim-where": lambda root, sql: [
        *("coverage", "--workspace", str(root), "--real-where", "true", "--sim-where", sql)
    ],
    "a condition of twinloop label --where": lambda root, sql: ["label", "--where", sql, "--tag", "x"],
}


@pytest.mark.parametrize(
    ("words", "sql"),
    [
        pytest.param(
            words,
            sql,
            marks=[
                pytest.mark.attack(f"{name} takes a statement with a COPY", expected="refused, nothing is written"),
                *([pytest.mark.slow] if name == "twinloop train --data" else []),  # which loads torch
            ],
            id=name,
        )
        for table, sql in ((WHOLE, WRITER), (CONDITIONS, CONDITION))
        for name, words in table.items()
    ],
)
def test_no_command_runs_a_statement_that_writes(root, monkeypatch, capfd, words, sql, observed):
    monkeypatch.chdir(root)
    path = next((root / "catalog" / "params").glob("*.parquet"))
    command = words(root, sql.format(path=path))
    before = file_hashes(root, but=("-shm", "-wal"))  # the command closes the database when it pleases
    assert main(command) == 2
    said = capfd.readouterr().err
    assert "is not allowed: statements only read" in said
    assert "Traceback" not in said
    assert file_hashes(root, but=("-shm", "-wal")) == before
    observed(said)


@pytest.mark.attack(
    "A workspace that was sent has a dataset version whose stored SQL writes",
    expected="the text is shown and never run",
)
def test_the_sql_of_a_frozen_dataset_is_never_run(root, monkeypatch, capfd, observed):
    monkeypatch.chdir(root)
    assert main(["datasets", "freeze", "sent", "--sql", "SELECT episode_id FROM episodes"]) == 0
    new = root / "catalog" / "params" / "new.parquet"
    with sqlite3.connect(root / "catalog" / "state.sqlite") as connection:
        connection.execute("UPDATE datasets SET sql = ?", (WRITER.format(path=new),))
    connection.close()
    for words in (["show", "sent"], ["list"], ["diff", "sent", "sent"], ["materialize", "sent", "--output", "out"]):
        main(["datasets", *words])
    main(["fsck"])
    assert open_sources([SourceConfig(data="sent")], workspace=root)
    assert not new.exists()
    assert "Traceback" not in capfd.readouterr().err
    observed("shown")


@pytest.mark.attack("A training source is a statement with a COPY", expected="refused, nothing is written")
def test_no_training_source_writes(root, observed):
    new = root / "catalog" / "params" / "new.parquet"
    with pytest.raises(InputError, match="COPY is not allowed") as refusal:
        open_sources([SourceConfig(data=WRITER.format(path=new))], workspace=root)
    assert not new.exists()
    observed(refusal.value)


ROWS = "SELECT episode_id, 'x' AS value FROM episodes, range(100000000)"


@pytest.mark.attack(
    "A rule in SQL gives 200 million rows, each of which would become an object", expected="refused while rows come in"
)
def test_a_rule_gives_no_more_rows_than_fit(root, monkeypatch, observed):
    monkeypatch.setattr(labels, "MOST_FINDINGS", 10_000)
    with Workspace.open(root) as ws, pytest.raises(InputError, match="more than 10,000 rows") as refusal:
        labels._apply_sql_rule(ws, SqlRule.read(_rule(root, ROWS)), None)
    observed(refusal.value)


@pytest.mark.parametrize(
    "choose",
    [
        pytest.param(
            choose,
            marks=pytest.mark.attack(
                f"{name} chooses 200 million rows, each of which would become an object", expected="refused"
            ),
            id=name,
        )
        for name, choose in {
            "a dataset version": lambda ws: ws.freeze("many", ROWS),
            "--where": lambda ws: select_episodes(ws, ROWS),
            "a training source": lambda ws: open_sources([SourceConfig(data=ROWS)], workspace=ws.root),
            "coverage": lambda ws: workspace_side(
                ws, "true UNION ALL SELECT i::TEXT, true FROM range(100000) t(i)", what="real"
            ),
        }.items()
    ],
)
def test_no_choice_of_episodes_gives_more_rows_than_fit(root, monkeypatch, choose, observed):
    monkeypatch.setattr("twinloop.catalog.episode_lookup.MAX_SELECTED_EPISODES", 10_000)
    monkeypatch.setattr("twinloop.workflows.coverage.sides.MAX_SELECTED_EPISODES", 10_000)
    with Workspace.open(root) as ws, pytest.raises(InputError, match="more than 10,000 rows") as refusal:
        choose(ws)
    observed(refusal.value)


@pytest.mark.parametrize("value", ["[1]", "{'a': 1}", "NULL", "''", "'x' || chr(10)", "episodes", "1.5"])
@pytest.mark.attack("A statement chooses episodes by what is no id", expected="refused with what to select")
def test_ids_that_are_none_are_refused(root, value, observed):
    with Workspace.open(root) as ws, pytest.raises(InputError) as refusal:
        ws.freeze("bad", f"SELECT {value} AS episode_id FROM episodes")
    observed(refusal.value)


COLUMNS = {
    "episode_id": ["episode_id"],
    "batch in capitals": ["BATCH"],
    "action with another capital": ["Action"],
    "a quotation mark": ['a"b', "c'd", '"'],
    "SQL": ['x"; DROP VIEW episodes; --', "x); COPY (SELECT 1) TO '/tmp/x'; --", "f.x, (SELECT 1)"],
    "a blank, a line and a dot": [" ", "a\nb", "a.b"],
    "nothing": [""],
    "NUL": ["a\0b"],
    "words of SQL": ["select", "from", "rowid", "filename", "file_row_number"],
    "letters beyond ASCII": ["é", "\u202eevil", "🤖"],
}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(
            names,
            marks=pytest.mark.attack(
                f"A dataset's data file has a column whose name is {name}", expected="frames of all datasets are shown"
            ),
            id=name,
        )
        for name, names in COLUMNS.items()
    ],
)
def test_names_of_columns_are_names(root, tmp_path, names, observed):
    with Workspace.open(root) as ws:
        before = len(ws.query("SELECT * FROM frames"))
        _add(ws, tmp_path / "sent", columns=dict.fromkeys(names, "injected"))
        rows = ws.query("SELECT * FROM frames")
        assert len(rows) > before
        assert "injected" not in rows["episode_id"].to_pylist()
        assert set(rows["batch"].to_pylist()) == {"planted", "sent"}
        shown = sorted(set(rows.column_names).intersection(names))
    observed(f"{len(rows)} frames, of those columns shown: {len(shown)}")


BATCHES = [
    "b'); DROP VIEW episodes; --",
    "b' OR '1'='1",
    'b"',
    "b\\",
    "$1",
    "?",
    "twinloop://files/0.parquet",
    "é\u202e",
]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.attack(f"A batch is called {name!a}", expected="its own frames are shown, once"),
            id=name,
        )
        for name in BATCHES
    ],
)
def test_names_of_batches_are_texts(root, tmp_path, name, observed):
    with Workspace.open(root) as ws:
        _add(ws, tmp_path / "sent", batch=name)
        counts = ws.query("SELECT batch, count(*) AS n FROM frames GROUP BY ALL").to_pylist()
        assert {row["batch"]: row["n"] for row in counts}[name] == len(planted(30))
        assert {row["batch"] for row in counts} == {"planted", name}
        assert ws.query("SELECT count(*) AS n FROM episodes WHERE batch = ?", [name])["n"].to_pylist() == [1]
    observed(f"{len(counts)} batches")


FOLDERS = [
    "episode_index=7",
    "batch=evil/data",
    "a*",
    "a[b]c",
    "a?c",
    "**",
    "it's",
    'say "x"',
    "a;b--c",
    "%00",
    "#x",
    "~",
]


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(
            folder,
            marks=[
                pytest.mark.attack(
                    f"A dataset is in a folder called {folder!a}",
                    expected="its own frames are shown with its own values",
                ),
                *([pytest.mark.slow] if folder not in FOLDERS[:4] else []),
            ],
            id=folder,
        )
        for folder in FOLDERS
    ],
)
def test_paths_are_no_patterns_and_no_columns(root, tmp_path, folder, observed):
    with Workspace.open(root) as ws:
        _add(ws, tmp_path / folder / "sent")
        _add(ws, tmp_path / "abc" / "other", batch="other")
        rows = ws.query("SELECT batch, episode_index, count(*) AS n FROM frames GROUP BY ALL").to_pylist()
        # `other` has the same episode, and each batch its own files.
        assert {(row["batch"], row["episode_index"]): row["n"] for row in rows}["sent", 0] == len(planted(30))
        assert len(rows) == 4
    observed(f"{len(rows)} episodes")


@pytest.mark.attack(
    "25 datasets' worth of random names of columns become SQL", expected="the frames are shown each time"
)
def test_any_name_of_a_column_is_quoted(template, tmp_path_factory, observed):
    from twinloop.catalog import querying as frames
    from twinloop.catalog.engine import QueryEngine
    from twinloop.catalog.limits import QueryLimits

    folder, count = tmp_path_factory.mktemp("names"), 0
    names = st.lists(st.text(st.characters(codec="utf-8"), max_size=8), max_size=4, unique=True)

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(names, st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8))
    def law(columns, batch):
        nonlocal count
        count += 1
        path = folder / f"{count}.parquet"
        table = pa.table({"episode_index": [0, 0]})
        for name in columns:
            if name != "episode_index":
                table = table.append_column(name, pa.array([1, 2]))
        pq.write_table(table, path)
        engine.register_table("places", pa.table({"episode_id": ["e"], "batch": [batch], "episode_index": [0]}))
        engine.create_sql_view("frames", frames.format_view_sql({batch: [path]}, engine.format_parquet_sql))
        rows = engine.query("SELECT * FROM frames").to_pylist()
        assert [(row["episode_id"], row["batch"]) for row in rows] == [("e", batch)] * 2

    engine = QueryEngine(QueryLimits(memory=64 << 20, threads=1))
    law()
    engine.close()
    observed(f"{count} tried")


@pytest.mark.attack(
    "A data file is replaced by a link to a file outside between two queries",
    expected="the batch is left out or refused",
)
def test_a_link_instead_of_a_file_is_not_read(root, tmp_path, observed):
    secret = tmp_path / "secret.parquet"
    pq.write_table(pa.table({"episode_index": [0], "secret": ["s3cret"]}), secret)
    with Workspace.open(root) as ws:
        ws.query("SELECT * FROM frames")
        [file] = (root / "data").rglob("data/*/*.parquet")
        file.unlink()
        file.symlink_to(secret)
        with pytest.raises(TwinloopError) as refusal:
            ws.query("SELECT secret FROM frames")
    assert "s3cret" not in str(refusal.value)
    observed(refusal.value)


@pytest.mark.attack("A data file is a named pipe, which gives nothing and never ends", expected="refused at once")
def test_a_pipe_instead_of_a_file_is_not_opened(root, observed):
    with Workspace.open(root) as ws:
        [file] = (root / "data").rglob("data/*/*.parquet")
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(TwinloopError) as refusal:
            ws.query("SELECT * FROM frames")
    observed(refusal.value)


@pytest.mark.attack("A part of the catalog is no Parquet file", expected="an error that names its path")
def test_a_damaged_file_is_named_by_its_path(root, observed):
    [part] = (root / "catalog" / "params").glob("*.parquet")
    with Workspace.open(root) as ws:
        part.write_bytes(b"PAR1" + b"\xff" * 64 + b"PAR1")
        with pytest.raises(TwinloopError) as refusal:
            ws.query("SELECT * FROM params")
    assert str(part) in str(refusal.value)
    assert "twinloop://" not in str(refusal.value)
    observed(refusal.value)


@pytest.mark.attack(
    "Texts of a task hold escape sequences and markup, and are shown as a table", expected="shown as text"
)
def test_an_answer_is_shown_as_text(root, capfd, observed):
    sql = "SELECT '[/red][bold]x' AS \"[/x]\", chr(27) || ']0;title' || chr(7) || chr(27) || '[2J' AS c"
    assert main(["query", sql, "--workspace", str(root)]) == 0
    said = capfd.readouterr().out
    assert "[/red]" in said
    assert "\x1b" not in said
    assert "\x07" not in said
    observed("no escape sequence")
