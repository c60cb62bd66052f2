"""Add a dataset folder to the catalog: all of it the first time, later its new episodes, in one commit.

A commit stores the rows of a batch's episodes and parameters as parts, the batch's record, and the location of each
episode.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twinloop.catalog.dataset_folder import (
    Fingerprint,
    Seal,
    episode_files,
    is_block_file,
    is_sealed,
    list_sealed_files,
    read_checked_info,
    read_seals,
    seal_files,
)
from twinloop.catalog.episode_rows import EpisodeTableRows, FolderMetadata, read_rows
from twinloop.catalog.parts import DraftPart, PartFile, PartStore, read_part_metadata, register_parts
from twinloop.catalog.schema import EPISODES, PARAMS
from twinloop.catalog.state import WorkspaceState, now
from twinloop.core.errors import DatasetError, InputError
from twinloop.dataset.lerobot.validation import find_unreadable_files


class ConcurrentUpdateError(Exception):
    """Another process updated the same batch first."""


@dataclass(frozen=True, kw_only=True)
class BatchCommit:
    """The changes of one batch that are committed together.

    ``record`` is the batch's row of ``batches``; ``rows`` and ``seals`` are the new ones, or all of them if the batch
    was ``rewritten``.
    """

    record: Mapping[str, Any]
    rows: EpisodeTableRows
    seals: Sequence[Seal] = ()
    rewritten: bool = False

    @property
    def batch(self) -> str:
        """Name of the batch."""
        return self.record["batch"]

    def apply_changes(self, parts: PartStore, *, run_id: str | None) -> tuple[list[PartFile], int]:
        """Commit the changes; return the new parts, and the number of episodes that had no location before.

        Raises:
            ConcurrentUpdateError: the batch has another revision than the one before ``record``'s.
            DatasetError: the disk is full; nothing has changed.
        """
        params = select_unstored_params(parts.state, self.rows.params)
        revision = self.record["revision"]
        replaced, others = self._find_replaced_parts(parts) if self.rewritten else ([], [])
        about = {"batch_record": dict(self.record), "replaces": [part.part for part in replaced]}
        drafts = [
            DraftPart(table=table, rows=rows, batch=self.batch, revision=revision, about=about)
            for table, rows in ((EPISODES.name, self.rows.episodes), (PARAMS.name, params))
            if len(rows) or table == EPISODES.name
        ]
        with parts.write_parts([*drafts, *others], run_id=run_id) as written, parts.state.transaction() as connection:
            self._require_revision(connection, revision - 1)
            register_parts(connection, written, instead_of=replaced)
            if self.rewritten:
                connection.execute("DELETE FROM places WHERE batch = ?", (self.batch,))
                connection.execute("DELETE FROM seals WHERE batch = ?", (self.batch,))
            new = store_locations(connection, self.batch, self.rows.episodes)
            mark_params_stored(connection, params)
            write_seals(connection, self.batch, self.seals)
            write_record(connection, self.record)
        return written, new

    def _find_replaced_parts(self, parts: PartStore) -> tuple[list[PartFile], list[DraftPart]]:
        """Return the parts with the batch's old rows, and drafts that keep their rows of other batches."""
        replaced, others = list[PartFile](), list[DraftPart]()
        for part in parts.list_parts(EPISODES.name):
            if part.batch == self.batch:
                replaced.append(part)
            elif part.batch is None:  # several batches were joined into it
                path = parts.path(EPISODES.name, part.part)
                rows = pq.read_table(path)
                rest = rows.filter(pc.not_equal(rows["batch"], self.batch))
                if len(rest) < len(rows):
                    replaced.append(part)
                    about = {name: value for name, value in read_part_metadata(path).items() if name == "batch_records"}
                    others.append(DraftPart(table=EPISODES.name, rows=rest, position=part.position, about=about))
        return replaced, others

    def _require_revision(self, connection: sqlite3.Connection, revision: int) -> None:
        found = connection.execute("SELECT revision FROM batches WHERE batch = ?", (self.batch,)).fetchone()
        if (found[0] if found else 0) != revision:
            raise ConcurrentUpdateError


