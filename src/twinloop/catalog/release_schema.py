"""Tables of ``state.sqlite`` about releases: versions of policies, who they stand for, who decided what on what.

``release_audit`` only grows: triggers refuse to change or delete its rows, and each row holds the hash of the one
before it (`catalog.audit`), so that a change made behind SQLite's back is found.
"""

from __future__ import annotations

import pyarrow as pa

from twinloop.catalog.schema import CatalogTable, Column

_TEXT, _INT, _FLAG = pa.string(), pa.int64(), pa.bool_()


def _column(name: str, type_: pa.DataType, meaning: str) -> Column:
    return Column(name=name, type=type_, meaning=meaning.removeprefix("? "), optional=meaning.startswith("? "))


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
