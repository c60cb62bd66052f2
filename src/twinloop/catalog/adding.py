"""Add a dataset folder to the catalog: all episodes the first time, later only the new ones, in one commit.

A dataset folder in the catalog is called a batch. A commit stores the rows of the batch's episodes and parameters in
Parquet files, and in ``state.sqlite`` the record of the batch, the location of each episode, and the size and SHA-256
of each file of the folder.
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
    """Error if another process committed a change of the same batch first, so that the batch must be read again."""


@dataclass(frozen=True, kw_only=True)
class BatchCommit:
    """Changes of one batch (dataset folder in the catalog) that are committed together.

    Attributes:
        record: the batch's new row of the table ``batches``; its ``revision`` is one higher than that of the stored
            row.
        rows: rows of the new episodes, or of all episodes if ``rewritten`` is true.
        seals: size and SHA-256 of the new or changed files, or of all files if ``rewritten`` is true.
        rewritten: whether the folder has other episodes than before, so that all earlier rows are replaced.
    """

    record: Mapping[str, Any]
    rows: EpisodeTableRows
    seals: Sequence[Seal] = ()
    rewritten: bool = False

    @property
    def batch(self) -> str:
        """Name of the batch (dataset folder in the catalog)."""
        return self.record["batch"]

    def apply_changes(self, parts: PartStore, *, run_id: str | None) -> tuple[list[PartFile], int]:
        """Write the rows to Parquet files and commit all changes of the batch in one transaction.

        Args:
            parts: the catalog's Parquet files.
            run_id: id of the run that made the dataset folder, or None.

        Returns:
            The written Parquet files, and the number of episodes that no batch (dataset folder in the catalog) had
            before.

        Raises:
            ConcurrentUpdateError: If another process committed a change of the batch in the meantime.
            DatasetError: If the disk is full. Nothing has changed then.
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
        """Find the parts (Parquet files) that contain earlier rows of this batch (dataset folder in the catalog).

        Returns:
            The parts to remove, and the parts to write instead. A part to remove may also contain rows of other
            batches, because small files are joined; a new part keeps these rows.
        """
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
        row = connection.execute("SELECT revision FROM batches WHERE batch = ?", (self.batch,)).fetchone()
        if (row[0] if row else 0) != revision:
            raise ConcurrentUpdateError


def select_unstored_params(state: WorkspaceState, params: pa.Table) -> pa.Table:
    """Return the parameter rows whose episodes have no stored parameters yet, sorted by parameter name.

    Copies of one episode have the same id and the same parameters. Therefore the parameters are stored only once.
    """
    ids = list(dict.fromkeys(params["episode_id"].to_pylist()))
    with state.snapshot() as connection:
        known = {name for name in ids if _contains_episode(connection, "drawn", encode_episode_id(name))}
    if known:
        mask = pa.array([name not in known for name in params["episode_id"].to_pylist()], pa.bool_())
        params = params.filter(mask)
    return params.sort_by("name")


def store_locations(connection: sqlite3.Connection, batch: str, episodes: pa.Table) -> int:
    """Store in which dataset folder, and at which index, each episode is; return the number of new episodes.

    An episode is new if no dataset folder in the catalog had it before.

    Args:
        connection: connection with an open transaction.
        batch: name of the dataset folder in the catalog.
        episodes: table with the columns ``episode_id`` and ``episode_index``.
    """
    keys = [encode_episode_id(name) for name in episodes["episode_id"].to_pylist()]
    new = sum(not _contains_episode(connection, "places", key) for key in dict.fromkeys(keys))
    rows = zip(keys, [batch] * len(keys), episodes["episode_index"].to_pylist(), strict=True)
    connection.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?)", rows)
    return new


def mark_params_stored(connection: sqlite3.Connection, params: pa.Table) -> None:
    """Record within a transaction that the parameters of these episodes (column ``episode_id``) are stored."""
    names = dict.fromkeys(params["episode_id"].to_pylist())
    connection.executemany("INSERT OR IGNORE INTO drawn VALUES (?)", [(encode_episode_id(name),) for name in names])


def write_seals(connection: sqlite3.Connection, batch: str, seals: Iterable[Seal]) -> None:
    """Store the size and SHA-256 (the seal) of files of a batch, within a transaction.

    Block files, such as ``data/chunk-000/file-000.parquet``, never change after they were written; all other files may.
    If ``seals`` has at least one other file, it must have all other files of the batch: the stored seals of other files
    that are not in ``seals`` are deleted, because those files were removed.
    """
    seals = list(seals)
    if any(not is_block_file(seal.path) for seal in seals):
        stored = connection.execute("SELECT path FROM seals WHERE batch = ?", (batch,)).fetchall()
        removed = [(batch, path) for (path,) in stored if not is_block_file(path)]
        connection.executemany("DELETE FROM seals WHERE batch = ? AND path = ?", removed)
    rows = [(batch, seal.path, seal.bytes, seal.sha256, int(seal.whole)) for seal in seals]
    connection.executemany("INSERT OR REPLACE INTO seals VALUES (?, ?, ?, ?, ?)", rows)


