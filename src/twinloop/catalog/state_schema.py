"""Declare the tables of ``state.sqlite``: runs, batches, Parquet files, dataset versions, labels and releases.

A batch is a dataset folder in the catalog. Rows of ``release_audit`` (the audit log of releases) are only added:
triggers refuse to change or delete them. Each row has the hash of the previous row (`catalog.audit`), so that a change
made by another program is detected.

A table that `Workspace.query` shows is declared like the tables of `catalog.schema`, and its ``CREATE TABLE`` statement
follows from the declaration. Tables that only the catalog itself reads are not shown. A new version of the schema may
only add tables and optional columns, and raises `VERSION`.
"""

from __future__ import annotations

from collections.abc import Mapping

from twinloop.catalog.schema import FLAG, FLOAT, INT, TEXT, CatalogTable, column

DATASETS = CatalogTable(
    name="datasets",
    meaning="dataset versions: named selections of episodes that never change; a name may get new versions",
    key=("name", "version"),
    columns=(
        column("name", TEXT, "its name"),
        column("version", INT, "1 for the first list of that name, then 2; NAME@2 is the second"),
        column("hash", TEXT, "SHA-256 over its sorted episode ids: the same list has the same hash"),
        column("sql", TEXT, "the statement that selected them"),
        column("episodes", INT, "number of episodes"),
        column("sha256", TEXT, "SHA-256 of catalog/datasets/HASH.parquet, the list of episodes"),
        column("created", TEXT, "when it was frozen, ISO 8601 in UTC"),
        column("note", TEXT, "? its purpose"),
    ),
)

POLICIES = CatalogTable(
    name="policies",
    meaning="trained policies",
    key=("policy",),
    columns=(
        column("policy", TEXT, "hash of its weights and settings"),
        column("name", TEXT, "its name"),
        column("base", TEXT, "? hash of the policy from which its training continued"),
        column("run_id", TEXT, "? the run that trained it"),
        column("created", TEXT, "when it was recorded, ISO 8601 in UTC"),
        column("extra", TEXT, "? JSON of further facts: sampling weights, steps, simulated worlds without episodes"),
    ),
)

POLICY_DATASETS = CatalogTable(
    name="policy_datasets",
    meaning="which dataset versions trained which policy",
    key=("policy", "dataset"),
    columns=(
        column("policy", TEXT, "hash of the policy"),
        column("dataset", TEXT, "hash of a dataset version that trained it"),
        column("said", TEXT, "how the dataset was named: NAME@VERSION or its hash"),
    ),
)

LABEL_HISTORY = CatalogTable(
    name="label_history",
    meaning="every label that was given or retracted; the view `labels` shows those that hold now",
    key=("seq",),
    columns=(
        column("seq", INT, "order of the labels, from 1"),
        column("statement", INT, "number of the statement, rising with time; labels given together have the same one"),
        column("episode_id", TEXT, "the episode"),
        column("kind", TEXT, "success, failure, subtask, language, tag or number/NAME"),
        column("slot", TEXT, "a newer statement replaces labels of the same slot: the tag itself, else empty"),
        column("value", TEXT, "? the value; empty for a retraction"),
        column("first_frame", INT, "? first frame of the label; empty for the whole episode"),
        column("last_frame", INT, "? last frame of the label, included"),
        column("source", TEXT, "hand, rule or model"),
        column("author", TEXT, "the person, rule or model that gave the label"),
        column("author_hash", TEXT, "? hash of the rule or model"),
        column("confidence", FLOAT, "? confidence of the author, 0 to 1"),
        column("reason", TEXT, "? reason, in one sentence"),
        column("retracted", FLAG, "whether this row retracts earlier labels"),
        column("said_at", TEXT, "when, ISO 8601 in UTC"),
        column("run_id", TEXT, "? the run that gave the label"),
    ),
)

LABEL_ENDS = CatalogTable(
    name="label_ends",
    meaning="labels that no longer hold; the history itself only grows",
    key=("seq",),
    columns=(
        column("seq", INT, "the label"),
        column("ended_by", INT, "the statement that replaced or retracted it"),
    ),
)

LABEL_INDEXES = """
CREATE INDEX label_history_of_episode ON label_history (episode_id, kind);
CREATE INDEX datasets_of_hash ON datasets (hash);
"""


_DEPLOYMENT = column("deployment", TEXT, "deployment of the aliases; main by default")

