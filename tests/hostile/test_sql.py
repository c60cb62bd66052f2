"""SQL that somebody sent writes nothing, and reads nothing but the views: each of two layers suffices."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from _sql import READS, SMALL, WRITES, engine_of, file_hashes, make_cell, statements, targets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinloop.catalog.engine import QueryEngine, quote_literal
from twinloop.catalog.statements import MAX_CHARACTERS, REFUSED_FUNCTIONS, TABLE_FUNCTIONS, require_read_only
from twinloop.core.errors import InputError, TwinloopError, UnknownNameError

NOTHING_WRITTEN = "refused, and every file is as it was"
DEFAULT_TARGETS = ("outside", "part")


@pytest.fixture(name="cell", scope="module")
def workspace(tmp_path_factory):
    with make_cell(tmp_path_factory.mktemp("sql") / "cell") as ws:
        ws.query("SELECT * FROM frames")
        yield ws


@pytest.fixture(name="parser", scope="module")
def parser_connection():
    with contextlib.closing(duckdb.connect(":memory:", config={"python_enable_replacements": False})) as made:
        yield made


@pytest.fixture(name="untouched")
def files_stay(cell):
    """Compare every file of the workspace, of the folders around it and of the home folder before and after."""
    folder, home = cell.root.parent, Path.home()
    before, at_home = file_hashes(folder), sorted(home.iterdir())
    yield folder
    assert file_hashes(folder) == before
    assert sorted(home.iterdir()) == at_home


def _params(table, what):
    return [
        pytest.param(sql, marks=pytest.mark.attack(what.format(name), expected=NOTHING_WRITTEN), id=name)
        for name, sql in table.items()
    ]


@pytest.mark.parametrize("sql", _params(WRITES, "A query that writes: {}"))
def test_a_statement_that_writes_is_refused(cell, untouched, observed, sql):
    for name in DEFAULT_TARGETS:
        with pytest.raises(TwinloopError) as refusal:
            cell.query(sql.format(path=quote_literal(str(targets(cell.root)[name]))))
        assert not isinstance(refusal.value, UnknownNameError) or "episodes" in sql
    observed(refusal.value)


@pytest.mark.parametrize("sql", _params(WRITES, "A query that writes, run without the check of its tree: {}"))
def test_without_the_check_nothing_is_written_either(cell, untouched, observed, sql):
    engine = engine_of(cell)
    seen = set[str]()
    for target in targets(cell.root).values():
        try:
            engine.query_unchecked(sql.format(path=quote_literal(str(target))))
            seen.add("ran, in memory alone")
        except TwinloopError as error:
            seen.add(str(error)[:60])
    engine.close()
    observed("; ".join(sorted(seen)))


@pytest.mark.parametrize("sql", _params(READS, "A query that reads more than views: {}"))
def test_a_statement_reads_views_and_nothing_else(cell, untouched, observed, sql):
    with pytest.raises(TwinloopError) as refusal:
        cell.query(sql.format(path=quote_literal(str(targets(cell.root)["part"]))))
    observed(refusal.value)


@pytest.mark.attack("A COPY in a WITH, given to the check of statements alone", expected="refused by the check itself")
def test_the_check_alone_refuses_every_statement_that_writes(parser, observed):
    passed = list[str]()
    for name, sql in WRITES.items():
        try:
            require_read_only(parser, sql.format(path="'/tmp/x.parquet'"))
            passed.append(name)
        except (InputError, duckdb.Error):
            pass
    observed(f"{len(WRITES) - len(passed)} of {len(WRITES)} refused")
    assert not passed


@pytest.mark.attack(
    "Statements that read files or settings, given to the check of statements alone", expected="refused by the check"
)
def test_the_check_alone_refuses_every_statement_that_reads_more(parser, observed):
    passed = list[str]()
    for name, sql in READS.items():
        with contextlib.suppress(TwinloopError, duckdb.ParserException):
            require_read_only(parser, sql.format(path="'/tmp/x.parquet'"))
            passed.append(name)
    observed(f"{len(READS) - len(passed)} of {len(READS)} refused")
    assert not passed


@pytest.mark.attack(
    "Files and folders of the machine are read, run without the check of the tree", expected="none is reached"
)
def test_without_the_check_no_file_of_the_machine_is_read(cell, untouched, observed):
    engine = engine_of(cell)
    path = quote_literal(str(targets(cell.root)["part"]))
    sqls = [
        f"SELECT * FROM read_text({path})",
        f"SELECT * FROM read_csv({path})",
        f"FROM {path}",
        "FROM glob('/etc/*')",
    ]
    for sql in sqls:
        with pytest.raises(InputError, match="no files and no settings"):
            engine.query_unchecked(sql)
    engine.close()
    observed("no files and no settings")


@pytest.mark.attack(
    "A statement without the check of its tree plants a view, a macro or a table for the next one",
    expected="the database of the views cannot be changed",
)
@pytest.mark.parametrize(
    "sql", ["CREATE OR REPLACE VIEW params AS SELECT 1", "CREATE TABLE t(a INT)", "DROP VIEW params"]
)
def test_views_of_files_are_not_replaced(cell, observed, sql):
    engine = engine_of(cell)
    with pytest.raises(InputError, match="read-only") as refusal:
        engine.query_unchecked(sql)
    assert engine.query("SELECT count(*) AS n FROM params")["n"].to_pylist() != [0]
    engine.close()
    observed(refusal.value)


READING = {
    "a CTE of its name": 'WITH "my list" AS (SELECT episode_id FROM episodes) SELECT * FROM "My List"',
    "a recursive CTE": "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 4) FROM r",
    "a PIVOT": "FROM (PIVOT params ON name IN ('a', 'b') USING sum(value))",
    "an UNPIVOT": "FROM (UNPIVOT (SELECT frames, fps FROM episodes) ON frames, fps)",
    "DESCRIBE": "DESCRIBE episodes",
    "SUMMARIZE": "SUMMARIZE SELECT frames FROM episodes",
    "SHOW TABLES": "SHOW TABLES",
    "frames": "SELECT action, max(frame_index) OVER (PARTITION BY episode_id) FROM frames QUALIFY frame_index > 1",
    "FRAMES": "SELECT count(*) FROM FRAMES",
    "types": "SELECT frames::DECIMAL(9, 2), [1]::DOUBLE[], {'a': 1}.a, MAP {'k': 1}, 'x'::ENUM('x'), DATE '2020-01-01'",
    "functions": "SELECT list_transform([1], lambda x: x + 1), regexp_extract('a', 'a'), strftime(now(), '%Y')",
    "samples and joins": "FROM episodes e ASOF JOIN params p ON e.number >= p.value USING SAMPLE 50%",
    "sets": "SELECT 1 AS a UNION BY NAME SELECT 2 AS a EXCEPT SELECT 3 ORDER BY ALL LIMIT 10% OFFSET 0",
    "grouping sets": "SELECT batch, count(*) FILTER (success) FROM episodes GROUP BY GROUPING SETS ((batch), ())",
    "schemas": "SELECT * FROM main.episodes, information_schema.tables, duckdb_columns LIMIT 1",
    "json": "SELECT * FROM json_each('[1]'), range(3), unnest([1, 2]), generate_series(1, 2)",
    "star": "SELECT * EXCLUDE (task) REPLACE (1 AS frames), COLUMNS('f.*') FROM episodes",
    "operators": "SELECT 1 + 2 * 3 // 4 % 5 << 1 | 2 & 3, 'a' || 'b', 'a' LIKE 'b', NOT true, 1 BETWEEN 0 AND 2, -1",
    "subqueries": "SELECT (SELECT max(frames) FROM episodes), frames = ANY (SELECT 50) FROM episodes WHERE fps IN (1)",
}


@pytest.mark.parametrize("sql", READING.values(), ids=READING)
def test_what_reads_runs(cell, sql):
    table = "FROM episodes" if sql.startswith("SELECT frames::") else ""
    assert isinstance(cell.query(f"{sql} {table}"), pa.Table)


@pytest.mark.attack(
    "150 generated statements nest COPY, INSERT, ATTACH, SET and others, in comments, letters and texts",
    expected="none runs, and the hash of every file is as it was",
)
def test_no_generated_statement_writes(cell, untouched, observed):
    paths = [str(target) for target in targets(cell.root).values()]
    before, count = file_hashes(untouched), 0

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(statements(paths))
    def law(sql):
        nonlocal count
        count += 1
        with pytest.raises(TwinloopError):
            cell.query(sql)

    law()
    assert file_hashes(untouched) == before
    observed(f"{count} refused")


@pytest.mark.attack(
    "150 lists of generated statements that write run without the check of their tree",
    expected="the hash of every file is as it was",
)
def test_no_generated_statement_writes_without_the_check(cell, untouched, observed):
    paths = [str(target) for target in targets(cell.root).values()]
    before = file_hashes(untouched)
    count = ran = 0

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(statements(paths), min_size=1, max_size=3))
    def law(sqls):
        nonlocal count, ran
        for sql in sqls:
            count += 1
            with contextlib.suppress(TwinloopError):
                engine.query_unchecked(sql)
                ran += 1

    engine = engine_of(cell)
    law()
    engine.close()
    assert file_hashes(untouched) == before
    observed(f"{count} tried, {ran} ran in memory alone")


_WORDS = ["SELECT", "FROM", "(", ")", "'", '"', ";", "--", "/*", "*/", "$$", ",", "*", "1", "\0", "\ud800", "é"]


@pytest.mark.attack(
    "100 texts of random letters, quotes, key words, NUL and halves of characters are run as SQL",
    expected="an error that says what is wrong",
)
@settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(st.sampled_from(_WORDS), max_size=20).map(" ".join),
    )
)
def test_any_text_is_answered_or_refused(cell, sql):
    with contextlib.suppress(TwinloopError):
        cell.query(sql)


DEEP = {
    "subqueries": lambda n: "FROM(" * n + "SELECT 1" + ")" * n,
    "WITHs": lambda n: "WITH a AS(" * n + "FROM b" + ")FROM a" * n,
    "joins": lambda n: "FROM " + ",".join(["a"] * n),
    "parentheses": lambda n: "SELECT " + "(" * n + "1" + ")" * n,
    "lists": lambda n: "SELECT " + "[" * n + "]" * n,
    "UNIONs": lambda n: "SELECT 1" + " UNION SELECT 1" * n,
    "comments": lambda n: "/*" * n + "*/" * n,
    "joins of ids": lambda n: "FROM " + ",".join(["'" + "a" * 64 + "'"] * n),
    "ids between quotes": lambda n: "SELECT 'IN (" + ",".join(["'" + "a" * 16 + "'"] * n) + ") FROM(" * n,
}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            make,
            marks=pytest.mark.attack(
                f"A statement of 300,000 nested {name} overflows the parser's stack", expected="refused by its length"
            ),
            id=name,
        )
        for name, make in DEEP.items()
    ],
)
def test_a_statement_nested_without_end_is_refused(cell, observed, make):
    with pytest.raises(InputError, match="at most 100,000 are read") as refusal:
        cell.query(make(300_000))
    observed(refusal.value)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, marks=[] if name in ("WITHs", "subqueries", "comments") else [pytest.mark.slow], id=name)
        for name, make in DEEP.items()
    ],
)
def test_a_statement_as_long_as_allowed_does_not_end_the_process(cell, make):
    count = next(n for n in range(MAX_CHARACTERS, 0, -500) if len(make(n)) <= MAX_CHARACTERS)
    with contextlib.suppress(TwinloopError):
        cell.query(make(count))


def test_a_long_list_of_ids_is_read(cell):
    name = cell.query("SELECT episode_id FROM episodes LIMIT 1")["episode_id"][0].as_py()
    ids = ", ".join(f"'{n:064x}'" for n in range(5_000))
    sql = f"SELECT episode_id FROM episodes WHERE episode_id IN ({ids}, '{name}')"
    assert cell.query(sql)["episode_id"].to_pylist() == [name]


@pytest.mark.attack(
    "Functions that a new version of DuckDB adds, with effects on the database or knowledge of it",
    expected="each is refused, or known to be harmless",
)
def test_every_function_with_side_effects_is_decided_on(parser, observed):
    harmless = {
        *("current_database", "current_date", "current_schema", "current_schemas", "get_current_time", "today", "now"),
        *("get_current_timestamp", "current_localtime", "current_localtimestamp", "transaction_timestamp", "version"),
        *("random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "error", "pg_typeof", "unnest"),
    }
    found = parser.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'scalar' "
        "AND (has_side_effects OR stability <> 'CONSISTENT')"
    ).fetchall()
    undecided = {name for (name,) in found} - REFUSED_FUNCTIONS - harmless
    observed(f"{len(found)} functions, {len(undecided)} undecided")
    assert not {name for name in undecided if not name.startswith("__internal")}


def test_table_functions_that_are_allowed_take_no_path(parser):
    for name in sorted(TABLE_FUNCTIONS):
        with contextlib.suppress(duckdb.Error):
            rows = parser.execute(f"SELECT * FROM {name}('/etc/passwd')").fetchall()
            assert "root:" not in str(rows)


@pytest.mark.attack(
    "The file system that queries read through is asked to write, remove, move and create",
    expected="nothing but reading exists in it",
)
def test_the_file_system_of_queries_cannot_write(cell, untouched, observed):
    from twinloop.catalog.readable_files import ReadableFiles

    files = ReadableFiles()
    part = targets(cell.root)["part"]
    [name] = files.assign_names([Path(str(part))])
    new = str(cell.root / "catalog" / "made.parquet")
    for mode in ("wb", "ab", "r+b", "xb", "w", "rb+"):
        with pytest.raises(PermissionError):
            files.open(name, mode)
    for path in (str(part), "twinloop://files/1.parquet", "twinloop://files/../0.parquet", name + "/..", name.upper()):
        with pytest.raises(FileNotFoundError):
            files.open(path)
    calls = {
        "rm": (name,), "rm_file": (name,), "mv": (name, new), "cp_file": (name, new), "copy": (name, new),
        "touch": (name,), "pipe_file": (name, b"x"), "pipe": (name, b"x"), "put_file": (new, name), "mkdir": (new,),
        "makedirs": (new,), "rmdir": (name,), "write_bytes": (name, b"x"), "write_text": (name, "x"),
    }  # fmt: skip
    for call, arguments in calls.items():
        with contextlib.suppress(Exception):
            getattr(files, call)(*arguments)
    assert not Path(new).exists()
    observed(f"{len(calls)} operations, none wrote")


def test_an_open_file_is_read_by_several_threads_at_once(cell):
    from concurrent.futures import ThreadPoolExecutor

    from twinloop.catalog.readable_files import ReadableFile

    path = Path(str(targets(cell.root)["part"]))
    data, file = path.read_bytes(), ReadableFile(path)

    def piece(place: int) -> bool:
        file.seek(place % len(data))
        return file.read(7) == data[place % len(data) :][:7]

    file.seek(9)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(piece, range(0, 40_000, 13)))
    assert file.read(3) == data[9:12]
    assert (file.seek(0), file.read(), file.tell()) == (0, data, len(data))
    file.close()


def test_settings_are_final(cell):
    engine = QueryEngine(dataclasses.replace(SMALL))
    final = ("enable_external_access = true", "allowed_directories = ['/']", "disabled_filesystems = ''")
    for setting in (*final, "memory_limit = '900GB'", "temp_directory = '/tmp'", "python_enable_replacements = true"):
        with pytest.raises(InputError):
            engine.query_unchecked(f"SET {setting}")
    engine.close()
