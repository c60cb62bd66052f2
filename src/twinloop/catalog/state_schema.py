"""The tables of ``state.sqlite``: what must change in one step with other things.

A table that `Workspace.query` shows is declared like those of `catalog.schema`, and its SQL follows from that; what
only the catalog itself reads is hidden. A new version adds tables and optional columns, and raises `VERSION`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from twinloop.catalog.release_schema import RELEASE_STEP, RELEASE_TABLES, RELEASE_TRIGGERS
from twinloop.catalog.said_schema import DATASETS, LABEL_ENDS, LABEL_HISTORY, POLICIES, POLICY_DATASETS, SAID_INDEXES
from twinloop.catalog.schema import CatalogTable, Column

VERSION = 3
# By version: the statements that make a file of that version one of the next. A released step never changes.
# Digests of the rows of each table, and what each file of a run's folder was when the run was recorded.
_ROW_DIGESTS = "CREATE TABLE row_digests (name TEXT PRIMARY KEY, digest INTEGER NOT NULL) WITHOUT ROWID;"
_RUN_FILES = """
CREATE TABLE run_files (
    path TEXT PRIMARY KEY, folder TEXT NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL
) WITHOUT ROWID;"""
_INTEGRITY = (_ROW_DIGESTS, _RUN_FILES)
STEPS: Mapping[int, tuple[str, ...]] = {1: RELEASE_STEP, 2: _INTEGRITY}

_TEXT, _INT, _FLOAT, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_SQL = {_TEXT: "TEXT", _INT: "INTEGER", _FLOAT: "REAL", _FLAG: "INTEGER"}


def _column(name: str, type_: pa.DataType, meaning: str) -> Column:
    return Column(name=name, type=type_, meaning=meaning.removeprefix("? "), optional=meaning.startswith("? "))


RUNS = CatalogTable(
    name="runs",
    meaning="every run of a command in the workspace",
    key=("run_id",),
    columns=(
        _column("run_id", _TEXT, "ULID: sorts by commit"),
        _column("verb", _TEXT, "the command"),
        _column("folder", _TEXT, "? where it wrote, relative to the workspace where it lies inside"),
        _column("arguments", _TEXT, "JSON list of its arguments"),
        _column("result", _TEXT, "JSON of its figures"),
        _column("started", _TEXT, "when it began, ISO 8601 in UTC"),
        _column("ended", _TEXT, "when it ended, ISO 8601 in UTC"),
        _column("version", _TEXT, "version of twinloop"),
    ),
)

BATCHES = CatalogTable(
    name="batches",
    meaning="the dataset folders that the workspace knows",
    key=("batch",),
    columns=(
        _column("batch", _TEXT, "its name in the workspace"),
        _column("path", _TEXT, "where it lies: relative to the workspace where inside, else absolute"),
        _column("revision", _INT, "how many times its content was found changed, from 1"),
        _column("episodes", _INT, "episodes in it"),
        _column("frames", _INT, "frames in it"),
        _column("fps", _FLOAT, "nominal frames per second"),
        _column("robot_type", _TEXT, "as LeRobot's info.json says"),
        _column("ours", _FLAG, "whether twinloop wrote it"),
        _column("source", _TEXT, "source of its episodes where they do not say themselves"),
        _column("fingerprint", _TEXT, "SHA-256 over its metadata files"),
        _column("files", _TEXT, "JSON: SHA-256 of size and footer of each file of its episode table"),
        _column("added", _TEXT, "when it was first added, ISO 8601 in UTC"),
        _column("updated", _TEXT, "when it was last brought up to date, ISO 8601 in UTC"),
        _column("run_id", _TEXT, "? the run that made it"),
    ),
)

TOMBSTONES = CatalogTable(
    name="tombstones",
    meaning="episodes that the view `episodes` leaves out; nothing of them is deleted",
    key=("episode_id",),
    columns=(
        _column("episode_id", _TEXT, "the episode"),
        _column("reason", _TEXT, "why"),
        _column("said_by", _TEXT, "who said so"),
        _column("said_at", _TEXT, "when, ISO 8601 in UTC"),
    ),
)

PARTS = CatalogTable(
    name="parts",
    meaning="the committed Parquet files of the catalog; one that is not here does not count",
    key=("part",),
    columns=(
        _column("part", _TEXT, "file name, part-ULID.parquet"),
        _column("table_name", _TEXT, "the table that it is part of; its folder in catalog/"),
        _column("position", _TEXT, "its place among the table's parts: sorts by commit"),
        _column("rows", _INT, "rows"),
        _column("bytes", _INT, "size of the file"),
        _column("sha256", _TEXT, "SHA-256 of the file"),
        _column("batch", _TEXT, "? the batch whose episodes it tells of, where it is one"),
        _column("revision", _INT, "? the revision of that batch"),
        _column("run_id", _TEXT, "? the run that appended it"),
        _column("committed", _TEXT, "when, ISO 8601 in UTC"),
    ),
)

STATE_TABLES = {
    table.name: table
    for table in (
        *(RUNS, BATCHES, PARTS, TOMBSTONES, DATASETS, POLICIES, POLICY_DATASETS, LABEL_HISTORY, LABEL_ENDS),
        *RELEASE_TABLES,
    )
}

# What only the catalog reads: where each episode lies, found without a pass over the parts; whose parameters are
# written; what each file of a dataset was when it was added; parts that wait to be removed until no reader can still
# be at them; the counters by which readers notice that something changed.
_HIDDEN = """
CREATE TABLE places (
    episode_id BLOB NOT NULL, batch TEXT NOT NULL, episode_index INTEGER NOT NULL,
    PRIMARY KEY (episode_id, batch, episode_index)
) WITHOUT ROWID;
CREATE INDEX places_of_batch ON places (batch, episode_index);
CREATE TABLE drawn (episode_id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE seals (
    batch TEXT NOT NULL, path TEXT NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL, whole INTEGER NOT NULL,
    PRIMARY KEY (batch, path)
) WITHOUT ROWID;
CREATE TABLE retired (path TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT INTO counters VALUES ('parts', 0), ('state', 0);
"""


def create_sql() -> str:
    """The statements that make an empty ``state.sqlite``."""
    tables = "\n".join(_create(table) for table in STATE_TABLES.values())
    rest = "\n".join((*RELEASE_TRIGGERS, _HIDDEN, *_INTEGRITY))
    return f"{tables}{SAID_INDEXES}{rest}PRAGMA user_version = {VERSION};"


def _create(table: CatalogTable) -> str:
    columns = [f'"{c.name}" {_SQL[c.type]}{"" if c.optional else " NOT NULL"}' for c in table.columns]
    key = ", ".join(f'"{name}"' for name in table.key)
    return f"CREATE TABLE {table.name} ({', '.join(columns)}, PRIMARY KEY ({key}));"
