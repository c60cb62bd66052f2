"""The tables of the catalog: their columns, and what each means.

Tables kept as Parquet parts grow by appending only; what must change in one step with other things stands in SQLite
(`catalog.state`). All of them are views of the same name to `Workspace.query`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Column:
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
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of a part."""
        return pa.schema([pa.field(column.name, column.type, nullable=column.optional) for column in self.columns])


_TEXT, _INT, _FLOAT, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_TEXTS = pa.list_(_TEXT)


def _column(name: str, type_: pa.DataType, meaning: str) -> Column:
    return Column(name=name, type=type_, meaning=meaning.removeprefix("? "), optional=meaning.startswith("? "))


_EPISODE = _column("episode_id", _TEXT, "SHA-256 of the episode's content: its name wherever it lies")

EPISODES = CatalogTable(
    name="episodes",
    meaning="every copy of an episode in a batch; the view `episodes` shows each episode once, `places` every copy",
    key=("batch", "episode_index"),
    columns=(
        _EPISODE,
        _column("batch", _TEXT, "name of the dataset folder in the workspace"),
        _column("episode_index", _INT, "place in that folder, as LeRobot counts"),
        _column("number", _INT, "attempt number of the run that made it; -1 where there was none"),
        _column("frames", _INT, "frames"),
        _column("fps", _FLOAT, "nominal frames per second"),
        _column("duration_s", _FLOAT, "frames / fps, in s"),
        _column("robot_type", _TEXT, "as LeRobot's info.json says"),
        _column("task", _TEXT, "what the robot was to do, in words"),
        _column("source", _TEXT, "real, sim, augmented or human-in-the-loop"),
        _column("twin", _TEXT, "? name of the twin that simulated it"),
        _column("twin_hash", _TEXT, "? hash of that twin"),
        _column("config_hash", _TEXT, "? hash of the configuration that generated it"),
        _column("sim_version", _TEXT, "? version of the simulator"),
        _column("seed", _INT, "? run seed"),
        _column("attempt", _INT, "? which draw of that number it is"),
        _column("actor", _TEXT, "? policy, expert or person that acted"),
        _column("success", _FLAG, "? what the task's own predicate said; labels stand apart, in `labels`"),
        _column("success_version", _TEXT, "? version of that predicate"),
        _column("valid", _FLAG, "whether the world held"),
        _column("invalid_reason", _TEXT, "? why it did not"),
        _column("parents", _TEXTS, "episode_id of the episodes that it was made from"),
        _column("transforms", _TEXT, "? JSON list of what was done to the parents: name, version, parameters"),
        _column("cameras", _TEXTS, "camera names"),
        _column("units", _TEXT, "? JSON unit map of its joint columns"),
        _column("licence", _TEXT, "? licence of the data"),
        _column("extra", _TEXT, "? JSON of whatever else its provenance holds: conditions, calibration, operator"),
    ),
)

PARAMS = CatalogTable(
    name="params",
    meaning="the parameters that were drawn for each simulated episode, one row each",
    key=("episode_id", "name"),
    columns=(
        _EPISODE,
        _column("name", _TEXT, "path of the parameter, as in docs/parameters.md"),
        _column("value", _FLOAT, "its value in SI"),
    ),
)

SCORES = CatalogTable(
    name="scores",
    meaning="what a check found about an episode; the run committed last is its verdict, earlier ones are history",
    key=("episode_id", "check", "channel", "run_id"),
    columns=(
        _EPISODE,
        _column("check", _TEXT, "name of the check, FAMILY/NAME"),
        _column("check_hash", _TEXT, "hash of its version and settings"),
        _column("channel", _TEXT, "what it is of: a joint, a camera, an object; empty for the whole episode"),
        _column("value", _FLOAT, "? the figure"),
        _column("unit", _TEXT, "its unit"),
        _column("limit", _FLOAT, "? the figure from which on the episode is suspect"),
        _column("verdict", _TEXT, "good, suspect, bad, unknown where the check cannot tell, or unreadable"),
        _column("reason", _TEXT, "one sentence for a person: what is wrong, where, how much; or why it cannot tell"),
        _column("first_frame", _INT, "? first frame that is concerned"),
        _column("last_frame", _INT, "? last frame that is concerned"),
        _column("run_id", _TEXT, "the run that scored"),
    ),
)

EVALUATIONS = CatalogTable(
    name="evaluations",
    meaning="what a policy's trial came to, simulated or real",
    key=("policy", "suite", "trial", "run_id"),
    columns=(
        _column("policy", _TEXT, "name or hash of the policy"),
        _column("suite", _TEXT, "the set of conditions it was tried in"),
        _column("trial", _TEXT, "name of the trial, the same for policies that were tried alike"),
        _column("episode_id", _TEXT, "? the recorded episode, where there is one"),
        _column("source", _TEXT, "real or sim"),
        _column("success", _FLAG, "? outcome"),
        _column("score", _FLOAT, "? progress, 0 to 1"),
        _column("condition", _TEXT, "? the condition within the suite"),
        _column("run_id", _TEXT, "the run that evaluated"),
    ),
)

EMBEDDINGS = CatalogTable(
    name="embeddings",
    meaning="clips as numbers; rows of one encoder_hash lie in one space",
    key=("encoder_hash", "episode_id", "first_frame"),
    columns=(
        _EPISODE,
        _column("encoder", _TEXT, "name of the encoder"),
        _column("encoder_hash", _TEXT, "hash of its weights and settings"),
        _column("first_frame", _INT, "first frame of the clip"),
        _column("last_frame", _INT, "last frame of the clip"),
        _column("vector", pa.list_(pa.float32()), "the numbers"),
    ),
)

TABLES = {table.name: table for table in (EPISODES, PARAMS, SCORES, EVALUATIONS, EMBEDDINGS)}
