"""Statements as an attacker writes them, and the files that none of them may touch."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from support.dataset_writer import SPEC, planted
from twinloop.catalog import Workspace
from twinloop.catalog.engine import QueryEngine, quote_literal
from twinloop.catalog.limits import QueryLimits
from twinloop.dataset.lerobot.writer import DatasetWriter

SMALL = QueryLimits(memory=64 << 20, threads=2, timeout_s=20.0)


def make_cell(root: Path) -> Workspace:
    """Make a workspace of one dataset with two episodes."""
    ws = Workspace.create(root)
    with DatasetWriter.open(root / "data" / "planted", SPEC) as writer:
        writer.commit_block(0, [replace(planted(50), number=0), replace(planted(40), number=1)])
    ws.add(root / "data" / "planted")
    return ws


def file_hashes(folder: Path, *, but: tuple[str, ...] = ("-shm",)) -> dict[str, str]:
    """Return the hash of every file below a folder; SQLite's index in shared memory holds locks and no content."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(but))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def engine_of(ws: Workspace, *, limits: QueryLimits = SMALL) -> QueryEngine:
    """Return an engine with views of files and of a table, as `Queries` makes it."""
    engine = QueryEngine(limits)
    engine.register_table("episodes", ws.query("SELECT * FROM episodes"))
    [part] = ws.parts.list_parts("params")
    engine.create_file_view("params", [ws.parts.path("params", part.part)])
    return engine


def targets(root: Path) -> dict[str, Path | str]:
    """Return what an attacker would write to: the workspace's own files, new ones, and names that DuckDB may open."""
    part = next((root / "catalog" / "params").glob("*.parquet"))
    data = next((root / "data").rglob("data/*/*.parquet"))
    return {
        "part": part,
        "frames": data,
        "state": root / "catalog" / "state.sqlite",
        "settings": root / "twinloop.yaml",
        "new": root / "catalog" / "new.parquet",
        "outside": root.parent / "outside.csv",
        "relative": os.path.relpath(root.parent / "relative.csv"),
        "spill": root / "catalog" / ".spill" / "x.csv",
        "home": Path("~/twinloop-attack.csv").expanduser(),
        "url": "file://" + str(root.parent / "url.csv"),
        "ours": "twinloop://files/0.parquet",
        "ours-new": "twinloop://files/99.parquet",
        "ours-up": "twinloop://files/../" + str(part),
    }


