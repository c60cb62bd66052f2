"""The tables of the catalog: their columns, and what each means.

Tables kept as Parquet parts grow by appending only; what must change in one step with other things stands in SQLite
(`catalog.state`). All of them are views of the same name to `Workspace.query`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class CatalogColumn:
    """One column: its Arrow type, and what it means, with unit."""

    name: str
    type: pa.DataType
    meaning: str
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class CatalogTable:
    """A table of the catalog. ``key`` names the columns that tell its rows apart."""

    name: str
    meaning: str
    columns: tuple[CatalogColumn, ...]
    key: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of a part."""
        return pa.schema([pa.field(column.name, column.type, nullable=column.optional) for column in self.columns])


TEXT, INT, FLOAT, FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_TEXTS = pa.list_(TEXT)


def column(name: str, type_: pa.DataType, meaning: str) -> CatalogColumn:
    """Return a column; a meaning that begins with "? " is of one that may be empty."""
    return CatalogColumn(name=name, type=type_, meaning=meaning.removeprefix("? "), optional=meaning.startswith("? "))


_EPISODE = column("episode_id", TEXT, "SHA-256 of the episode's content: its name wherever it lies")

EPISODES = CatalogTable(
    name="episodes",
    meaning="every copy of an episode in a batch; the view `episodes` shows each episode once, `places` every copy",
    key=("batch", "episode_index"),
    columns=(
        _EPISODE,
        column("batch", TEXT, "name of the dataset folder in the workspace"),
        column("episode_index", INT, "place in that folder, as LeRobot counts"),
        column("number", INT, "attempt number of the run that made it; -1 where there was none"),
        column("frames", INT, "frames"),
        column("fps", FLOAT, "nominal frames per second"),
        column("duration_s", FLOAT, "frames / fps, in s"),
        column("robot_type", TEXT, "as LeRobot's info.json says"),
        column("task", TEXT, "what the robot was to do, in words"),
        column("source", TEXT, "real, sim, augmented or human-in-the-loop"),
        column("twin", TEXT, "? name of the twin that simulated it"),
        column("twin_hash", TEXT, "? hash of that twin"),
        column("config_hash", TEXT, "? hash of the configuration that generated it"),
        column("sim_version", TEXT, "? version of the simulator"),
        column("seed", INT, "? run seed"),
        column("attempt", INT, "? which draw of that number it is"),
        column("actor", TEXT, "? policy, expert or person that acted"),
        column("success", FLAG, "? what the task's own predicate said; labels stand apart, in `labels`"),
        column("success_version", TEXT, "? version of that predicate"),
        column("valid", FLAG, "whether the world held"),
        column("invalid_reason", TEXT, "? why it did not"),
        column("parents", _TEXTS, "episode_id of the episodes that it was made from"),
        column("transforms", TEXT, "? JSON list of what was done to the parents: name, version, parameters"),
        column("cameras", _TEXTS, "camera names"),
        column("units", TEXT, "? JSON unit map of its joint columns"),
        column("licence", TEXT, "? licence of the data"),
        column("extra", TEXT, "? JSON of whatever else its provenance holds: conditions, calibration, operator"),
    ),
)

PARAMS = CatalogTable(
    name="params",
    meaning="the parameters that were drawn for each simulated episode, one row each",
    key=("episode_id", "name"),
    columns=(
        _EPISODE,
        column("name", TEXT, "path of the parameter, as in docs/parameters.md"),
        column("value", FLOAT, "its value in SI"),
    ),
)

SCORES = CatalogTable(
    name="scores",
    meaning="what a check found about an episode; the run committed last is its verdict, earlier ones are history",
    key=("episode_id", "check", "channel", "run_id"),
    columns=(
        _EPISODE,
        column("check", TEXT, "name of the check, FAMILY/NAME"),
        column("check_hash", TEXT, "hash of its version and settings"),
        column("channel", TEXT, "what it is of: a joint, a camera, an object; empty for the whole episode"),
        column("value", FLOAT, "? the figure"),
        column("unit", TEXT, "its unit"),
        column("limit", FLOAT, "? the figure from which on the episode is suspect"),
        column("verdict", TEXT, "good, suspect, bad, unknown where the check cannot tell, or unreadable"),
        column("reason", TEXT, "one sentence for a person: what is wrong, where, how much; or why it cannot tell"),
        column("first_frame", INT, "? first frame that is concerned"),
        column("last_frame", INT, "? last frame that is concerned"),
        column("run_id", TEXT, "the run that scored"),
    ),
)

EVALUATIONS = CatalogTable(
    name="evaluations",
    meaning="what a policy's trial came to, simulated or real",
    key=("policy", "suite", "trial", "run_id"),
    columns=(
        column("policy", TEXT, "name or hash of the policy"),
        column("suite", TEXT, "the set of conditions it was tried in"),
        column("trial", TEXT, "name of the trial, the same for policies that were tried alike"),
        column("episode_id", TEXT, "? the recorded episode, where there is one"),
        column("source", TEXT, "real or sim"),
        column("success", FLAG, "? outcome"),
        column("score", FLOAT, "? progress, 0 to 1"),
        column("condition", TEXT, "? the condition within the suite"),
        column("run_id", TEXT, "the run that evaluated"),
    ),
)

EMBEDDINGS = CatalogTable(
    name="embeddings",
    meaning="clips as numbers; rows of one encoder_hash lie in one space",
    key=("encoder_hash", "episode_id", "first_frame"),
    columns=(
        _EPISODE,
        column("encoder", TEXT, "name of the encoder"),
        column("encoder_hash", TEXT, "hash of its weights and settings"),
        column("first_frame", INT, "first frame of the clip"),
        column("last_frame", INT, "last frame of the clip"),
        column("vector", pa.list_(pa.float32()), "the numbers"),
    ),
)

TABLES = {table.name: table for table in (EPISODES, PARAMS, SCORES, EVALUATIONS, EMBEDDINGS)}
