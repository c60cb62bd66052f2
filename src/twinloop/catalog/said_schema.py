"""Tables of ``state.sqlite`` about what was chosen and said: frozen datasets, policies trained on them, labels."""

from __future__ import annotations

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
