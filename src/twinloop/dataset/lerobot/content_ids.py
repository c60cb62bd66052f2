"""Compute content ids of episodes that have no provenance: a SHA-256 that is equal for all copies of an episode."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from twinloop.core.errors import DatasetError
from twinloop.core.files import sha256_bytes
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import column_to_floats, open_parquet
from twinloop.dataset.spec import INDEX_FEATURES, STATE

_CORE = (STATE, "action")
_NUMERIC = ("float32", "float64", "int64", "int32", "bool", "int8", "int16", "uint8")


def compute_content_ids(folder: Path, info: Mapping[str, Any], rows: pa.Table, source: str) -> list[str]:
    """Return the content id of each episode: a hash of its states, actions and task, and of the kind ``source``.

    If there are no states and actions, all numeric features are hashed instead.

    Args:
        folder: Folder of the dataset.
        info: Content of its ``info.json``.
        rows: Rows of its episode table, with ``episode_index``, ``length``, ``tasks`` and the location of the data.
        source: Kind of all episodes, such as real or simulated (not a folder).

    Raises:
        DatasetError: If a data file is missing or damaged, or its episodes differ from the episode table.
    """
    features = _features_to_hash(info["features"])
    wanted = rows.select(["episode_index", "length", "tasks", "data/chunk_index", "data/file_index"]).to_pylist()
    places = {(row["data/chunk_index"], row["data/file_index"]) for row in wanted}
    by_index = {row["episode_index"]: row for row in wanted}
    names: dict[int, str] = {}
    for chunk, file in sorted(places):
        path = layout.resolve_inside(folder, info["data_path"], {"chunk_index": chunk, "file_index": file})
        for index, frames in _episodes(path, features):
            row = by_index.get(index)
            if row is not None:
                if len(frames) != row["length"]:
                    raise _length_error(path, index, len(frames), row["length"])
                names[index] = _compute_id(frames, features, row["tasks"], source, where=f"{path}: episode {index}")
    missing = [index for index in by_index if index not in names]
    if missing:
        raise _length_error(folder, missing[0], 0, by_index[missing[0]]["length"])
    return [names[row["episode_index"]] for row in wanted]


def _features_to_hash(features: Mapping[str, Any]) -> list[str]:
    core = [name for name in _CORE if name in features]
    numeric = [name for name, entry in features.items() if entry["dtype"] in _NUMERIC and name not in INDEX_FEATURES]
    return core or sorted(numeric)


def _episodes(path: Path, features: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the index and the frames of each episode in a data file, with only one row group in memory at a time.

    Args:
        path: The data file.
        features: Names of the columns to read.
    """
    held: list[pa.Table] = []
    current = -1
    with open_parquet(path) as file:
        missing = [name for name in ("episode_index", *features) if name not in file.schema_arrow.names]
        if missing:
            raise DatasetError(
                f"{path} has no column {', '.join(missing)}, a feature in the metadata. Export it again."
            )
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=["episode_index", *features])
            indices = table["episode_index"].to_numpy()
            edges = [0, *(np.flatnonzero(np.diff(indices)) + 1).tolist(), len(indices)]
            for start, stop in itertools.pairwise(edges):
                if stop == start:
                    continue
                if held and indices[start] != current:
                    yield current, pa.concat_tables(held)
                    held = []
                current = int(indices[start])
                held.append(table.slice(start, stop - start))
    if held:
        yield current, pa.concat_tables(held)


def _compute_id(frames: pa.Table, features: Sequence[str], tasks: Sequence[str], source: str, *, where: str) -> str:
    parts = [name.encode() for name in features]
    for name in features:
        values = column_to_floats(frames[name], where=f"{where}: {name}")
        parts.append(np.ascontiguousarray(values, dtype="<f8").tobytes())
    return sha256_bytes(*parts, "\n".join(tasks or ()).encode(), source.encode())


def _length_error(where: Path, index: int, actual: int, expected: int) -> DatasetError:
    return DatasetError(
        f"{where} has {actual} frames of episode {index}, but the episode table has {expected}. "
        "The dataset is incomplete: copy or export it again."
    )
