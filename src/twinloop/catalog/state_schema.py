"""Declare the tables of ``state.sqlite``.

What must change in one step with other things, what was chosen and said, and releases.

``release_audit`` only grows: triggers refuse to change or delete its rows, and each row holds the hash of the one
before it (`catalog.audit`), so that a change made behind SQLite's back is found.

A table that `Workspace.query` shows is declared like those of `catalog.schema`, and its SQL follows from that; what
only the catalog itself reads is hidden. A new version adds tables and optional columns, and raises `VERSION`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from twinloop.catalog.schema import CatalogTable, Column

_TEXT, _INT, _FLOAT, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def _column(name: str, type_: pa.DataType, meaning: str) -> Column:
    return Column(name=name, type=type_, meaning=meaning.removeprefix("? "), optional=meaning.startswith("? "))


DATASETS = CatalogTable(
    name="datasets",
    meaning="frozen datasets: named selections of episodes that never change; a name may get new versions",
    key=("name", "version"),
    columns=(
        _column("name", _TEXT, "its name"),
        _column("version", _INT, "1 for the first list of that name, then 2; NAME@2 means this one"),
        _column("hash", _TEXT, "SHA-256 over its sorted episode ids: the same list has the same hash"),
        _column("sql", _TEXT, "the statement that selected them"),
        _column("episodes", _INT, "how many"),
        _column("sha256", _TEXT, "SHA-256 of catalog/datasets/HASH.parquet, which lists them"),
        _column("created", _TEXT, "when it was frozen, ISO 8601 in UTC"),
        _column("note", _TEXT, "? what it is for"),
    ),
)

POLICIES = CatalogTable(
    name="policies",
    meaning="what acts: trained policies",
    key=("policy",),
    columns=(
        _column("policy", _TEXT, "hash of its weights and settings"),
        _column("name", _TEXT, "what people call it"),
        _column("base", _TEXT, "? hash of the policy that its training went on from"),
        _column("run_id", _TEXT, "? the run that trained it"),
        _column("created", _TEXT, "when it was recorded, ISO 8601 in UTC"),
        _column("extra", _TEXT, "? JSON of whatever else is known: sampling weights, steps, encoder"),
    ),
)

POLICY_DATASETS = CatalogTable(
    name="policy_datasets",
    meaning="which frozen datasets trained which policy",
    key=("policy", "dataset"),
    columns=(
        _column("policy", _TEXT, "hash of the policy"),
        _column("dataset", _TEXT, "hash of a frozen dataset that trained it"),
        _column("said", _TEXT, "how the dataset was named: NAME@VERSION or its hash"),
    ),
)

LABEL_HISTORY = CatalogTable(
    name="label_history",
    meaning="every label that was ever given or taken back; the view `labels` shows those that hold",
    key=("seq",),
    columns=(
        _column("seq", _INT, "order in which they came, from 1"),
        _column("statement", _INT, "labels that were given in one go have one number, rising with time"),
        _column("episode_id", _TEXT, "the episode"),
        _column("kind", _TEXT, "success, failure, subtask, language, tag or number/NAME"),
        _column("slot", _TEXT, "a newer statement replaces those of its slot: the tag itself, else empty"),
        _column("value", _TEXT, "? what is said; empty where it is taken back"),
        _column("first_frame", _INT, "? first frame that it is said of; empty for the whole episode"),
        _column("last_frame", _INT, "? last frame that it is said of, itself included"),
        _column("source", _TEXT, "hand, rule or model"),
        _column("author", _TEXT, "the person, rule or model that says so"),
        _column("author_hash", _TEXT, "? hash of the rule or model"),
        _column("confidence", _FLOAT, "? how sure the author is, 0 to 1"),
        _column("reason", _TEXT, "? why, in one sentence"),
        _column("retracted", _FLAG, "whether it takes back what was said"),
        _column("said_at", _TEXT, "when, ISO 8601 in UTC"),
        _column("run_id", _TEXT, "? the run that said it"),
    ),
)

LABEL_ENDS = CatalogTable(
    name="label_ends",
    meaning="labels that no longer hold; the history itself never changes but by longer",
    key=("seq",),
    columns=(
        _column("seq", _INT, "the label"),
        _column("ended_by", _INT, "the statement that replaced it or took it back"),
    ),
)

SAID_INDEXES = """
CREATE INDEX label_history_of_episode ON label_history (episode_id, kind);
CREATE INDEX datasets_of_hash ON datasets (hash);
"""


_DEPLOYMENT = _column("deployment", _TEXT, "what the aliases belong to; main unless said otherwise")

POLICY_VERSIONS = CatalogTable(
    name="policy_versions",
    meaning="the registry: immutable copies of policies in policies/NAME/VERSION",
    key=("name", "version"),
    columns=(
        _column("name", _TEXT, "what people call the policy"),
        _column("version", _INT, "1 for the first of that name, then 2; NAME@2 means this one"),
        _column("hash", _TEXT, "SHA-256 over the names and contents of its files"),
        _column("policy", _TEXT, "? hash of its weights and settings, as in `policies`"),
        _column("record", _TEXT, "JSON: files, contract, normalization, datasets, twins, code, evaluations"),
        _column("added", _TEXT, "when, ISO 8601 in UTC"),
        _column("added_by", _TEXT, "who added it"),
    ),
)

POLICY_ALIASES = CatalogTable(
    name="policy_aliases",
    meaning="which version stands behind champion, candidate, previous, shadow and canary",
    key=("deployment", "alias"),
    columns=(
        _DEPLOYMENT,
        _column("alias", _TEXT, "champion, candidate, previous, shadow or canary"),
        _column("policy", _TEXT, "NAME@VERSION"),
        _column("since", _TEXT, "since when, ISO 8601 in UTC"),
    ),
)

GATE_DECISIONS = CatalogTable(
    name="gate_decisions",
    meaning="what the gate decided, and on which evidence",
    key=("decision",),
    columns=(
        _column("decision", _TEXT, "SHA-256 of the decision"),
        _DEPLOYMENT,
        _column("candidate", _TEXT, "NAME@VERSION"),
        _column("champion", _TEXT, "? NAME@VERSION of what it was compared with"),
        _column("passed", _FLAG, "whether every rule said yes"),
        _column("looks", _TEXT, "any: may be looked at again; once: the chance of error is spent"),
        _column("evidence", _TEXT, "JSON list of the hashes of the evaluations"),
        _column("record", _TEXT, "JSON of the whole decision, each rule with its reasons"),
        _column("at", _TEXT, "when, ISO 8601 in UTC"),
    ),
)

RELEASE_STAGES = CatalogTable(
    name="release_stages",
    meaning="how far each candidate has come",
    key=("deployment", "policy"),
    columns=(
        _DEPLOYMENT,
        _column("policy", _TEXT, "NAME@VERSION"),
        _column("champion", _TEXT, "? NAME@VERSION of what acted meanwhile"),
        _column("stage", _TEXT, "shadow, canary, passed, champion, aborted, rolled back or retired"),
        _column("plan", _TEXT, "JSON: what each stage asks for"),
        _column("run_seed", _INT, "seed of the draws that give episodes to the canary"),
        _column("since", _TEXT, "since when, ISO 8601 in UTC"),
        _column("reason", _TEXT, "? why it was aborted or rolled back"),
    ),
)

RELEASE_EPISODES = CatalogTable(
    name="release_episodes",
    meaning="what became of each episode while a candidate was in shadow or canary",
    key=("deployment", "policy", "run_seed", "stage", "episode"),
    columns=(
        _DEPLOYMENT,
        _column("policy", _TEXT, "NAME@VERSION of the candidate"),
        _column("run_seed", _INT, "of `release_stages`: tells one attempt of a candidate from another"),
        _column("stage", _TEXT, "shadow or canary"),
        _column("episode", _INT, "number of the episode, which the draw is a function of"),
        _column("arm", _TEXT, "who acted: champion or canary"),
        _column("success", _FLAG, "outcome"),
        _column("violations", _INT, "control steps at which a safety limit was broken"),
        _column("shadow", _TEXT, "? JSON: how far the candidate's commands were from the champion's"),
        _column("at", _TEXT, "when, ISO 8601 in UTC"),
    ),
)

RELEASE_AUDIT = CatalogTable(
    name="release_audit",
    meaning="who did what to releases, and why; rows are never changed and each holds the hash of the one before",
    key=("seq",),
    columns=(
        _column("seq", _INT, "1 for the first entry, then 2"),
        _column("at", _TEXT, "when, ISO 8601 in UTC"),
        _column("who", _TEXT, "the person or program"),
        _column("action", _TEXT, "add, gate, alias, stage, promote, rollback or abort"),
        _DEPLOYMENT,
        _column("policy", _TEXT, "NAME@VERSION that it is about"),
        _column("details", _TEXT, "JSON: the aliases as changed, the evidence, the reason"),
        _column("before", _TEXT, "hash of the entry before; empty for the first"),
        _column("sha256", _TEXT, "hash of this entry"),
    ),
)

RELEASE_TABLES = (
    POLICY_VERSIONS,
    POLICY_ALIASES,
    GATE_DECISIONS,
    RELEASE_STAGES,
    RELEASE_EPISODES,
    RELEASE_AUDIT,
)

_GUARDED = ("release_audit", "policy_versions", "gate_decisions", "release_episodes")
RELEASE_TRIGGERS = tuple(
    f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} "
    f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed'); END;"
    for table in _GUARDED
    for verb in ("UPDATE", "DELETE")
)

# What makes a file of version 1 one of version 2, statements apart by an empty line.
_STEP = """
CREATE TABLE policy_versions ("name" TEXT NOT NULL, "version" INTEGER NOT NULL, "hash" TEXT NOT NULL, "policy" TEXT,
"record" TEXT NOT NULL, "added" TEXT NOT NULL, "added_by" TEXT NOT NULL, PRIMARY KEY ("name", "version"));

