"""Convert the episode table of a dataset folder, including its provenance columns, to rows of the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from twinloop.catalog.schema import EPISODES, PARAMS
from twinloop.core.documents import parse_json, read_json, read_json_lines
from twinloop.core.errors import DatasetError
from twinloop.core.files import dumps
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.content_ids import compute_content_ids
from twinloop.dataset.lerobot.parquet import open_parquet, read_table, require_columns
from twinloop.dataset.lerobot.validation import require_frames_within, require_whole_numbers
from twinloop.dataset.media.depth import is_depth

_PROVENANCE, _DRAWN = "provenance/", "provenance/rand."
_PLACE = ("episode_index", "length", "tasks", "data/chunk_index", "data/file_index")
# Columns that are copied unchanged, by their name in the catalog; an empty text becomes None.
_TAKEN = {
    "twin": "twin",
    "twin_hash": "twin_hash",
    "config_hash": "config_hash",
    "sim_version": "sim_version",
    "actor": "expert",
    "success_version": "success_version",
    "invalid_reason": "invalid_reason",
    "units": "units",
    "transforms": "transforms",
}


@dataclass(frozen=True, kw_only=True)
class FolderMetadata:
    """Metadata of a dataset folder that apply to all of its episodes.

    Attributes:
        path: the dataset's folder.
        batch: name of the folder in the catalog.
        info: content of ``meta/info.json``.
        source: source of episodes that do not state their source: real, sim, augmented or human-in-the-loop.
        units: JSON text of the units of the joint columns, or None if the folder has no unit file.
        licence: licence of the data, or None if unknown.
    """

    path: Path
    batch: str
    info: Mapping[str, Any]
    source: str
    units: str | None
    licence: str | None

    @classmethod
    def read_from(cls, path: Path, batch: str, info: Mapping[str, Any], source: str) -> FolderMetadata:
        """Read the units and the licence from the folder's files; the arguments become the other attributes.

        Args:
            path: the dataset's folder.
            batch: name of the folder in the catalog.
            info: content of ``meta/info.json``.
            source: source of episodes that do not state their source: real, sim, augmented or human-in-the-loop.
        """
        units, spec = path / layout.UNIT_MAP, path / layout.SPEC
        licence = read_json(spec).get("licence") if spec.is_file() else None
        return cls(
            path=path,
            batch=batch,
            info=info,
            source=source,
            units=dumps(read_json(units)) if units.is_file() else None,
            licence=licence or None,
        )

    @property
    def cameras(self) -> list[str]:
        """Names of the cameras whose colour images are stored as videos or as image columns."""
        features = self.info["features"].items()
        keys = [key for key, entry in features if entry["dtype"] in ("video", "image") and not is_depth(entry)]
        return [key.removeprefix("observation.images.") for key in keys]


@dataclass(frozen=True, kw_only=True)
class EpisodeTableRows:
    """Rows for the catalog's tables ``episodes`` and ``params`` (drawn parameters)."""

    episodes: pa.Table
    params: pa.Table


def read_rows(folder: FolderMetadata, files: Sequence[str]) -> EpisodeTableRows:
    """Read some files of a dataset's episode table and convert them to rows of the catalog.

    Args:
        folder: metadata of the dataset folder.
        files: paths of the files in the folder.

    Raises:
        DatasetError: If a file is damaged, lacks columns, or has an impossible value.
    """
    found = [_read_file_rows(folder, name) for name in files]
    if not found:
        return EpisodeTableRows(episodes=EPISODES.schema.empty_table(), params=PARAMS.schema.empty_table())
    return EpisodeTableRows(
        episodes=pa.concat_tables([item.episodes for item in found]).combine_chunks(),
        params=pa.concat_tables([item.params for item in found]).combine_chunks(),
    )


def _read_file_rows(folder: FolderMetadata, name: str) -> EpisodeTableRows:
    path = folder.path / name
    with open_parquet(path) as file:
        present = file.schema_arrow.names
    require_columns(_PLACE, present, where=str(path))
    wanted = [n for n in present if n in _PLACE or n.startswith(_PROVENANCE)]
    table = read_table(path, wanted)
    require_whole_numbers(table, [n for n in _PLACE if n != "tasks"], where=str(path))
    require_frames_within(table, folder.info["total_frames"], where=str(path))
    ids = _find_episode_ids(folder, table)
    columns = _build_columns(folder, name, table, ids)
    schema = EPISODES.schema
    episodes = pa.Table.from_arrays([_cast_column(columns[f.name], f, len(table), path) for f in schema], schema=schema)
    return EpisodeTableRows(episodes=episodes, params=_build_param_rows(table, ids, path))


def _find_episode_ids(folder: FolderMetadata, table: pa.Table) -> list[str]:
    """Return the stored episode ids; the id of an episode without a stored one is a hash of its content."""
    column = f"{_PROVENANCE}episode_id"
    given = table[column].to_pylist() if column in table.column_names else [None] * len(table)
    names = [str(name or "") for name in given]
    nameless = [i for i, name in enumerate(names) if not name]
    if nameless:
        made = compute_content_ids(folder.path, folder.info, table.take(nameless), folder.source)
        for i, name in zip(nameless, made, strict=True):
            names[i] = name
    return names