# By effect: {path} is a target. Each passes as a SELECT, or is a full statement.
WRITES = {
    "COPY in a WITH": "WITH a AS (COPY (SELECT 1 AS n) TO {path} (FORMAT PARQUET)) SELECT 1",
    "COPY in a WITH that nothing reads": "WITH a AS MATERIALIZED (COPY episodes TO {path}) SELECT 1 FROM episodes",
    "COPY in a WITH in a subquery": "SELECT * FROM (WITH a AS (COPY (SELECT 1) TO {path}) SELECT 1)",
    "COPY in a WITH in an expression": "SELECT (WITH a AS (COPY (SELECT 1) TO {path}) SELECT 1)",
    "COPY in a WITH in a condition": ("FROM episodes WHERE EXISTS (WITH a AS (COPY (SELECT 1) TO {path}) SELECT 1)"),
    "COPY in a WITH in a UNION": "SELECT 1 UNION ALL (WITH a AS (COPY (SELECT 1) TO {path}) SELECT 2)",
    "COPY in a WITH in a WITH": "WITH b AS (WITH a AS (COPY (SELECT 1) TO {path}) SELECT 1) FROM b",
    "COPY in a recursive WITH": (
        "WITH RECURSIVE r AS (WITH a AS (COPY (SELECT 1) TO {path}) SELECT 1 AS n UNION ALL SELECT n + 1 FROM r "
        "WHERE n < 2) FROM r"
    ),
    "COPY in a DESCRIBE": "DESCRIBE WITH a AS (COPY (SELECT 1) TO {path}) SELECT 1",
    "COPY in a SUMMARIZE": "SUMMARIZE WITH a AS (COPY (SELECT 1) TO {path}) SELECT 1",
    "COPY in a PIVOT": "FROM (PIVOT (WITH a AS (COPY (SELECT 1) TO {path}) SELECT 1 AS n) ON n IN (1) USING sum(n))",
    "COPY in a LATERAL join": "FROM episodes, LATERAL (WITH a AS (COPY (SELECT 1) TO {path}) SELECT 1)",
    "COPY behind a comment": "/* SELECT */ WITH a AS -- SELECT\n(cOpY/**/(SELECT 1)\nTO {path}) SELECT 1",
    "COPY by partitions": "WITH a AS (COPY (SELECT 1 n) TO {path} (FORMAT CSV, PARTITION_BY (n), OVERWRITE)) SELECT 1",
    "COPY that overwrites": "WITH a AS (COPY (SELECT 1) TO {path} (FORMAT PARQUET, OVERWRITE TRUE)) SELECT 1",
    "COPY that appends": "WITH a AS (COPY (SELECT 1) TO {path} (FORMAT CSV, APPEND)) SELECT 1",
    "COPY alone": "COPY (SELECT 1) TO {path}",
    "COPY FROM": "COPY episodes FROM {path}",
    "COPY as a second statement": "SELECT 1; COPY (SELECT 1) TO {path}",
    "INSERT in a WITH": "WITH a AS (INSERT INTO episodes SELECT * FROM episodes RETURNING *) FROM a",
    "UPDATE in a WITH": "WITH a AS (UPDATE episodes SET success = false RETURNING *) FROM a",
    "DELETE in a WITH": "WITH a AS (DELETE FROM episodes RETURNING *) FROM a",
    "DELETE alone": "DELETE FROM params",
    "EXPLAIN ANALYZE of a COPY": "EXPLAIN ANALYZE COPY (SELECT 1) TO {path}",
    "EXPLAIN ANALYZE of a WITH": "EXPLAIN ANALYZE WITH a AS (COPY (SELECT 1) TO {path}) SELECT 1",
    "ATTACH": "ATTACH {path} AS other",
    "ATTACH and CREATE": "ATTACH {path} AS other; CREATE TABLE other.t AS SELECT 1",
    "EXPORT DATABASE": "EXPORT DATABASE {path}",
    "IMPORT DATABASE": "IMPORT DATABASE {path}",
    "INSTALL": "INSTALL httpfs FROM {path}",
    "LOAD": "LOAD {path}",
    "SET of the folder for temporary files": "SET temp_directory = {path}",
    "SET of the log": "SET log_query_path = {path}",
    "PRAGMA of the profile": "PRAGMA profile_output = {path}",
    "CALL of the logger": "CALL enable_logging(storage = 'file', storage_config = {{'path': {path}}})",
    "CREATE SECRET": "CREATE PERSISTENT SECRET s IN local_file (TYPE http, bearer_token 'x')",
    "CREATE TABLE": "CREATE TABLE t AS SELECT 1",
    "a view over ours": "CREATE OR REPLACE TEMP VIEW episodes AS SELECT 666 AS episode_id",
    "CREATE MACRO": "CREATE MACRO f() AS 1",
    "CHECKPOINT": "FORCE CHECKPOINT",
    "VACUUM": "VACUUM",
    "PREPARE and EXECUTE": "PREPARE p AS COPY (SELECT 1) TO {path}; EXECUTE p",
    "MERGE": "MERGE INTO episodes e USING episodes f ON true WHEN MATCHED THEN DELETE",
    "a serialized statement": "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "USE and DETACH": "DETACH memory",
    "COMMIT first": "COMMIT; CREATE TABLE t AS SELECT 1",
}