POLICY_VERSIONS = CatalogTable(
    name="policy_versions",
    meaning="the registry: immutable copies of policies in policies/NAME/VERSION",
    key=("name", "version"),
    columns=(
        column("name", TEXT, "name of the policy"),
        column("version", INT, "1 for the first of that name, then 2; NAME@2 is the second"),
        column("hash", TEXT, "SHA-256 over the names and contents of its files"),
        column("policy", TEXT, "? hash of its weights and settings, as in `policies`"),
        column("record", TEXT, "JSON: files, contract, normalization, datasets, twins, code, evaluations"),
        column("added", TEXT, "when, ISO 8601 in UTC"),
        column("added_by", TEXT, "who added it"),
    ),
)

POLICY_ALIASES = CatalogTable(
    name="policy_aliases",
    meaning="the policy version of each alias: champion, candidate, previous, shadow and canary",
    key=("deployment", "alias"),
    columns=(
        _DEPLOYMENT,
        column("alias", TEXT, "champion, candidate, previous, shadow or canary"),
        column("policy", TEXT, "NAME@VERSION"),
        column("since", TEXT, "since when, ISO 8601 in UTC"),
    ),
)

GATE_DECISIONS = CatalogTable(
    name="gate_decisions",
    meaning="decisions of the gate, with their evidence",
    key=("decision",),
    columns=(
        column("decision", TEXT, "SHA-256 of the decision"),
        _DEPLOYMENT,
        column("candidate", TEXT, "NAME@VERSION"),
        column("champion", TEXT, "? NAME@VERSION of the policy it was compared with"),
        column("passed", FLAG, "whether the candidate passed every rule"),
        column(
            "looks",
            TEXT,
            "any: the test may be repeated on more data; once: it may not, the error probability is used up",
        ),
        column("evidence", TEXT, "JSON list of the hashes of the evaluations"),
        column("record", TEXT, "JSON of the whole decision, each rule with its reasons"),
        column("at", TEXT, "when, ISO 8601 in UTC"),
    ),
)

RELEASE_STAGES = CatalogTable(
    name="release_stages",
    meaning="the present stage of each candidate",
    key=("deployment", "policy"),
    columns=(
        _DEPLOYMENT,
        column("policy", TEXT, "NAME@VERSION"),
        column("champion", TEXT, "? NAME@VERSION of the champion that ran meanwhile"),
        column("stage", TEXT, "shadow, canary, passed, champion, aborted, rolled back or retired"),
        column("plan", TEXT, "JSON: the requirements of each stage"),
        column("run_seed", INT, "seed of the draws that assign episodes to the canary"),
        column("since", TEXT, "since when, ISO 8601 in UTC"),
        column("reason", TEXT, "? why it was aborted or rolled back"),
    ),
)

RELEASE_EPISODES = CatalogTable(
    name="release_episodes",
    meaning="outcome of each episode while a candidate was in shadow or canary",
    key=("deployment", "policy", "run_seed", "stage", "episode"),
    columns=(
        _DEPLOYMENT,
        column("policy", TEXT, "NAME@VERSION of the candidate"),
        column("run_seed", INT, "as in `release_stages`: identifies the attempt of a candidate"),
        column("stage", TEXT, "shadow or canary"),
        column("episode", INT, "number of the episode, which determines the draw"),
        column("arm", TEXT, "the acting policy: champion or canary"),
        column("success", FLAG, "outcome; 0 if it is unknown"),
        column("violations", INT, "control steps at which a safety limit was broken"),
        column("shadow", TEXT, "? JSON: distance of the candidate's commands from the champion's"),
        column("at", TEXT, "when, ISO 8601 in UTC"),
        column("unknown", FLAG, "? 1 if nobody judged the outcome"),
    ),
)