def _build_columns(folder: FolderMetadata, name: str, table: pa.Table, ids: Sequence[str]) -> dict[str, Any]:
    fps = float(folder.info["fps"])
    tasks = table["tasks"].to_pylist()
    source = _read_text_column(table, "source") or [None] * len(table)
    real = [(item or folder.source) == "real" for item in source]
    extra = _read_extra(folder, name, table)
    columns: dict[str, Any] = {
        "episode_id": ids,
        "batch": [folder.batch] * len(table),
        "episode_index": table["episode_index"],
        "number": _fill_column(table, "number", -1),
        "frames": table["length"],
        "fps": [fps] * len(table),
        "duration_s": pc.divide(pc.cast(table["length"], pa.float64()), fps),
        "robot_type": [str(folder.info.get("robot_type") or "")] * len(table),
        "task": ["; ".join(item or ()) for item in tasks],
        "source": [item or folder.source for item in source],
        "seed": _mask_column(real, table, "seed"),
        "attempt": _mask_column(real, table, "attempt"),
        "success": _provenance_column(table, "success"),
        "valid": _fill_column(table, "valid", value=True),
        "parents": [
            _parse_list(text, folder.path)
            for text in _read_text_column(table, "parent_episode_ids") or [None] * len(table)
        ],
        "cameras": [folder.cameras] * len(table),
        "licence": [folder.licence] * len(table),
        "extra": [dumps(item) if item else None for item in extra],
    }
    for target, origin in _TAKEN.items():
        columns[target] = _read_text_column(table, origin)
    columns["units"] = columns["units"] or [folder.units] * len(table)
    columns["transforms"] = columns["transforms"] or [
        dumps(item["transforms"]) if item.get("transforms") else None for item in extra
    ]
    return columns


def _provenance_column(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    column = f"{_PROVENANCE}{name}"
    return table[column] if column in table.column_names else None


def _read_text_column(table: pa.Table, name: str) -> list[str | None] | None:
    """Return the text column ``provenance/NAME``, with None for empty texts; None if there is no such column."""
    column = _provenance_column(table, name)
    return None if column is None else [str(value) if value else None for value in column.to_pylist()]


def _fill_column(table: pa.Table, name: str, value: Any) -> Any:
    column = _provenance_column(table, name)
    return [value] * len(table) if column is None else pc.fill_null(column, value)


def _mask_column(absent: Sequence[bool], table: pa.Table, name: str) -> list[Any] | None:
    column = _provenance_column(table, name)
    if column is None:
        return None
    return [None if no else value for no, value in zip(absent, column.to_pylist(), strict=True)]


def _parse_list(text: str | None, where: Path) -> list[str]:
    with layout.wrap_parse_errors(f"provenance/parent_episode_ids of {where}"):
        return [str(item) for item in parse_json(text, where="the list")] if text else []


def _read_extra(folder: FolderMetadata, name: str, table: pa.Table) -> list[Mapping[str, Any]]:
    """Return for each episode the provenance facts that have no column of the catalog.

    They are in a separate JSON-lines file per block (group of episodes that share one data file).
    """
    path = folder.path / name.replace("meta/episodes/", "twinloop/provenance/").replace(".parquet", ".jsonl")
    if not path.is_file() or not path.resolve().is_relative_to(folder.path.resolve()):
        return [{}] * len(table)
    by_index: dict[int, Mapping[str, Any]] = {}
    with layout.wrap_parse_errors(str(path)):
        for _, value in read_json_lines(path):
            by_index[value["episode_index"]] = value.get("extra") or {}
    return [by_index.get(index, {}) for index in table["episode_index"].to_pylist()]


def _cast_column(values: Any, field: pa.Field, rows: int, path: Path) -> pa.Array:
    """Convert the values of a column to the type that the catalog's ``field`` has; None gives a column of nulls.

    Raises:
        DatasetError: If the values have another type, or a value is missing in a required column.
    """
    try:
        if values is None:
            return pa.nulls(rows, field.type)
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
        made = values.cast(field.type) if isinstance(values, pa.Array) else pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise DatasetError(
            f"{path}: the column for {field.name} is not {field.type} ({error}). Export it again."
        ) from error
    if made.null_count and not field.nullable:
        raise DatasetError(f"{path}: {made.null_count} episodes have no {field.name}. Export the dataset again.")
    return made


def _build_param_rows(table: pa.Table, ids: Sequence[str], path: Path) -> pa.Table:
    """Return one row for each drawn parameter of each episode, sorted by name for fast access to one parameter.

    Args:
        table: episode table with a provenance column for each drawn parameter.
        ids: id of the episode of each row of ``table``.
        path: file of the table, for error messages.

    Returns:
        Rows with the columns ``episode_id``, ``name`` and ``value`` (SI). Missing values have no row.
    """
    columns = [name for name in table.column_names if name.startswith(_DRAWN)]
    names = _parse_parameter_names(table, columns)
    order = sorted(range(len(columns)), key=lambda i: names[i])
    parts = [pa.table({"episode_id": [], "name": [], "value": []}, schema=PARAMS.schema)]
    keys = pa.array(ids, pa.string())
    for i in order:
        field = pa.field(columns[i], pa.float64())
        values = _cast_column(table[columns[i]], field, len(table), path)
        rows = pa.Table.from_arrays([keys, pa.repeat(names[i], len(table)), values], schema=PARAMS.schema)
        parts.append(rows.filter(values.is_valid()))
    return pa.concat_tables(parts)


def _parse_parameter_names(table: pa.Table, columns: Sequence[str]) -> list[str]:
    """Return the parameter names of provenance columns, in the order of ``columns``.

    A column name has dots in place of the slashes of the parameter's name. The name may also contain dots. Therefore
    the exact names are read from the column ``provenance/randomization`` (recorded distributions), if the table has it.
    """
    texts = _read_text_column(table, "randomization") or []
    exact: dict[str, str] = {}
    for text in (item for item in texts if item):
        with layout.wrap_parse_errors("provenance/randomization"):
            exact |= {
                f"{_DRAWN}{name.replace('/', '.')}": name for name in parse_json(text, where="a recorded distribution")
            }
        if exact.keys() >= set(columns):
            break
    return [exact.get(name, name.removeprefix(_DRAWN).replace(".", "/")) for name in columns]
