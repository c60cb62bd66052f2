"""Import LeRobot v2.1 folders: one Parquet file per episode, names and rate in ``meta/info.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinloop.core.documents import DocumentError, read_json, read_json_lines
from twinloop.core.errors import LogError
from twinloop.core.units import UnitMap
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import read_table
from twinloop.dataset.lerobot.reader import flat_names
from twinloop.dataset.logs.importers.columns import EpisodeBuilder
from twinloop.dataset.logs.importers.protocol import Importer, LogOptions, RawEpisode


def recognizes(path: Path) -> bool:
    """Return whether a folder declares itself as a LeRobot dataset of version 2."""
    info = path / layout.INFO
    return info.is_file() and str(read_json(info).get("codebase_version", "")).startswith("v2")


def read(path: Path, options: LogOptions) -> list[RawEpisode]:
    """Return the episodes of a LeRobot v2.1 folder whose files exist, in order. The folder may be incomplete.

    Raises:
        LogError: If there is no episode, or an episode is invalid.
        UnitsError: If neither the folder nor the caller gives the units.
        DatasetError: If a file is damaged, or a path leads out of the folder.
    """
    info = read_json(path / layout.INFO)
    features = info["features"]
    builder = EpisodeBuilder(
        str(path),
        options,
        action_names=flat_names(features.get(options.action_key, {}).get("names")),
        state_names=flat_names(features.get(options.state_key, {}).get("names")),
        fps=info.get("fps"),
        units=_read_units(path),
        robot_type=str(info.get("robot_type") or ""),
        present=features,
    )
    episodes = []
    for row in _episode_rows(path, info):
        index = row["episode_index"]
        values = {"episode_chunk": index // info.get("chunks_size", 1000), "episode_index": index}
        file = layout.resolve_inside(path, info["data_path"], values)
        if file.is_file():
            task = (row.get("tasks") or [""])[0]
            episodes.append(builder.build(index, read_table(file, builder.columns), task=task))
    if not episodes:
        raise LogError(f"{path} has no episodes: none of the files that its metadata describes is there.")
    return episodes


def _episode_rows(path: Path, info: dict[str, Any]) -> list[dict[str, Any]]:
    file = path / "meta" / "episodes.jsonl"
    if not file.is_file():
        return [{"episode_index": index} for index in range(info["total_episodes"])]
    try:
        return [row for _, row in read_json_lines(file)]
    except DocumentError as error:
        raise LogError(str(error)) from error


def _read_units(path: Path) -> UnitMap | None:
    """Read the unit map that twinloop stores when it exports a dataset; None if there is none."""
    file = path / layout.UNIT_MAP
    if not file.is_file():
        return None
    with layout.wrap_parse_errors(str(file)):
        return UnitMap.from_json(read_json(file))


IMPORTER = Importer(name="lerobot-v2.1", recognizes=recognizes, read=read)
