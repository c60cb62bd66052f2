"""Statements that never end or fill the memory are stopped, with the setting to raise, and the next one runs."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from _sql import make_cell

from twinloop.catalog import Workspace, limits
from twinloop.catalog.engine import QueryEngine
from twinloop.catalog.limits import DEFAULT_MEMORY, DEFAULT_TIMEOUT_S, QueryLimits
from twinloop.cli.main import main
from twinloop.core.errors import InputError, TwinloopError, UnknownNameError

TIMED_OUT, TOO_LARGE = "stopped; the message names timeout_s", "refused; the message names memory"
MEMORY, UNCOUNTED = 32 << 20, 128 << 20


@pytest.fixture(name="cell", scope="module")
def workspace(tmp_path_factory):
    with make_cell(tmp_path_factory.mktemp("limits") / "cell") as ws:
        yield ws


@pytest.fixture(name="engine")
def small_engine(monkeypatch):
    monkeypatch.setattr(limits, "_UNCOUNTED", UNCOUNTED)
    made = QueryEngine(QueryLimits(memory=MEMORY, threads=2, timeout_s=20.0))
    yield made
    made.close()


def _params(table, what, expected):
    return [
        pytest.param(sql, marks=pytest.mark.attack(what.format(name), expected=expected), id=name)
        for name, sql in table.items()
    ]


ENDLESS = {
    "a recursive WITH without an end": (
        "WITH RECURSIVE r AS (SELECT 1 n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"
    ),
    "a cross join of 10 to the 18 rows": "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c",
    "a sum over 10 to the 13 numbers": "SELECT sum(hash(i)) FROM range(10000000000000) t(i)",
    "a recursive WITH whose rows are all given": (
        "WITH RECURSIVE r AS (SELECT 1 n UNION ALL SELECT n + 1 FROM r) SELECT n FROM r"
    ),
    "a LIMIT behind a condition that never holds": "SELECT * FROM range(10000000000000) t(i) WHERE i < 0 LIMIT 1",
}


@pytest.mark.parametrize("sql", _params(ENDLESS, "A query that never ends: {}", TIMED_OUT))
def test_a_statement_that_never_ends_is_stopped(sql, observed):
    engine = QueryEngine(QueryLimits(memory=MEMORY, threads=2, timeout_s=0.3))
    began = time.monotonic()
    with pytest.raises(InputError, match=r"longer than 0.3 s .* query: \{timeout_s: …\} in twinloop.yaml") as refusal:
        engine.query(sql)
    assert time.monotonic() - began < 15
    assert engine.usable
    assert engine.query("SELECT 1 AS n")["n"].to_pylist() == [1]
    engine.close()
    observed(refusal.value)


@pytest.mark.attack(
    "One call of a function that compares two long texts for minutes and cannot be interrupted",
    expected="the caller is given an error in time, and the next query runs in a new database",
)
def test_a_statement_that_cannot_be_interrupted_is_given_up(cell, monkeypatch, observed):
    monkeypatch.setattr(limits, "_GRACE_S", 0.2)
    monkeypatch.setattr(limits.atexit, "register", lambda _: None)
    cell.close()
    with Workspace.open(cell.root) as ws:
        monkeypatch.setattr(ws._queries, "_limits", QueryLimits(memory=MEMORY, threads=2, timeout_s=0.3))
        with pytest.raises(InputError, match="longer than 0.3 s"):
            ws.query("SELECT levenshtein(repeat('a', 25000), repeat('b', 25000))")
        given_up = ws._queries._engine
        assert not given_up.usable
        monkeypatch.setattr(ws._queries, "_limits", QueryLimits(memory=MEMORY, timeout_s=60))
        assert ws.query("SELECT 1 AS n")["n"].to_pylist() == [1]
        assert ws._queries._engine is not given_up
    for thread in threading.enumerate():
        if thread.name == "twinloop-statement":
            thread.join()
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
    observed("given up after 0.5 s")


LARGE = {
    "ten thousand million rows": "SELECT * FROM range(10000000000)",
    "a cross join": "SELECT * FROM range(1000000) a, range(1000000) b",
    "a grouping by a thousand million keys": "SELECT i, count(*) FROM range(1000000000) t(i) GROUP BY i",
    "a sort of a thousand million rows": "SELECT * FROM range(1000000000) t(i) ORDER BY hash(i)",
    "a list of a thousand million": "SELECT list(i) FROM range(1000000000) t(i)",
    "a text put together": "SELECT string_agg(repeat('x', 1000), '') FROM range(10000000)",
    "a window over a thousand million rows": "SELECT row_number() OVER (ORDER BY hash(i)) FROM range(1000000000) t(i)",
    "a text of 4 GB": "SELECT repeat('x', 4000000000) AS s",
    "a text of 4 GB of which only the length is asked": "SELECT len(repeat('x', 4000000000)) AS n",
    "a text of 2 GB by a format": "SELECT format('{:>2000000000}', 'x')",
    "a text of 10 GB by replacing": "SELECT replace(repeat('a', 100000), 'a', repeat('b', 100000))",
    "a list of 8 GB": "SELECT range(1000000000) AS l",
    "rows of 1 MB": "SELECT repeat('x', 1000000) AS s FROM range(100000)",
    "bytes of 4 GB": "SELECT repeat('x', 4000000000)::BLOB AS b",
    "a parameter put into many rows": "SELECT $x AS x FROM range(100000000)",
    "a text that doubles": (
        "WITH RECURSIVE r AS (SELECT 'xxxxxxxx' AS s UNION ALL SELECT s || s FROM r) SELECT max(len(s)) FROM r"
    ),
    "a million columns' worth of structs": "SELECT list_transform(range(3000000), lambda x: {'a': x, 'b': [x, x, x]})",
}


@pytest.mark.parametrize("sql", _params(LARGE, "A query that fills the memory, with 32 MB allowed: {}", TOO_LARGE))
def test_a_statement_that_fills_the_memory_is_refused(engine, sql, observed):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"query: \{memory: …\} in twinloop.yaml") as refusal:
        engine.query(sql, {"x": "y" * 1000} if "$x" in sql else ())
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < (2 * MEMORY + UNCOUNTED) / 2**20 + 64
    assert engine.query("SELECT 1 AS n")["n"].to_pylist() == [1]
    observed(f"{refusal.value}"[:90] + f" … ({grown:.0f} MB more)")


def test_limits_of_the_process_are_as_before(engine):
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with ThreadPoolExecutor(4) as pool:
        engines = [QueryEngine(QueryLimits(memory=MEMORY)) for _ in range(4)]
        sql = "SELECT sum(i) AS n FROM range(1000000) t(i)"
        assert {one["n"][0].as_py() for one in pool.map(lambda made: made.query(sql), engines)} == {499999500000}
    for made in engines:
        made.close()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_an_answer_as_large_as_allowed_is_given(engine):
    rows = MEMORY // 16
    assert len(engine.query(f"SELECT i FROM range({rows}) t(i)")) == rows
    with pytest.raises(InputError, match="The answer takes more than 34 MB"):
        engine.query(f"SELECT i FROM range({MEMORY // 8 + 100_000}) t(i)")
    with pytest.raises(InputError, match="more than 10 rows"):
        engine.query("SELECT * FROM range(100000000)", max_rows=10)


@pytest.mark.parametrize("column", ["1", "1.5", "1 AS a"])
@pytest.mark.attack("A query with 5,000 columns, alike in name", expected="refused by their number")
def test_an_answer_has_no_more_columns_than_can_be_shown(column, observed):
    engine = QueryEngine(QueryLimits(memory=512 << 20, threads=1))
    with pytest.raises(InputError, match="at most 4,096 are shown") as refusal:
        engine.query("SELECT " + ",".join([column] * 5_000))
    observed(refusal.value)
    names = engine.query("SELECT 1 AS a, 2 AS a, 3 AS a_2, 4 AS a, 5 AS a_2").column_names
    assert names == ["a", "a_3", "a_2", "a_4", "a_2_2"]
    engine.close()


@pytest.mark.attack(
    "Ctrl-C while a query runs for ever", expected="it is stopped at once, and the next query runs in a new database"
)
def test_ctrl_c_stops_a_statement(cell, monkeypatch, observed):
    monkeypatch.setattr(cell._queries, "_limits", QueryLimits(memory=MEMORY, timeout_s=60))
    cell._queries.close()
    threading.Timer(0.3, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        cell.query(ENDLESS["a recursive WITH without an end"])
    assert time.monotonic() - began < 10
    assert cell.query("SELECT 1 AS n")["n"].to_pylist() == [1]
    observed("KeyboardInterrupt")


def test_ctrl_c_while_a_table_is_shown_is_ctrl_c():
    class Interrupted:
        def __arrow_c_stream__(self, requested_schema=None):
            raise KeyboardInterrupt

        def __arrow_c_schema__(self):
            raise KeyboardInterrupt

    engine = QueryEngine(QueryLimits(memory=MEMORY))
    with pytest.raises(KeyboardInterrupt):
        engine.register_table("x", Interrupted())
    assert not engine.usable


SETTINGS = [
    ("memory: -1GB", "Write a number and a unit"),
    ("memory: lots", "Write a number and a unit"),
    ("memory: 4", "Write a number and a unit"),
    ("memory: 0.1B", "needs more than that"),
    ("memory: [1GB]", "Write a number and a unit"),
    ("memory: \"1GB', temp_directory='/tmp\"", "Write a number and a unit"),
    ("threads: 0", "from 1 to 256"),
    ("threads: 1000000", "from 1 to 256"),
    ("threads: true", "from 1 to 256"),
    ("threads: two", "from 1 to 256"),
    ("timeout_s: 0", "above 0"),
    ("timeout_s: -1", "above 0"),
    ("timeout_s: .nan", "above 0"),
    ("timeout_s: .inf", "above 0"),
    ("timeout_s: 1e300", "at most 86400"),
    ("timeout_s: soon", "above 0"),
    ("timeout_s: null", "above 0"),
    ("temp_directory: /tmp", "Unknown setting"),
    ("allowed_paths: [/]", "Unknown setting"),
]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            *row,
            marks=pytest.mark.attack(
                f"A workspace that was sent sets query: {{{row[0]}}} in twinloop.yaml",
                expected="refused, with the file",
            ),
            id=row[0],
        )
        for row in SETTINGS
    ],
)
def test_limits_that_cannot_be_are_refused(tmp_path, text, message, observed):
    root = Workspace.create(tmp_path / "cell").root
    (root / "twinloop.yaml").write_text(f"name: cell\nquery: {{{text}}}\n")
    with pytest.raises((InputError, UnknownNameError), match=message) as refusal:
        Workspace.open(root)
    assert "twinloop.yaml" in str(refusal.value)
    observed(refusal.value)


def test_limits_have_defaults_and_units(tmp_path):
    file = tmp_path / "twinloop.yaml"
    default = QueryLimits.read({}, file)
    assert default.timeout_s == DEFAULT_TIMEOUT_S == 60
    assert 0 < default.memory <= DEFAULT_MEMORY == 4 * 2**30
    sizes = {"4GB": 4 * 10**9, "512MiB": 512 * 2**20, "1.5 gb": 1_500_000_000, "20MB": 20_000_000, "1024B": 1024}
    machine = limits._measure_machine_memory()
    for text, size in sizes.items():
        assert QueryLimits.read({"query": {"memory": text}}, file).memory == min(size, machine)
    assert QueryLimits.read({"query": {"memory": "50%"}}, file).memory == machine // 2
    assert QueryLimits.read({"query": {"memory": "1000TB"}}, file).memory == machine
    assert QueryLimits.read({"query": {"timeout_s": 5, "threads": 3}}, file) == QueryLimits(
        memory=default.memory, threads=3, timeout_s=5
    )


@pytest.mark.attack("An answer too large for one line of JSON is asked for with --json", expected="refused: --output")
def test_an_answer_too_large_for_one_line_is_refused(cell, monkeypatch, capfd, observed):
    monkeypatch.setattr("twinloop.workflows.data.query._MOST_IN_LINE", 1000)
    assert main(["query", "SELECT * FROM range(1000)", "--json", "--workspace", str(cell.root)]) == 2
    said = capfd.readouterr().err
    assert "--output FILE" in said
    observed(said)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind,
            marks=pytest.mark.attack(
                f"A query whose rows never end, written as {kind}", expected="refused, and no file is left"
            ),
            id=kind,
        )
        for kind in ("table", "json", "parquet", "arrow", "csv")
    ],
)
def test_no_format_takes_more_than_the_limit(cell, tmp_path, capfd, kind, observed):
    (cell.root / "twinloop.yaml").write_text("name: cell\nquery: {memory: 32MB, timeout_s: 20}\n")
    output = tmp_path / "answer"
    words = ["SELECT [i] AS l FROM range(10000000000) t(i)", "--format", kind, "--output", str(output)]
    assert main(["query", *words, "--workspace", str(cell.root)]) == 2
    assert not list(tmp_path.glob("*answer*"))
    said = capfd.readouterr().err
    assert "query: {memory: …}" in said
    observed(said)


PARAMETERS = {
    "a list that holds itself": "recursive",
    "lists in lists in lists, 100,000 deep": "deep",
    "a number of 400 digits": 10**400,
    "half of a UTF-16 pair": "\ud800",
    "a set": {1, 2},
    "an object": object(),
    "a mapping with keys of several types": {1: 2, "a": [1], None: {}},
    "lists of unlike things": [1, "a", None, {}, [[]]],
}


@pytest.mark.parametrize(
    "value", _params(PARAMETERS, "A parameter of a statement is {}", "a value, or refused as wrong input")
)
def test_a_parameter_is_a_value_or_refused(cell, value, observed):
    made: list[object] = []
    if value == "recursive":
        made.append(made)
        value = made
    elif value == "deep":
        for _ in range(100_000):
            made = [made]
        value = made
    try:
        observed(f"{len(cell.query('SELECT $x AS x', {'x': value}))} row")
    except TwinloopError as error:
        observed(error)


@pytest.mark.slow
@pytest.mark.attack(
    "`twinloop query` with one call of a function that cannot be stopped", expected="it ends in time with exit code 2"
)
def test_the_command_ends_though_a_statement_cannot_be_stopped(cell, observed):
    (cell.root / "twinloop.yaml").write_text("name: cell\nquery: {memory: 32MB, timeout_s: 0.5}\n")
    sql = "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))"
    code = f"import sys; from twinloop.cli.main import main; sys.exit(main(['query', {sql!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cell.root, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "timeout_s" in done.stderr
    observed(done.stderr)


@pytest.mark.slow
@pytest.mark.attack(
    "All queries that fill the memory, in a process of its own with the default slack of 1 GiB",
    expected="the process never holds more than 1.5 GB",
)
def test_the_process_stays_small(observed):
    code = f"""
import contextlib
from pathlib import Path
from twinloop.catalog.engine import QueryEngine
from twinloop.catalog.limits import QueryLimits
from twinloop.core.errors import TwinloopError
for sql in {list(LARGE.values())!r}:
    engine = QueryEngine(QueryLimits(memory={MEMORY}, threads=2, timeout_s=30.0))
    with contextlib.suppress(TwinloopError):
        engine.query(sql, {{"x": "y" * 1000}} if "$x" in sql else ())
        raise SystemExit(f"not refused: {{sql}}")
    engine.close()
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])  # ru_maxrss begins with the parent's
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout) / 1024
    assert peak < 1500
    observed(f"{peak:.0f} MB")


def test_the_texts_of_the_tests_are_statements(engine):
    with contextlib.suppress(TwinloopError):
        for sql in (*ENDLESS.values(), *LARGE.values()):
            engine._connection.extract_statements(sql)
