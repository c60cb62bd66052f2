"""The two sides of a coverage: episodes of logs, dataset folders or a workspace, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from twinloop.catalog import Workspace
from twinloop.catalog.naming import MOST_ROWS
from twinloop.core.errors import InputError
from twinloop.core.files import read_json
from twinloop.core.records import Episode
from twinloop.curate.recording import Recording, open_recordings
from twinloop.dataset import layout
from twinloop.loop.logs import open_log

MOST_EPISODES = 20_000  # of a side: more are thinned by chance, because every pair of clips is compared


@dataclass(frozen=True, kw_only=True)
class Member:
    """One episode of a side.

    ``episode_id`` is the name of its content, or its place; ``title`` names it for people. ``folder`` is the dataset it
    lies in, None of a log of another kind. ``load`` reads its motion.
    """

    episode_id: str
    title: str
    folder: Path | None
    success: bool | None
    params: Mapping[str, float]
    load: Callable[[], Episode]
    recording: Recording | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """Episodes with the name of where they come from; ``notes`` say what was left out."""

    label: str
    members: tuple[Member, ...]
    notes: tuple[str, ...] = ()

    @property
    def folders(self) -> list[Path]:
        """The dataset folders, in order."""
        return list(dict.fromkeys(member.folder for member in self.members if member.folder is not None))

    @property
    def examples(self) -> list[Member]:
        """One member of each folder, and of what lies in none."""
        return list({member.folder: member for member in reversed(self.members)}.values())

    @property
    def success(self) -> np.ndarray:
        """Outcomes ``(n,)``: 1, 0, NaN where none is known."""
        return np.array([np.nan if m.success is None else float(m.success) for m in self.members])


def folder_side(references: Sequence[str], *, what: str, seed: int = 0) -> Side:
    """The episodes of logs and dataset folders, or of public sets.

    Args:
        references: paths or names, as `loop.logs.open_log` takes them.
        what: ``real`` or ``sim``, for messages.
        seed: of thinning.

    Raises:
        InputError: nothing is named, or there are no episodes.
        TwinloopError: a log cannot be read.
    """
    if not references:
        raise InputError(f"No {what} episodes were named. Give --{what} LOG, or --workspace with --{what}-where.")
    members = [member for reference in references for member in _members(reference)]
    return _side(" and ".join(references), members, what, seed)


def workspace_side(workspace: Workspace, where: str, *, what: str, seed: int = 0) -> Side:
    """The episodes of a workspace that a condition chooses.

    Args:
        workspace: the workspace.
        where: SQL of a condition over the view ``episodes``, such as ``source = 'real'``.
        what: ``real`` or ``sim``, for messages.
        seed: of thinning.

    Raises:
        InputError: the condition is wrong, or chooses nothing.
    """
    sql = f"SELECT episode_id, success FROM episodes WHERE {where} ORDER BY episode_id"  # noqa: S608 - a user's own, read only
    rows = workspace.query(sql, most_rows=MOST_ROWS).to_pylist()
    names = [str(row["episode_id"]) for row in rows]
    success = {str(row["episode_id"]): row["success"] for row in rows if row["success"] is not None}
    members = _located(workspace, names, success, _workspace_params(workspace, names))
    return _side(f"{workspace.root.name}, {where}", members, what, seed)


def _side(label: str, members: list[Member], what: str, seed: int) -> Side:
    if not members:
        raise InputError(f"{label} holds no episode for --{what}. In a workspace `twinloop query` shows what there is.")
    notes: tuple[str, ...] = ()
    if len(members) > MOST_EPISODES:
        chosen = np.random.default_rng(seed).permutation(len(members))[:MOST_EPISODES]
        notes = (f"Of {len(members)} {what} episodes {MOST_EPISODES} were taken by chance.",)
        members = [members[i] for i in np.sort(chosen)]
    return Side(label=label, members=tuple(members), notes=notes)


def _members(reference: str) -> list[Member]:
    path = Path(reference)
    if (path / layout.INFO).is_file() and _current(path):
        return [_of(recording, path) for recording in open_recordings(path)]
    log = open_log(reference)
    return [
        Member(
            episode_id=f"{log.name}#{episode.index}",
            title=f"episode {episode.index} of {log.name}",
            folder=None,
            success=None,
            params=episode.conditions,
            load=lambda episode=episode: episode,
        )
        for episode in log.episodes
    ]


def _current(path: Path) -> bool:
    return str(read_json(path / layout.INFO).get("codebase_version", "")).startswith("v3")


def _of(recording: Recording, folder: Path, params: Mapping[str, float] | None = None) -> Member:
    def load() -> Episode:
        episode = recording.episode
        recording.forget()
        return episode

    return Member(
        episode_id=recording.episode_id,
        title=recording.where,
        folder=folder,
        success=recording.success,
        params=recording.params if params is None else params,
        load=load,
        recording=recording,
    )


def _located(
    workspace: Workspace,
    names: Sequence[str],
    success: Mapping[str, bool],
    params: Mapping[str, Mapping[str, float]],
) -> list[Member]:
    wanted = set(names)
    places: dict[str, tuple[str, int]] = {}
    for row in workspace.query("SELECT episode_id, batch, episode_index FROM places").to_pylist():
        if row["episode_id"] in wanted:
            places.setdefault(row["episode_id"], (row["batch"], row["episode_index"]))
    readers = {batch: workspace.reader(batch) for batch in dict.fromkeys(batch for batch, _ in places.values())}
    members = []
    for name in names:
        batch, index = places[name]
        made = open_recordings(readers[batch], [index], batch=batch, episode_ids=[name], successes=success)
        members.append(_of(made[0], readers[batch].path, params.get(name, {})))
    return members


def _workspace_params(workspace: Workspace, names: Sequence[str]) -> dict[str, dict[str, float]]:
    wanted = set(names)
    rows = workspace.query("SELECT episode_id, name, value FROM params")
    found: dict[str, dict[str, float]] = {}
    columns = (rows[key].to_pylist() for key in ("episode_id", "name", "value"))
    for episode_id, name, value in zip(*columns, strict=True):
        if episode_id in wanted:
            found.setdefault(episode_id, {})[name] = value
    return found
