"""Build the Arrow tables of one block of episodes: frames, episode rows with statistics, states, and tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.core.files import dumps, sha256_bytes, sha256_json
from twinloop.core.records import Episode, Provenance, SimEpisode
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import to_fixed_lists, to_lists
from twinloop.dataset.lerobot.statistics import QUANTILES, image_stats, sorted_quantiles
from twinloop.dataset.media.video import EncodedVideo
from twinloop.dataset.spec import TRUE_TIME, DatasetSpec

_MOMENTS = ("min", "max", "mean", "std")


def statistics_columns(features: Mapping[str, slice], matrices: Sequence[NDArray[np.float64]]) -> dict[str, pa.Array]:
    """Return the ``stats/*`` columns of the episode table; episodes of equal length are computed together.

    Args:
        features: Columns of the matrices that belong to each feature.
        matrices: All numeric features of each episode, as `frame_matrix` returns them.
    """
    lengths = np.array([len(matrix) for matrix in matrices])
    values = {name: np.empty((len(matrices), matrices[0].shape[1])) for name in (*_MOMENTS, *QUANTILES)}
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        for name, rows in _statistics(np.stack([matrices[int(i)] for i in same])).items():
            values[name][same] = rows
    columns: dict[str, pa.Array] = {}
    for feature, where in features.items():
        for name in _MOMENTS:
            columns[f"stats/{feature}/{name}"] = _to_lists(values[name][:, where])
        columns[f"stats/{feature}/count"] = _to_lists(lengths[:, None])
        for name in QUANTILES:
            columns[f"stats/{feature}/{name}"] = _to_lists(values[name][:, where])
    return columns


def _statistics(episodes: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Compute the statistics of n episodes of equal length T.

    Args:
        episodes: Values, shape ``(n, T, ncolumn)``.

    Returns:
        Arrays of shape ``(n, ncolumn)``, by name of the statistic: min, max, mean, std, q01, q10, q50, q90 and q99.
    """
    mean = episodes.mean(axis=1)
    squares = ((episodes - mean[:, None]) ** 2).sum(axis=1)
    return {
        "min": episodes.min(axis=1),
        "max": episodes.max(axis=1),
        "mean": mean,
        "std": np.sqrt(squares / episodes.shape[1]),
        **sorted_quantiles(np.sort(episodes, axis=1).swapaxes(0, 1)),
    }


def _to_lists(values: NDArray[Any]) -> pa.ListArray:
    """Convert an array ``(nrow, width)`` to a column of lists."""
    count, width = values.shape
    offsets = np.arange(0, count * width + 1, width, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(values).reshape(-1)))


@dataclass(frozen=True, kw_only=True)
class IndexedEpisode:
    """An episode with its indices in the dataset.

    Attributes:
        episode: The episode.
        provenance: Its provenance, including the content hash.
        episode_index: Index of the episode in the dataset.
        from_index: Index of its first frame in the dataset.
        task_index: Index of its task in the dataset's task list.
    """

    episode: SimEpisode
    provenance: Provenance
    episode_index: int
    from_index: int
    task_index: int

    @property
    def length(self) -> int:
        """Number of frames."""
        return len(self.episode.action)


def content_hash(episode: SimEpisode) -> str:
    """Return the hash of an episode's content, which does not change if episodes are renumbered or merged.

    The SHA-256 includes states, commands, actions, observations, readings and provenance (except the hash itself).
    """
    core = {key: item for key, item in episode.provenance.to_json().items() if key != "content_hash"}
    arrays = [episode.states, episode.commands, episode.action, episode.observation]
    arrays += [episode.readings[key] for key in sorted(episode.readings)]
    parts = [np.ascontiguousarray(array, dtype="<f8").tobytes() for array in arrays]
    return sha256_bytes(*parts, sha256_json(core).encode())


def stat_columns(spec: DatasetSpec) -> dict[str, slice]:
    """Return, for each feature, its columns in the result of `frame_matrix`.

    That is the matrix of an episode's numeric data, with one row per frame.
    """
    widths = {"action": len(spec.action_names), "observation.state": len(spec.state_names)}
    widths |= {reading.key: len(reading.columns) for reading in spec.readings}
    if spec.unsteady:
        widths[TRUE_TIME] = 1
    if spec.success:
        widths["next.success"] = 1
    widths |= dict.fromkeys(("timestamp", "frame_index", "episode_index", "index", "task_index"), 1)
    ends = np.cumsum(list(widths.values()))
    return {name: slice(int(end - width), int(end)) for (name, width), end in zip(widths.items(), ends, strict=True)}


def frame_matrix(spec: DatasetSpec, item: IndexedEpisode) -> NDArray[np.float64]:
    """Return all numeric features of one episode, rounded as they are stored, shape ``(nframe, ncolumn)``."""
    frame = np.arange(item.length)
    vectors = [item.episode.action, item.episode.observation]
    vectors += [item.episode.readings[reading.key] for reading in spec.readings]
    stored = np.hstack(vectors).astype(np.float32).astype(np.float64)
    parts: list[Any] = [stored]
    if spec.unsteady:
        parts.append(item.episode.states[:-1, :1].astype(np.float32).astype(np.float64))
    if spec.success:
        parts.append(item.episode.next_success.astype(np.float64)[:, None])
    fixed = np.stack(
        [
            (frame / spec.fps).astype(np.float32).astype(np.float64),
            frame,
            np.full(item.length, item.episode_index),
            item.from_index + frame,
            np.full(item.length, item.task_index),
        ],
        axis=1,
        dtype=np.float64,
    )
    return np.hstack([*parts, fixed])


def data_table(spec: DatasetSpec, matrix: NDArray[np.float64]) -> pa.Table:
    """Return the table of a data file.

    Args:
        spec: Specification of the dataset.
        matrix: `frame_matrix` of all episodes in the file, one below the other.
    """
    columns: dict[str, pa.Array] = {}
    vectors = {"action", "observation.state", *(reading.key for reading in spec.readings)}
    for name, where in stat_columns(spec).items():
        values = matrix[:, where]
        if name in vectors:
            columns[name] = to_fixed_lists(values.astype(np.float32))
        else:
            kind = {"next.success": np.bool_, "timestamp": np.float32, TRUE_TIME: np.float32}.get(name, np.int64)
            columns[name] = pa.array(values[:, 0].astype(kind))
    table = pa.table(columns)
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": _hf_features(table)}})})


def _hf_features(table: pa.Table) -> dict[str, Any]:
    """Return the column description in the format of Hugging Face ``datasets``, which LeRobot's loader reads."""
    result: dict[str, Any] = {}
    for entry in table.schema:
        if pa.types.is_fixed_size_list(entry.type):
            inner = {"dtype": "float32", "_type": "Value"}
            result[entry.name] = {"feature": inner, "length": entry.type.list_size, "_type": "List"}
        else:
            kind = {"float": "float32"}.get(str(entry.type), str(entry.type))
            result[entry.name] = {"dtype": kind, "_type": "Value"}
    return result


def states_table(episodes: Sequence[IndexedEpisode]) -> pa.Table:
    """Return a table of unrounded simulator states and commands, one row per episode.

    An array is stored as a flat list of float64 and its number of columns.
    """
    members = [item.episode for item in episodes]
    return pa.table(
        {
            "episode_index": pa.array([item.episode_index for item in episodes], pa.int64()),
            "number": pa.array([episode.number for episode in members], pa.int64()),
            "states": to_lists([episode.states for episode in members]),
            "state_width": pa.array([episode.states.shape[1] for episode in members], pa.int64()),
            "commands": to_lists([episode.commands for episode in members]),
            "command_width": pa.array([episode.commands.shape[1] for episode in members], pa.int64()),
        }
    )


def logs_table(episodes: Sequence[IndexedEpisode], logs: Sequence[Episode]) -> pa.Table:
    """Return a table of the unrounded values and true times of logs, one row per episode.

    Args:
        episodes: The episodes of the block.
        logs: The log of each episode, in the same order.
    """
    return pa.table(
        {
            "episode_index": pa.array([item.episode_index for item in episodes], pa.int64()),
            "number": pa.array([log.index for log in logs], pa.int64()),
            "time": to_lists([log.time for log in logs]),
            "action": to_lists([log.action for log in logs]),
            "state": to_lists([log.state for log in logs]),
            "origin": pa.array([log.origin for log in logs], pa.string()),
        }
    )


def tasks_table(tasks: Sequence[str]) -> pa.Table:
    """Return the table of ``tasks.parquet``, in the form that pandas writes with the task text as index."""
    index = {
        "name": None,
        "field_name": "__index_level_0__",
        "pandas_type": "unicode",
        "numpy_type": "object",
        "metadata": None,
    }
    column = {
        "name": "task_index",
        "field_name": "task_index",
        "pandas_type": "int64",
        "numpy_type": "int64",
        "metadata": None,
    }
    no_name = {
        "name": None,
        "field_name": None,
        "pandas_type": "unicode",
        "numpy_type": "object",
        "metadata": {"encoding": "UTF-8"},
    }
    described = {
        "index_columns": ["__index_level_0__"],
        "column_indexes": [no_name],
        "columns": [column, index],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    table = pa.table(
        {
            "task_index": pa.array(range(len(tasks)), pa.int64()),
            "__index_level_0__": pa.array(list(tasks), pa.string()),
        }
    )
    return table.replace_schema_metadata({"pandas": json.dumps(described)})


def episodes_table(
    spec: DatasetSpec,
    block: int,
    episodes: Sequence[IndexedEpisode],
    matrices: Sequence[NDArray[np.float64]],
    *,
    videos: Mapping[str, EncodedVideo],
    params: Sequence[str],
) -> pa.Table:
    """Return the episode table of one block: location of the frames, statistics, and provenance columns.

    Args:
        spec: Specification of the dataset.
        block: Number of the block.
        episodes: Episodes of the block.
        matrices: `frame_matrix` of each episode.
        videos: Encoded video of the block, by camera name.
        params: Names of the parameters that become columns.
    """
    where = layout.chunk_and_file(block)
    rows = [
        {
            "episode_index": item.episode_index,
            "tasks": [item.provenance.task],
            "length": item.length,
            **{f"data/{key}": value for key, value in where.items()},
            "dataset_from_index": item.from_index,
            "dataset_to_index": item.from_index + item.length,
            **_video_columns(spec, videos, i, where),
            **_image_columns(spec, videos, i),
            **{f"meta/episodes/{key}": value for key, value in where.items()},
            **_provenance_columns(item, params),
        }
        for i, item in enumerate(episodes)
    ]
    columns = {name: pa.array([row[name] for row in rows], _column_type(name, rows[0][name])) for name in rows[0]}
    return pa.table(_with_statistics(columns, statistics_columns(stat_columns(spec), matrices)))


# Types of the columns of the episode table; they must not depend on the values of one block.
_TYPES: dict[type, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


def _column_type(name: str, value: Any) -> pa.DataType:
    """Return the Arrow type of a column, from its name or else from its first value."""
    if name.startswith("stats/"):
        return pa.list_(pa.int64()) if name.endswith("/count") else pa.list_(pa.list_(pa.list_(pa.float64())))
    if name.startswith("provenance/rand."):
        return pa.float64()
    return {"provenance/success": pa.bool_(), "tasks": pa.list_(pa.string())}.get(name) or _TYPES[type(value)]


def _with_statistics(columns: Mapping[str, pa.Array], statistics: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return the columns of the episode table in LeRobot's order: statistics before ``meta/episodes/*``."""
    result: dict[str, pa.Array] = {}
    for name, column in columns.items():
        if not result.keys() & statistics.keys() and name.startswith(("stats/", "meta/episodes/")):
            result |= statistics
        result[name] = column
    return result


def _video_columns(
    spec: DatasetSpec, videos: Mapping[str, EncodedVideo], position: int, where: Mapping[str, int]
) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for camera in spec.cameras:
        lengths = [episode.frames for episode in videos[camera.name].episodes]
        start = sum(lengths[:position])
        columns |= {f"videos/{camera.key}/{key}": value for key, value in where.items()}
        columns[f"videos/{camera.key}/from_timestamp"] = start / spec.fps
        columns[f"videos/{camera.key}/to_timestamp"] = (start + lengths[position]) / spec.fps
    return columns


def _image_columns(spec: DatasetSpec, videos: Mapping[str, EncodedVideo], position: int) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for camera in spec.cameras:
        encoded = videos[camera.name].episodes[position]
        for key, value in image_stats(encoded.histogram, encoded.sampled).items():
            columns[f"stats/{camera.key}/{key}"] = value
    return columns


def _provenance_columns(item: IndexedEpisode, params: Sequence[str]) -> dict[str, Any]:
    record = item.provenance
    unknown = sorted(set(record.params) - set(params))
    if unknown:
        raise DatasetError(
            f"Episode number {item.episode.number} has the parameters {', '.join(unknown[:5])}, which the dataset's "
            "earlier episodes do not have. Episodes of one dataset share their parameters; write another dataset."
        )
    return {
        "provenance/episode_id": record.content_hash,
        "provenance/number": item.episode.number,
        "provenance/source": record.source,
        "provenance/parent_episode_ids": dumps(list(record.parents)),
        "provenance/twin": record.twin,
        "provenance/twin_hash": record.twin_hash,
        "provenance/config_hash": record.config_hash,
        "provenance/sim_version": str(record.versions.get("mujoco", "")),
        "provenance/versions": dumps(dict(record.versions)),
        "provenance/seed": record.seed_path[0],
        "provenance/attempt": record.seed_path[2],
        "provenance/expert": record.actor,
        "provenance/task": record.task,
        "provenance/units": dumps(dict(record.units)),
        "provenance/success": record.success,
        "provenance/success_version": record.success_version,
        "provenance/valid": record.valid,
        "provenance/invalid_reason": record.invalid_reason,
        "provenance/randomization": dumps(dict(record.params)),
        **{f"provenance/rand.{name.replace('/', '.')}": record.params.get(name) for name in params},
    }
