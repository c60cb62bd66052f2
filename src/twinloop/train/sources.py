"""List the episodes to train on, from dataset folders, dataset versions or SQL queries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from twinloop.catalog import Workspace
from twinloop.catalog.episode_lookup import query_episode_ids
from twinloop.catalog.episode_rows import FolderMetadata, read_rows
from twinloop.catalog.label_checks import YES
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.train.config import SourceConfig

_STATEMENT = re.compile(r"\s*(SELECT|WITH|FROM)\b", re.IGNORECASE)
_COLUMNS = ["episode_id", "episode_index", "source", "success", "valid", "twin", "twin_hash"]


@dataclass(frozen=True, kw_only=True)
class ListedEpisode:
    """One episode available for training, before its frames are read.

    Attributes:
        folder: folder of its dataset.
        index: ``episode_index`` in that folder.
        episode_id: id of the episode in the catalog.
        real: whether it was recorded on a robot.
        success: whether its task succeeded; None if unknown.
        valid: false for an episode that is marked as invalid.
        params: parameter values drawn for the episode, in SI units; empty for a recorded one.
        twin: name or file of its twin; empty for a recorded one.
        twin_hash: hash of the twin's content.
    """

    folder: Path
    index: int
    episode_id: str
    real: bool
    success: bool | None = None
    valid: bool = True
    params: Mapping[str, float] = field(default_factory=dict[str, float])
    twin: str = ""
    twin_hash: str = ""

    @property
    def where(self) -> str:
        """Description of the episode for messages."""
        return f"episode {self.index} of {self.folder}"


@dataclass(frozen=True, kw_only=True)
class TrainingSource:
    """Named group of episodes that share a weight in the batches.

    Attributes:
        name: name of the source, unique among all sources.
        config: the user's settings of the source.
        episodes: the usable episodes.
    """

    name: str
    config: SourceConfig
    episodes: tuple[ListedEpisode, ...]

    @property
    def real(self) -> bool:
        """Whether any episode was recorded on a robot."""
        return any(episode.real for episode in self.episodes)


def open_sources(
    configs: Sequence[SourceConfig], *, workspace: Path | None = None, keep_failures: bool = False
) -> list[TrainingSource]:
    """List the episodes of each source that can be used for training: valid ones that are not known to have failed.

    Args:
        configs: the sources to open.
        workspace: workspace folder for dataset versions and queries; by default the nearest one above the current
            folder.
        keep_failures: include failed episodes.

    Raises:
        InputError: If a source has no usable episode, or two sources have the same name.
        UnknownNameError: If the folder or dataset version does not exist.
        DatasetError: If a folder is damaged.
    """
    made = []
    for config in configs:
        listed = _list_episodes(config, workspace)
        kept = tuple(e for e in listed if e.valid and (keep_failures or e.success is not False))
        if not kept:
            failed = sum(e.success is False for e in listed)
            raise InputError(
                f"{config.data} has no episode to train on: of {len(listed)}, {failed} failed and "
                f"{sum(not e.valid for e in listed)} are invalid. Include failures with --keep-failures, or give "
                "other data."
            )
        made.append(TrainingSource(name=config.name or _default_name(config.data), config=config, episodes=kept))
    return _make_names_unique(made)


def _default_name(data: str) -> str:
    return "query" if _STATEMENT.match(data) else Path(data).name or data


def _make_names_unique(sources: list[TrainingSource]) -> list[TrainingSource]:
    """Return the sources with unique names: default names that occur several times get a number.

    Raises:
        InputError: If the user gave one name to two sources.
    """
    names = [source.name for source in sources]
    named = [source.config.name for source in sources if source.config.name]
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise InputError(f"Two sources are called {twice[0]}. Give each source a different `name:`.")
    counts = [names[:place].count(name) for place, name in enumerate(names)]
    return [
        replace(source, name=f"{source.name}-{same + 1}") if same else source
        for source, same in zip(sources, counts, strict=True)
    ]


def _list_episodes(config: SourceConfig, workspace: Path | None) -> list[ListedEpisode]:
    data, folder = config.data, Path(config.data)
    if (folder / layout.INFO).is_file():
        return _select_episodes(_list_folder_episodes(folder, config.kind), config)
    statement = bool(_STATEMENT.match(data))
    if not statement and (folder.exists() or "/" in data):
        DatasetReader(folder)  # raises an error that names the missing file
    if config.episodes is not None:
        raise InputError(f"episodes: needs a dataset folder, but {data} is not one. Select episodes with SQL instead.")
    if workspace is None and Workspace.find(Path.cwd()) is None:
        what = "An SQL query" if statement else f"{data!r} is not a folder here, and a dataset version"
        raise InputError(
            f"{what} needs a workspace, but there is none here. Give the folder of a dataset, or create a "
            "workspace: `twinloop init FOLDER`."
        )
    with Workspace.open(workspace) as held:
        try:
            ids = _query_episode_ids(held, data) if statement else list(held.find_dataset_version(data).episode_ids)
        except UnknownNameError as error:
            raise InputError(f"{data!r} is neither a folder nor a dataset version. {error}") from error
        return _list_workspace_episodes(held, ids)


def _query_episode_ids(held: Workspace, sql: str) -> list[str]:
    ids = sorted(query_episode_ids(held, sql))
    if not ids:
        raise InputError(f"{sql!r} selects no episode. List the episodes with `twinloop query`.")
    return ids


def _select_episodes(listed: list[ListedEpisode], config: SourceConfig) -> list[ListedEpisode]:
    if config.episodes is None:
        return listed
    for index in config.episodes:
        if not 0 <= index < len(listed):
            raise InputError(f"{config.data} has no episode {index}; it has 0 to {len(listed) - 1}.")
    return [listed[index] for index in dict.fromkeys(config.episodes)]


def _list_folder_episodes(path: Path, kind: str) -> list[ListedEpisode]:
    folder = FolderMetadata.read_from(path, path.resolve().name, DatasetReader(path).info, kind)
    files = sorted(file.relative_to(path).as_posix() for file in (path / "meta" / "episodes").glob("*/*.parquet"))
    rows = read_rows(folder, files)
    params = _group_params(rows.params)
    found = [_make_listed_episode(path, row, params) for row in rows.episodes.select(_COLUMNS).to_pylist()]
    return sorted(found, key=lambda episode: episode.index)


def _make_listed_episode(
    path: Path, row: Mapping[str, Any], params: Mapping[str, Mapping[str, float]], label: bool | None = None
) -> ListedEpisode:
    return ListedEpisode(
        folder=path,
        index=int(row["episode_index"]),
        episode_id=str(row["episode_id"]),
        real=row["source"] in ("real", "human-in-the-loop"),
        success=row["success"] if label is None else label,
        valid=row["valid"] is not False,
        params=params.get(str(row["episode_id"]), {}),
        twin=str(row["twin"] or ""),
        twin_hash=str(row["twin_hash"] or ""),
    )


def _group_params(params: pa.Table) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, key, value in zip(*(params[c].to_pylist() for c in ("episode_id", "name", "value")), strict=True):
        found.setdefault(str(name), {})[key] = value
    return found


def _list_workspace_episodes(workspace: Workspace, ids: Sequence[str]) -> list[ListedEpisode]:
    """Return the episodes of a workspace in the order of ``ids``.

    A success label that users gave in the catalog overrides the recorded success.
    """
    chosen = {"ids": list(ids)}
    among = "WHERE episode_id IN (SELECT unnest($ids))"
    columns = ", ".join(_COLUMNS)
    table = workspace.query(f"SELECT batch, {columns} FROM places {among} ORDER BY batch, episode_index", chosen)  # noqa: S608
    rows = table.to_pylist()
    params = _group_params(workspace.query(f"SELECT episode_id, name, value FROM params {among}", chosen))  # noqa: S608
    labels = workspace.query(f"SELECT episode_id, value FROM consensus {among} AND kind = 'success'", chosen)  # noqa: S608
    success_labels = {
        str(row["episode_id"]): row["value"] == YES for row in labels.to_pylist() if row["value"] is not None
    }
    folders = {batch: workspace.folder(batch) for batch in dict.fromkeys(str(row["batch"]) for row in rows)}
    found: dict[str, ListedEpisode] = {}
    for row in rows:
        name = str(row["episode_id"])
        found.setdefault(name, _make_listed_episode(folders[row["batch"]], row, params, success_labels.get(name)))
    missing = [name for name in ids if name not in found]
    if missing:
        raise InputError(
            f"Episode {missing[0][:16]} is in no dataset of {workspace.root}. Add its dataset with `twinloop add`."
        )
    return [found[name] for name in ids]