RELEASE_AUDIT = CatalogTable(
    name="release_audit",
    meaning="who did what to releases, and why; rows are never changed and each holds the hash of the one before",
    key=("seq",),
    columns=(
        column("seq", INT, "1 for the first entry, then 2"),
        column("at", TEXT, "when, ISO 8601 in UTC"),
        column("who", TEXT, "the person or program"),
        column("action", TEXT, "add, gate, alias, stage, promote, rollback or abort"),
        _DEPLOYMENT,
        column("policy", TEXT, "NAME@VERSION of the policy concerned"),
        column("details", TEXT, "JSON: the changed aliases, the evidence, the reason"),
        column("before", TEXT, "hash of the entry before; empty for the first"),
        column("sha256", TEXT, "hash of this entry"),
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

# The statements that migrate a file from version 1 to version 2, separated by empty lines.
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


VERSION = 4
# Version 3 adds digests of the rows of each table, and the files of a run's folder when the run was recorded.
_ROW_DIGESTS = "CREATE TABLE row_digests (name TEXT PRIMARY KEY, digest INTEGER NOT NULL) WITHOUT ROWID;"
_RUN_FILES = """
CREATE TABLE run_files (
    path TEXT PRIMARY KEY, folder TEXT NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL
) WITHOUT ROWID;"""
_INTEGRITY = (_ROW_DIGESTS, _RUN_FILES)
_UNKNOWN = 'ALTER TABLE release_episodes ADD COLUMN "unknown" INTEGER'  # version 4
# By version: the statements that migrate a file to the next version. A released step never changes.
STEPS: Mapping[int, tuple[str, ...]] = {1: RELEASE_STEP, 2: _INTEGRITY, 3: (_UNKNOWN,)}

_SQL = {TEXT: "TEXT", INT: "INTEGER", FLOAT: "REAL", FLAG: "INTEGER"}


RUNS = CatalogTable(
    name="runs",
    meaning="every run of a command in the workspace",
    key=("run_id",),
    columns=(
        column("run_id", TEXT, "ULID: sorts by commit"),
        column("verb", TEXT, "the command"),
        column("folder", TEXT, "? output folder, relative to the workspace if inside it"),
        column("arguments", TEXT, "JSON list of its arguments"),
        column("result", TEXT, "JSON of its results"),
        column("started", TEXT, "when it began, ISO 8601 in UTC"),
        column("ended", TEXT, "when it ended, ISO 8601 in UTC"),
        column("version", TEXT, "version of twinloop"),
    ),
)

BATCHES = CatalogTable(
    name="batches",
    meaning="the dataset folders in the workspace's catalog",
    key=("batch",),
    columns=(
        column("batch", TEXT, "its name in the workspace"),
        column("path", TEXT, "its folder: relative to the workspace if inside it, else absolute"),
        column("revision", INT, "number of detected changes of its content, from 1"),
        column("episodes", INT, "episodes in it"),
        column("frames", INT, "frames in it"),
        column("fps", FLOAT, "nominal frames per second"),
        column("robot_type", TEXT, "robot type in LeRobot's info.json"),
        column("ours", FLAG, "whether twinloop wrote it"),
        column("source", TEXT, "source of its episodes that do not state one"),
        column("fingerprint", TEXT, "SHA-256 over its metadata files"),
        column("files", TEXT, "JSON: SHA-256 of size and footer of each file of its episode table"),
        column("added", TEXT, "when it was first added, ISO 8601 in UTC"),
        column("updated", TEXT, "when it was last updated, ISO 8601 in UTC"),
        column("run_id", TEXT, "? the run that made it"),
    ),
)

TOMBSTONES = CatalogTable(
    name="tombstones",
    meaning="episodes excluded from the view `episodes`; their data is not deleted",
    key=("episode_id",),
    columns=(
        column("episode_id", TEXT, "the episode"),
        column("reason", TEXT, "why"),
        column("said_by", TEXT, "who excluded it"),
        column("said_at", TEXT, "when, ISO 8601 in UTC"),
    ),
)

PARTS = CatalogTable(
    name="parts",
    meaning="the committed Parquet files of the catalog; files not listed here are ignored",
    key=("part",),
    columns=(
        column("part", TEXT, "file name, part-ULID.parquet"),
        column("table_name", TEXT, "its table, and its folder in catalog/"),
        column("position", TEXT, "its position among the table's parts, in the order of commits"),
        column("rows", INT, "rows"),
        column("bytes", INT, "size of the file"),
        column("sha256", TEXT, "SHA-256 of the file"),
        column("batch", TEXT, "? the batch of its episodes, if there is only one"),
        column("revision", INT, "? the revision of that batch"),
        column("run_id", TEXT, "? the run that appended it"),
        column("committed", TEXT, "when, ISO 8601 in UTC"),
    ),
)

STATE_TABLES = {
    table.name: table
    for table in (
        *(RUNS, BATCHES, PARTS, TOMBSTONES, DATASETS, POLICIES, POLICY_DATASETS, LABEL_HISTORY, LABEL_ENDS),
        *RELEASE_TABLES,
    )
}

# Tables that only the catalog reads: the location of each episode, for access without reading the parts; the episodes
# with stored parameters; the seals of a dataset's files; replaced parts that are kept until no reader can still
# use them; the counters by which readers notice changes.
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
    """Return the SQL statements that create the tables, indexes and triggers of an empty ``state.sqlite``."""
    tables = "\n".join(_format_create_table(table) for table in STATE_TABLES.values())
    rest = "\n".join((*RELEASE_TRIGGERS, _HIDDEN, *_INTEGRITY))
    return f"{tables}{LABEL_INDEXES}{rest}PRAGMA user_version = {VERSION};"


def _format_create_table(table: CatalogTable) -> str:
    columns = [f'"{c.name}" {_SQL[c.type]}{"" if c.optional else " NOT NULL"}' for c in table.columns]
    key = ", ".join(f'"{name}"' for name in table.key)
    return f"CREATE TABLE {table.name} ({', '.join(columns)}, PRIMARY KEY ({key}));"