def select_unstored_params(state: WorkspaceState, params: pa.Table) -> pa.Table:
    """Return the parameter rows of episodes without stored parameters, sorted by name.

    An episode id determines the episode's parameters, so they are stored once.
    """
    ids = list(dict.fromkeys(params["episode_id"].to_pylist()))
    with state.snapshot() as connection:
        known = {name for name in ids if _contains_episode(connection, "drawn", encode_episode_id(name))}
    if known:
        mask = pa.array([name not in known for name in params["episode_id"].to_pylist()], pa.bool_())
        params = params.filter(mask)
    return params.sort_by("name")


def store_locations(connection: sqlite3.Connection, batch: str, episodes: pa.Table) -> int:
    """Store the locations of episodes; return the number of episodes without an earlier location."""
    keys = [encode_episode_id(name) for name in episodes["episode_id"].to_pylist()]
    new = sum(not _contains_episode(connection, "places", key) for key in dict.fromkeys(keys))
    rows = zip(keys, [batch] * len(keys), episodes["episode_index"].to_pylist(), strict=True)
    connection.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?)", rows)
    return new


def mark_params_stored(connection: sqlite3.Connection, params: pa.Table) -> None:
    """Record the episodes whose parameters are stored."""
    names = dict.fromkeys(params["episode_id"].to_pylist())
    connection.executemany("INSERT OR IGNORE INTO drawn VALUES (?)", [(encode_episode_id(name),) for name in names])


def write_seals(connection: sqlite3.Connection, batch: str, seals: Iterable[Seal]) -> None:
    """Store the seals of a batch's files.

    Seals of files outside of blocks must be given all together or not at all; seals of removed files are deleted.
    """
    seals = list(seals)
    if any(not is_block_file(seal.path) for seal in seals):
        held = connection.execute("SELECT path FROM seals WHERE batch = ?", (batch,)).fetchall()
        gone = [(batch, path) for (path,) in held if not is_block_file(path)]
        connection.executemany("DELETE FROM seals WHERE batch = ? AND path = ?", gone)
    rows = [(batch, seal.path, seal.bytes, seal.sha256, int(seal.whole)) for seal in seals]
    connection.executemany("INSERT OR REPLACE INTO seals VALUES (?, ?, ?, ?, ?)", rows)


def write_record(connection: sqlite3.Connection, record: Mapping[str, Any]) -> None:
    """Store or replace a row of the table ``batches``."""
    names, marks = ", ".join(record), ", ".join("?" * len(record))
    sql = f"INSERT OR REPLACE INTO batches ({names}) VALUES ({marks})"  # noqa: S608 - names of our own
    connection.execute(sql, list(record.values()))


def encode_episode_id(name: str) -> bytes:
    """Return the key of an episode in the index ``places``: 32 bytes for a SHA-256, otherwise its text."""
    try:
        return bytes.fromhex(name) if len(name) == 64 else name.encode()
    except ValueError:
        return name.encode()


def _contains_episode(connection: sqlite3.Connection, table: str, key: bytes) -> bool:
    sql = f"SELECT 1 FROM {table} WHERE episode_id = ? LIMIT 1"  # noqa: S608 - one of two names of our own
    return connection.execute(sql, (key,)).fetchone() is not None


_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class AddResult:
    """Result of adding a folder: its batch, its episodes, the numbers of new and known ones, and the written parts.

    ``resealed`` are known files whose content changed; their new content is now recorded. ``unreadable`` has a
    sentence per file of the new episodes that cannot be read. ``first_sealed`` is the number of files that an
    earlier version of twinloop left without a hash.
    """

    batch: str
    episodes: int
    new: int
    known: int
    parts: tuple[str, ...]
    resealed: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    first_sealed: int = 0