# What reads files, settings or the process; {path} is a file of the workspace.
READS = {
    "read_csv": "SELECT * FROM read_csv({path})",
    "read_text": "SELECT * FROM read_text({path})",
    "read_blob": "SELECT * FROM read_blob({path})",
    "read_json": "SELECT * FROM read_json_auto({path})",
    "read_parquet": "SELECT * FROM read_parquet({path})",
    "read_parquet of our own names": "SELECT * FROM read_parquet('twinloop://files/0.parquet')",
    "parquet_scan in capitals": 'SELECT * FROM "PARQUET_SCAN"({path})',
    "parquet_metadata": "SELECT * FROM parquet_metadata({path})",
    "parquet_kv_metadata": "SELECT * FROM parquet_kv_metadata({path})",
    "sniff_csv": "SELECT * FROM sniff_csv({path})",
    "glob": "SELECT * FROM glob('/etc/*')",
    "a path as a table": "SELECT * FROM {path}",
    "a quoted path as a table": 'SELECT * FROM "/etc/passwd.csv"',
    "a web address as a table": "SELECT * FROM 'https://example.com/x.parquet'",
    "a path as a table in a subquery": "SELECT (SELECT count(*) FROM {path})",
    "a path as a table in a join": "SELECT * FROM episodes JOIN {path} USING (episode_id)",
    "a path whose name a WITH takes": 'WITH "/etc/passwd.csv" AS (FROM "/etc/passwd.csv") FROM "/etc/passwd.csv"',
    "a path whose name another WITH takes": (
        'SELECT (WITH "/etc/passwd.csv" AS (SELECT 1) SELECT 1), (SELECT count(*) FROM "/etc/passwd.csv")'
    ),
    "DESCRIBE of a path": "DESCRIBE {path}",
    "SUMMARIZE of a path": "SUMMARIZE {path}",
    "SHOW of a setting": "SHOW secret_directory",
    "query()": "SELECT * FROM query('SELECT 1')",
    "query_table()": "SELECT * FROM query_table(['episodes'])",
    "query_table() of a path": "SELECT * FROM query_table({path})",
    "histogram() of a table by name": "SELECT * FROM histogram('episodes', 'frames')",
    "duckdb_settings()": "SELECT * FROM duckdb_settings()",
    "pg_settings": "SELECT * FROM pg_catalog.pg_settings",
    "duckdb_secrets()": "SELECT * FROM duckdb_secrets()",
    "duckdb_logs()": "SELECT * FROM duckdb_logs()",
    "duckdb_databases()": "SELECT * FROM duckdb_databases()",
    "duckdb_extensions()": "SELECT * FROM duckdb_extensions()",
    "duckdb_memory()": "SELECT * FROM duckdb_memory()",
    "pragma_table_info()": "SELECT * FROM pragma_table_info('episodes')",
    "pragma_user_agent()": "SELECT * FROM pragma_user_agent()",
    "current_setting()": "SELECT current_setting('secret_directory')",
    "current_setting() as a method": "SELECT 'home_directory'.current_setting()",
    "current_setting() with its schema": "SELECT system.main.current_setting('home_directory')",
    "current_setting() in a window": "SELECT max(current_setting('threads')) OVER () FROM episodes",
    "getenv()": "SELECT getenv('HOME')",
    "getvariable()": "SELECT getvariable('x')",
    "current_query()": "SELECT current_query()",
    "arrow_scan of an address": "SELECT * FROM arrow_scan(0, 0, 0)",
    "pandas_scan of an address": "SELECT * FROM pandas_scan(1)",
    "python_map_function": "SELECT * FROM python_map_function(1)",
    "seq_scan": "SELECT * FROM seq_scan('episodes')",
    "write_log()": "SELECT write_log('x')",
    "nextval()": "SELECT nextval('s')",
    "setseed()": "SELECT setseed(0.5)",
    "sleep_ms()": "SELECT sleep_ms(10)",
    "read_text in a default": "SELECT * FROM (VALUES ((SELECT content FROM read_text({path}))))",
    "read_text in an ORDER BY": "FROM episodes ORDER BY (SELECT content FROM read_text({path}))",
    "read_text in a QUALIFY": "FROM episodes QUALIFY (SELECT count(*) FROM read_text({path})) > 0",
    "read_text in a LIMIT": "FROM episodes LIMIT (SELECT count(*) FROM read_text({path}))",
    "read_text in a lambda": "SELECT [x for x in [1] if (SELECT count(*) FROM read_text({path})) > 0]",
    "read_text in a REPLACE": "SELECT * REPLACE ((SELECT content FROM read_text({path})) AS task) FROM episodes",
    "read_text in a FILTER": "SELECT count(*) FILTER ((SELECT count(*) FROM read_text({path})) > 0) FROM episodes",
    "read_text in an UNPIVOT": "FROM (UNPIVOT (SELECT content FROM read_text({path})) ON content)",
}