def write_record(connection: sqlite3.Connection, record: Mapping[str, Any]) -> None:
    """Insert a row into the table ``batches`` (dataset folders in the catalog), or replace the existing row."""
    names, marks = ", ".join(record), ", ".join("?" * len(record))
    sql = f"INSERT OR REPLACE INTO batches ({names}) VALUES ({marks})"  # noqa: S608 - names of our own
    connection.execute(sql, list(record.values()))


def encode_episode_id(name: str) -> bytes:
    """Return the binary key of an episode id: the 32 bytes of a hexadecimal SHA-256, otherwise its UTF-8 text."""
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
    """Result of adding a dataset folder to the catalog.

    Attributes:
        batch: name of the folder in the catalog.
        episodes: number of episodes in the folder.
        new: number of episodes of the folder that the catalog did not have before.
        known: number of episodes of the folder that the catalog had before.
        parts: names of the Parquet files that were written for the new rows.
        resealed: paths of known files whose content has changed; their new size and SHA-256 are now recorded.
        unreadable: one sentence for each file of the new episodes that cannot be read.
        first_sealed: number of files whose SHA-256 is recorded for the first time, because an earlier version of
            twinloop added them without a SHA-256.
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
    """Add a dataset folder to the catalog, or its new episodes if it is already in the catalog.

    Args:
        parts: the catalog's Parquet files.
        folder: the dataset's folder, an absolute path.
        path: the folder's path as stored in the catalog: relative to the workspace if it is inside the workspace.
        batch: name of the folder in the catalog; by default its present name in the catalog, else the folder's name.
        source: source (such as ``real``) of episodes that do not state their source.
        run_id: id of the run that made the folder, or None.

    Raises:
        DatasetError: If the folder is not a valid dataset, or other processes add it at the same time.
        InputError: If the name is used by another batch, or the folder is in the catalog under another name.
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
    """Store the new path of a batch (dataset folder in the catalog) that was moved."""
    with state.transaction() as connection:
        connection.execute("UPDATE batches SET path = ?, updated = ? WHERE batch = ?", (path, now(), batch))


class _AddAttempt:
    """One attempt to add a folder; it fails with `ConcurrentUpdateError` if another process adds the folder first.

    The constructor reads the catalog's record of the batch (dataset folder in the catalog), the folder's `Fingerprint`
    (hashes that show whether the folder changed), and the rows of the episodes that are new.
    """

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
        """Return whether a recorded file was removed, not counting block files.

        Block files (``chunk-*/file-*``) are the numbered files that hold frames, videos or side tables.

        Args:
            before: paths of the files that were recorded earlier.
            seals: recorded sizes and hashes of the files that exist now.
        """
        return not {path for path in before if not is_block_file(path)} <= {item.path for item in seals}

    def _update_seals(self, seals: Sequence[Seal]) -> None:
        """Store the size and SHA-256 of the folder's files if files have changed but no episode was added."""
        record = self._make_record((self._before or {})["revision"] + 1)
        with self._parts.state.transaction() as connection:
            write_seals(connection, self._batch, seals)
            write_record(connection, record)

    @property
    def _is_rewritten(self) -> bool:
        return self._change == "changed"

    def _find_record(self, batch: str | None) -> dict[str, Any] | None:
        """Return the record of the batch with this folder's path or content, or None if the folder is new.

        Raises:
            InputError: If ``batch`` is the name of another folder, or the folder has another name in the catalog.
        """
        state = self._parts.state
        here = state.row("SELECT * FROM batches WHERE path = ?", (self._path,)) or self._find_moved_batch()
        if batch is None or (here and here["batch"] == batch):
            return here
        named = state.row("SELECT * FROM batches WHERE batch = ?", (batch,))
        if named:
            raise InputError(
                f"The name {batch} belongs to another dataset folder of the workspace, {named['path']}. "
                "Choose another name with --batch, or leave --batch out."
            )
        if here:
            raise InputError(
                f"{self._folder} is already in the workspace under the name {here['batch']}. Leave --batch out."
            )
        return None

    def _find_moved_batch(self) -> dict[str, Any] | None:
        """Return the record of a batch whose folder is gone and had this folder's fingerprint; None if none has."""
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
        """Read the folder: fingerprint, content of ``info.json``, new files of the episode table, and their rows.

        The folder is read again if it changes in the meantime, so that all four results belong to the same version of
        it.

        Raises:
            DatasetError: If the folder changed during each attempt, or its numbers of episodes contradict each other.
        """
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