def add_folder(
    parts: PartStore, folder: Path, *, path: str, batch: str | None, source: str, run_id: str | None
) -> AddResult:
    """Add a folder to the catalog; see `Workspace.add`.

    Args:
        parts: the catalog's parts.
        folder: the dataset's folder, absolute.
        path: the folder's path as stored in the catalog.
        batch: name of the batch; by default its earlier name, or the folder's.
        source: source of episodes that do not state one.
        run_id: the run that made the folder.
    """
    read_checked_info(folder)
    list_sealed_files(folder)  # refuses pipes and links to outside before anything is read
    for _ in range(_TRIES):
        try:
            return _AddAttempt(parts, folder, path=path, batch=batch, source=source, run_id=run_id).commit()
        except ConcurrentUpdateError:
            continue
    raise DatasetError(f"Other processes keep adding {folder} at the same time. Let only one of them add it.")


def update_batch_path(state: WorkspaceState, batch: str, path: str) -> None:
    """Store the new path of a batch's folder."""
    with state.transaction() as connection:
        connection.execute("UPDATE batches SET path = ?, updated = ? WHERE batch = ?", (path, now(), batch))


class _AddAttempt:
    """One attempt to add a folder: the catalog's record, the folder's content, and the rows of the difference."""

    def __init__(
        self, parts: PartStore, folder: Path, *, path: str, batch: str | None, source: str, run_id: str | None
    ) -> None:
        self._parts, self._folder, self._path = parts, folder, path
        self._source, self._run = source, run_id
        self._before = self._find_record(batch)
        self._batch = self._before["batch"] if self._before else batch or self._choose_batch_name(folder.name)
        self._print, self._info, self._files, self._rows = self._read()

    def commit(self) -> AddResult:
        before = {} if self._is_rewritten else {item.path: item for item in read_seals(self._parts.state, self._batch)}
        seals = seal_files(self._folder, before)
        resealed = [item.path for item in seals if item.path in before and item != before[item.path]]
        older = bool(before) and not is_sealed(list(before.values()))
        first = sum(older and not is_block_file(item.path) for item in seals)
        if self._before and not self._files and not self._is_rewritten:
            if self._before["path"] != self._path:
                update_batch_path(self._parts.state, self._batch, self._path)
            if (
                {item.path for item in seals if item.path not in before}
                or resealed
                or self._has_removed_files(before, seals)
            ):
                self._update_seals(seals)
            return self._make_result((), resealed=resealed, first_sealed=first)
        revision = self._before["revision"] if self._before else 0
        commit = BatchCommit(
            record=self._make_record(revision + 1), rows=self._rows, seals=seals, rewritten=self._is_rewritten
        )
        written, new = commit.apply_changes(self._parts, run_id=self._run)
        return self._make_result(written, new=new, resealed=resealed, first_sealed=first)

    def _has_removed_files(self, before: Iterable[str], seals: Sequence[Seal]) -> bool:
        """Return whether a file outside of blocks was removed."""
        return not {path for path in before if not is_block_file(path)} <= {item.path for item in seals}

    def _update_seals(self, seals: Sequence[Seal]) -> None:
        """Store the new seals of files that changed although the episodes did not."""
        record = self._make_record((self._before or {})["revision"] + 1)
        with self._parts.state.transaction() as connection:
            write_seals(connection, self._batch, seals)
            write_record(connection, record)

    @property
    def _is_rewritten(self) -> bool:
        return self._change == "changed"

    def _find_record(self, batch: str | None) -> dict[str, Any] | None:
        """Return the batch's record, found by its name or its path."""
        state = self._parts.state
        here = state.row("SELECT * FROM batches WHERE path = ?", (self._path,)) or self._find_moved_batch()
        if batch is None or (here and here["batch"] == batch):
            return here
        named = state.row("SELECT * FROM batches WHERE batch = ?", (batch,))
        if named:
            raise InputError(
                f"The workspace has a batch {batch} at {named['path']}. Give this folder another name with --batch, "
                "or leave it out."
            )
        if here:
            raise InputError(f"{self._folder} is already in the workspace as batch {here['batch']}. Leave --batch out.")
        return None

    def _find_moved_batch(self) -> dict[str, Any] | None:
        """Return the batch that has the content of this folder and whose own folder no longer exists."""
        root = self._parts.folder.parent
        gone = [row for row in self._parts.state.rows("SELECT * FROM batches") if not (root / row["path"]).exists()]
        if not gone:
            return None
        read_checked_info(self._folder)
        now_here = Fingerprint.of(self._folder)
        return next(
            (
                row
                for row in gone
                if now_here.change_since(Fingerprint.from_text(row["files"])) == "same" and row["episodes"]
            ),
            None,
        )

    def _choose_batch_name(self, name: str) -> str:
        taken = {row["batch"] for row in self._parts.state.rows("SELECT batch FROM batches")}
        if name not in taken:
            return name
        number = next(i for i in range(2, len(taken) + 3) if f"{name}-{i}" not in taken)
        return f"{name}-{number}"

    def _read(self) -> tuple[Fingerprint, dict[str, Any], list[str], EpisodeTableRows]:
        """Read the fingerprint, the metadata, and the rows of the new files, all of the same version of the folder."""
        for _ in range(_TRIES):
            info = read_checked_info(self._folder)
            before = Fingerprint.of(self._folder)
            known = Fingerprint.from_text(self._before["files"]) if self._before else None
            self._change = before.change_since(known) if known else "grown"
            skipped = known.files if known and not self._is_rewritten else {}
            files = [name for name in episode_files(self._folder) if name not in skipped]
            source = self._before["source"] if self._before else self._source
            rows = read_rows(FolderMetadata.read_from(self._folder, self._batch, info, source), files)
            if Fingerprint.of(self._folder) == before:
                self._check_count(info, rows, kept=self._before["episodes"] if skipped and self._before else 0)
                return before, info, files, rows
        raise DatasetError(f"{self._folder} changes faster than it can be read. Add it after its writer has ended.")

    def _check_count(self, info: dict[str, Any], rows: EpisodeTableRows, *, kept: int) -> None:
        indices = np.sort(rows.episodes["episode_index"].to_numpy())
        if not np.array_equal(indices, np.arange(kept, kept + len(indices))):
            raise DatasetError(
                f"{self._folder}: episode_index does not run from {kept} to {kept + len(indices) - 1} without gaps."
            )
        if kept + len(indices) != info["total_episodes"]:
            raise DatasetError(
                f"{self._folder}: info.json has {info['total_episodes']} episodes, but its episode table has "
                f"{kept + len(indices)}. The dataset is incomplete: copy or export it again."
            )

    def _make_record(self, revision: int) -> dict[str, Any]:
        before = self._before or {}
        return {
            "batch": self._batch,
            "path": self._path,
            "revision": revision,
            "episodes": self._info["total_episodes"],
            "frames": self._info["total_frames"],
            "fps": float(self._info["fps"]),
            "robot_type": str(self._info.get("robot_type") or ""),
            "ours": (self._folder / "twinloop" / "dataset.json").is_file(),
            "source": before.get("source", self._source),
            "fingerprint": self._print.hash,
            "files": self._print.to_text(),
            "added": before.get("added", now()),
            "updated": now(),
            "run_id": self._run or before.get("run_id"),
        }

    def _make_result(
        self, written: Sequence[PartFile], *, new: int = 0, resealed: Sequence[str] = (), first_sealed: int = 0
    ) -> AddResult:
        episodes = self._info["total_episodes"]
        return AddResult(
            batch=self._batch,
            episodes=episodes,
            new=new,
            known=episodes - new,
            parts=tuple(part.part for part in written),
            resealed=tuple(resealed),
            unreadable=tuple(find_unreadable_files(self._folder, self._info, self._files)),
            first_sealed=first_sealed,
        )