_NAMES = st.sampled_from(["a", "A", '"a b"', '"é"', "tmp", '"COPY"', "episodes", "_"])
_SPACE = st.sampled_from([" ", "\n", "\t", "/**/", " -- x\n", "/* ; COPY */", "  "])


def statements(paths: list[str]) -> st.SearchStrategy[str]:
    """Return statements that nest what writes, in the places that DuckDB takes it and in those that it does not."""
    path = st.sampled_from([quote_literal(one) for one in paths])
    options = st.sampled_from(["", " (FORMAT PARQUET)", " (FORMAT CSV, HEADER)", " (OVERWRITE)", " (FORMAT JSON)"])
    leaf = st.sampled_from(["SELECT 1 AS n", "FROM episodes", "VALUES (1)", "SELECT * FROM params", "TABLE episodes"])
    writer = st.one_of(
        st.builds("COPY ({}) TO {}{}".format, leaf, path, options),
        st.builds("COPY episodes TO {}{}".format, path, options),
        st.builds("COPY episodes FROM {}".format, path),
        st.builds("EXPORT DATABASE {}".format, path),
        st.builds("ATTACH {} AS x".format, path),
        st.builds("ATTACH {} AS x (TYPE sqlite)".format, path),
        st.builds("SET temp_directory = {}".format, path),
        st.builds("SET allowed_directories = [{}]".format, path),
        st.builds("PRAGMA profile_output = {}".format, path),
        st.builds("CALL enable_logging(storage_path = {})".format, path),
        st.builds("INSTALL {}".format, path),
        st.builds("LOAD {}".format, path),
        st.sampled_from(
            [
                "INSERT INTO episodes SELECT * FROM episodes RETURNING *",
                "DELETE FROM episodes RETURNING *",
                "UPDATE episodes SET task = 'x' RETURNING *",
                "CREATE OR REPLACE VIEW episodes AS SELECT 1",
                "CREATE TABLE t AS SELECT 1",
                "DROP VIEW episodes",
                "ALTER TABLE episodes ADD COLUMN x INT",
                "RESET temp_directory",
                "CHECKPOINT",
                "COMMIT",
                "BEGIN",
            ]
        ),
    )

    def deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.builds("WITH {0} AS ({1}) SELECT * FROM {0}".format, _NAMES, inner),
            st.builds("WITH {} AS MATERIALIZED ({}) {}".format, _NAMES, inner, inner),
            st.builds("WITH RECURSIVE r AS ({} UNION ALL {}) FROM r".format, leaf, inner),
            st.builds("SELECT * FROM ({}) s".format, inner),
            st.builds("SELECT ({})".format, inner),
            st.builds("SELECT 1 WHERE EXISTS ({})".format, inner),
            st.builds("{} UNION ALL {}".format, leaf, inner),
            st.builds("EXPLAIN {}".format, inner),
            st.builds("EXPLAIN ANALYZE {}".format, inner),
            st.builds("DESCRIBE {}".format, inner),
            st.builds("SUMMARIZE {}".format, inner),
            st.builds("PREPARE p AS {}; EXECUTE p".format, inner),
            st.builds("{};{}".format, leaf, inner),
            st.builds("FROM query({})".format, inner.map(quote_literal)),
            st.builds("FROM json_execute_serialized_sql(json_serialize_sql({}))".format, inner.map(quote_literal)),
        )

    whole = st.recursive(writer, deeper, max_leaves=4)
    return st.builds(_disguised, whole, _SPACE, st.booleans())


def _disguised(sql: str, space: str, shout: bool) -> str:
    """Return a statement with other white space between its words, and other letters in its key words."""
    pieces = sql.split("'")  # the odd ones are texts
    for place in range(0, len(pieces), 2):
        pieces[place] = space.join(pieces[place].split(" "))
        pieces[place] = pieces[place].swapcase() if shout else pieces[place]
    return "'".join(pieces)