CREATE TABLE policy_aliases ("deployment" TEXT NOT NULL, "alias" TEXT NOT NULL, "policy" TEXT NOT NULL,
"since" TEXT NOT NULL, PRIMARY KEY ("deployment", "alias"));

CREATE TABLE gate_decisions ("decision" TEXT NOT NULL, "deployment" TEXT NOT NULL, "candidate" TEXT NOT NULL,
"champion" TEXT, "passed" INTEGER NOT NULL, "looks" TEXT NOT NULL, "evidence" TEXT NOT NULL, "record" TEXT NOT NULL,
"at" TEXT NOT NULL, PRIMARY KEY ("decision"));

CREATE TABLE release_stages ("deployment" TEXT NOT NULL, "policy" TEXT NOT NULL, "champion" TEXT, "stage" TEXT NOT NULL,
"plan" TEXT NOT NULL, "run_seed" INTEGER NOT NULL, "since" TEXT NOT NULL, "reason" TEXT,
PRIMARY KEY ("deployment", "policy"));

CREATE TABLE release_episodes ("deployment" TEXT NOT NULL, "policy" TEXT NOT NULL, "run_seed" INTEGER NOT NULL,
"stage" TEXT NOT NULL, "episode" INTEGER NOT NULL, "arm" TEXT NOT NULL, "success" INTEGER NOT NULL,
"violations" INTEGER NOT NULL, "shadow" TEXT, "at" TEXT NOT NULL,
PRIMARY KEY ("deployment", "policy", "run_seed", "stage", "episode"));

CREATE TABLE release_audit ("seq" INTEGER NOT NULL, "at" TEXT NOT NULL, "who" TEXT NOT NULL, "action" TEXT NOT NULL,
"deployment" TEXT NOT NULL, "policy" TEXT NOT NULL, "details" TEXT NOT NULL, "before" TEXT NOT NULL,
"sha256" TEXT NOT NULL, PRIMARY KEY ("seq"));
"""
RELEASE_STEP = (*_STEP.split("\n\n"), *RELEASE_TRIGGERS)


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

_SQL = {_TEXT: "TEXT", _INT: "INTEGER", _FLOAT: "REAL", _FLAG: "INTEGER"}


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
