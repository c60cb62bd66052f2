"""Declare the catalog tables that are stored in Parquet files: columns, types and meanings.

Rows of these tables are only appended. Data that must change together with other data is in SQLite instead
(`catalog.state`). `Workspace.query` shows all tables as views of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class CatalogColumn:
    """Column of a catalog table.

    Attributes:
        name: name of the column.
        type: Arrow type of the values.
        meaning: meaning of the values, with the unit.
        optional: whether values may be null.
    """

    name: str
    type: pa.DataType
    meaning: str
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class CatalogTable:
    """Declaration of a catalog table.

    Attributes:
        name: name of the table.
        meaning: meaning of its rows.
        columns: the columns, in order.
        key: names of the columns that together identify a row.
    """

    name: str
    meaning: str
    columns: tuple[CatalogColumn, ...]
    key: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the table's columns."""
        return pa.schema([pa.field(column.name, column.type, nullable=column.optional) for column in self.columns])


TEXT, INT, FLOAT, FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_TEXTS = pa.list_(TEXT)


def column(name: str, type_: pa.DataType, meaning: str) -> CatalogColumn:
    """Return a column; it is optional if the meaning begins with "? ", which is removed."""
    return CatalogColumn(name=name, type=type_, meaning=meaning.removeprefix("? "), optional=meaning.startswith("? "))


_EPISODE = column("episode_id", TEXT, "SHA-256 of the episode's content: its id in every copy")

EPISODES = CatalogTable(
    name="episodes",
    meaning="every copy of an episode in a batch; the view `episodes` shows each episode once, `places` every copy",
    key=("batch", "episode_index"),
    columns=(
        _EPISODE,
        column("batch", TEXT, "name of the dataset folder in the workspace"),
        column("episode_index", INT, "index in that folder, as LeRobot counts"),
        column("number", INT, "attempt number of the run that made it; -1 without one"),
        column("frames", INT, "frames"),
        column("fps", FLOAT, "nominal frames per second"),
        column("duration_s", FLOAT, "frames / fps, in s"),
        column("robot_type", TEXT, "robot type in LeRobot's info.json"),
        column("task", TEXT, "the task of the robot, in words"),
        column("source", TEXT, "real, sim, augmented or human-in-the-loop"),
        column("twin", TEXT, "? name of the twin that simulated it"),
        column("twin_hash", TEXT, "? hash of that twin"),
        column("config_hash", TEXT, "? hash of the configuration that generated it"),
        column("sim_version", TEXT, "? version of the simulator"),
        column("seed", INT, "? run seed"),
        column("attempt", INT, "? number of the draw for that episode number"),
        column("actor", TEXT, "? policy, expert or person that acted"),
        column("success", FLAG, "? outcome by the task's own success condition; labels are in `labels`"),
        column("success_version", TEXT, "? version of that condition"),
        column("valid", FLAG, "whether the world is valid: it did not diverge"),
        column("invalid_reason", TEXT, "? why the world is invalid"),
        column("parents", _TEXTS, "episode_id of the episodes that it was derived from"),
        column("transforms", TEXT, "? JSON list of the transforms of the parents: name, version, parameters"),
        column("cameras", _TEXTS, "camera names"),
        column("units", TEXT, "? JSON unit map of its joint columns"),
        column("licence", TEXT, "? licence of the data"),
        column("extra", TEXT, "? JSON of further provenance: conditions, calibration, operator"),
    ),
)

PARAMS = CatalogTable(
    name="params",
    meaning="the drawn parameters of each simulated episode, one row each",
    key=("episode_id", "name"),
    columns=(
        _EPISODE,
        column("name", TEXT, "path of the parameter, as in docs/reference/parameters.md"),
        column("value", FLOAT, "its value in SI"),
    ),
)

SCORES = CatalogTable(
    name="scores",
    meaning="results of checks of episodes; the run committed last gives the verdict, earlier ones are history",
    key=("episode_id", "check", "channel", "run_id"),
    columns=(
        _EPISODE,
        column("check", TEXT, "name of the check, FAMILY/NAME"),
        column("check_hash", TEXT, "hash of its version and settings"),
        column("channel", TEXT, "the joint, camera or object; empty for the whole episode"),
        column("value", FLOAT, "? the metric's value"),
        column("unit", TEXT, "its unit"),
        column("limit", FLOAT, "? the value from which on the episode is suspect"),
        column("verdict", TEXT, "good, suspect, bad, unknown (the check cannot decide), or unreadable"),
        column("reason", TEXT, "one sentence: the fault, where and how large; or why the check cannot decide"),
        column("first_frame", INT, "? first frame with the fault"),
        column("last_frame", INT, "? last frame with the fault"),
        column("run_id", TEXT, "the run that checked the episode"),
    ),
)

EVALUATIONS = CatalogTable(
    name="evaluations",
    meaning="outcomes of the trials of policies, simulated or real",
    key=("policy", "suite", "trial", "run_id"),
    columns=(
        column("policy", TEXT, "name or hash of the policy"),
        column("suite", TEXT, "the list of conditions in which it was evaluated"),
        column("trial", TEXT, "name of the trial, equal for policies tried under the same conditions"),
        column("episode_id", TEXT, "? the recorded episode, if any"),
        column("source", TEXT, "real or sim"),
        column("success", FLAG, "? outcome"),
        column("score", FLOAT, "? progress, 0 to 1"),
        column("condition", TEXT, "? the condition within the suite"),
        column("run_id", TEXT, "the run that evaluated"),
    ),
)

EMBEDDINGS = CatalogTable(
    name="embeddings",
    meaning="feature vectors of clips; rows of one encoder_hash are in the same space",
    key=("encoder_hash", "episode_id", "first_frame"),
    columns=(
        _EPISODE,
        column("encoder", TEXT, "name of the encoder"),
        column("encoder_hash", TEXT, "hash of its weights and settings"),
        column("first_frame", INT, "first frame of the clip"),
        column("last_frame", INT, "last frame of the clip"),
        column("vector", pa.list_(pa.float32()), "the feature vector"),
    ),
)

TABLES = {table.name: table for table in (EPISODES, PARAMS, SCORES, EVALUATIONS, EMBEDDINGS)}
