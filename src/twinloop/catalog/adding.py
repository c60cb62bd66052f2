"""Telling the catalog of a dataset folder: the first time all of it, later what came to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twinloop.catalog.batch_commit import BatchCommit, ChangedMeanwhileError, write_record, write_seals
from twinloop.catalog.episode_rows import Folder, Rows, read_rows
from twinloop.catalog.folder_metadata import Fingerprint, checked_info, episode_files
from twinloop.catalog.parts import Part, Parts
from twinloop.catalog.seals import Seal, is_sealed, of_block, seal, sealed_files, seals_of
from twinloop.catalog.state import State, now
from twinloop.core.errors import DatasetError, InputError
from twinloop.dataset.lerobot.validation import unreadable_files

_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Added:
    """What became of a folder: its batch, its episodes, how many of them nobody knew before, and the parts written.

    ``resealed`` are files that were known, have other content now, and are known with that from now on. ``unreadable``
    are sentences on files of the new episodes that cannot be read. ``first_sealed`` counts files that an earlier
    version of twinloop had left without a hash.
    """

    batch: str
    episodes: int
    new: int
    known: int
    parts: tuple[str, ...]
    resealed: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    first_sealed: int = 0


def add_folder(parts: Parts, folder: Path, *, path: str, batch: str | None, source: str, run_id: str | None) -> Added:
    """Index a folder; see `Workspace.add`.

    Args:
        parts: of the catalog.
        folder: of the dataset, absolute.
        path: as the catalog writes it down.
        batch: what to call it; by default as before, or as the folder.
        source: of episodes that do not say.
        run_id: the run that made it.
    """
    checked_info(folder)
    sealed_files(folder)  # refuses pipes and links to outside before anything is read
    for _ in range(_TRIES):
        try:
            return _Addition(parts, folder, path=path, batch=batch, source=source, run_id=run_id).commit()
        except ChangedMeanwhileError:
            continue
    raise DatasetError(f"Other processes keep adding {folder} at the same time. Let one of them do it.")


def move(state: State, batch: str, path: str) -> None:
    """Write down that a batch lies elsewhere now."""
    with state.transaction() as connection:
        connection.execute("UPDATE batches SET path = ?, updated = ? WHERE batch = ?", (path, now(), batch))


class _Addition:
    """One attempt: what the catalog knows, what the folder holds, and the rows that make up the difference."""

    def __init__(
        self, parts: Parts, folder: Path, *, path: str, batch: str | None, source: str, run_id: str | None
    ) -> None:
        self._parts, self._folder, self._path = parts, folder, path
        self._source, self._run = source, run_id
        self._before = self._known(batch)
        self._batch = self._before["batch"] if self._before else batch or self._free_name(folder.name)
        self._print, self._info, self._files, self._rows = self._read()

    def commit(self) -> Added:
        before = {} if self._rewritten else {item.path: item for item in seals_of(self._parts.state, self._batch)}
        seals = seal(self._folder, before)
        resealed = [item.path for item in seals if item.path in before and item != before[item.path]]
        older = bool(before) and not is_sealed(list(before.values()))
        first = sum(older and not of_block(item.path) for item in seals)
        if self._before and not self._files and not self._rewritten:
            if self._before["path"] != self._path:
                move(self._parts.state, self._batch, self._path)
            if {item.path for item in seals if item.path not in before} or resealed or self._lost(before, seals):
                self._seal_again(seals)
            return self._again((), resealed=resealed, first_sealed=first)
        revision = self._before["revision"] if self._before else 0
        commit = BatchCommit(record=self._record(revision + 1), rows=self._rows, seals=seals, rewritten=self._rewritten)
        written, new = commit.make(self._parts, run_id=self._run)
        return self._again(written, new=new, resealed=resealed, first_sealed=first)

    def _lost(self, before: Iterable[str], seals: Sequence[Seal]) -> bool:
        """Return whether a file that belongs to no block is there no more."""
        return not {path for path in before if not of_block(path)} <= {item.path for item in seals}

    def _seal_again(self, seals: Sequence[Seal]) -> None:
        """Know files that changed, while the episodes did not, with what they hold now."""
        record = self._record((self._before or {})["revision"] + 1)
        with self._parts.state.transaction() as connection:
            write_seals(connection, self._batch, seals)
            write_record(connection, record)

    @property
    def _rewritten(self) -> bool:
        return self._change == "changed"

    def _known(self, batch: str | None) -> dict[str, Any] | None:
        """The batch's record: that of this name, or of this path."""
        state = self._parts.state
        here = state.row("SELECT * FROM batches WHERE path = ?", (self._path,)) or self._moved()
        if batch is None or (here and here["batch"] == batch):
            return here
        named = state.row("SELECT * FROM batches WHERE batch = ?", (batch,))
        if named:
            raise InputError(
                f"The workspace has a batch {batch} at {named['path']}. Give this folder another name with --batch, "
                "or leave it out."
            )
        if here:
            raise InputError(f"{self._folder} is in the workspace as batch {here['batch']}. Leave --batch out.")
        return None

    def _moved(self) -> dict[str, Any] | None:
        """A batch that was this folder and is no longer where it was."""
        root = self._parts.folder.parent
        gone = [row for row in self._parts.state.rows("SELECT * FROM batches") if not (root / row["path"]).exists()]
        if not gone:
            return None
        checked_info(self._folder)
        now_here = Fingerprint.of(self._folder)
        return next(
            (row for row in gone if now_here.since(Fingerprint.from_text(row["files"])) == "same" and row["episodes"]),
            None,
        )

    def _free_name(self, name: str) -> str:
        taken = {row["batch"] for row in self._parts.state.rows("SELECT batch FROM batches")}
        if name not in taken:
            return name
        number = next(i for i in range(2, len(taken) + 3) if f"{name}-{i}" not in taken)
        return f"{name}-{number}"

    def _read(self) -> tuple[Fingerprint, dict[str, Any], list[str], Rows]:
        """Fingerprint, metadata, and the rows of the files that are new, all of one moment."""
        for _ in range(_TRIES):
            info = checked_info(self._folder)
            before = Fingerprint.of(self._folder)
            known = Fingerprint.from_text(self._before["files"]) if self._before else None
            self._change = before.since(known) if known else "grown"
            skipped = known.files if known and not self._rewritten else {}
            files = [name for name in episode_files(self._folder) if name not in skipped]
            source = self._before["source"] if self._before else self._source
            rows = read_rows(Folder.at(self._folder, self._batch, info, source), files)
            if Fingerprint.of(self._folder) == before:
                self._check_count(info, rows, kept=self._before["episodes"] if skipped and self._before else 0)
                return before, info, files, rows
        raise DatasetError(f"{self._folder} changes faster than it can be read. Add it when its writer has ended.")

    def _check_count(self, info: dict[str, Any], rows: Rows, *, kept: int) -> None:
        indices = np.sort(rows.episodes["episode_index"].to_numpy())
        if not np.array_equal(indices, np.arange(kept, kept + len(indices))):
            raise DatasetError(
                f"{self._folder}: episode_index does not run from {kept} to {kept + len(indices) - 1} without gaps."
            )
        if kept + len(indices) != info["total_episodes"]:
            raise DatasetError(
                f"{self._folder}: info.json says {info['total_episodes']} episodes, its episode table has "
                f"{kept + len(indices)}. The dataset is incomplete: copy or export it again."
            )

    def _record(self, revision: int) -> dict[str, Any]:
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

    def _again(
        self, written: Sequence[Part], *, new: int = 0, resealed: Sequence[str] = (), first_sealed: int = 0
    ) -> Added:
        episodes = self._info["total_episodes"]
        return Added(
            batch=self._batch,
            episodes=episodes,
            new=new,
            known=episodes - new,
            parts=tuple(part.part for part in written),
            resealed=tuple(resealed),
            unreadable=tuple(unreadable_files(self._folder, self._info, self._files)),
            first_sealed=first_sealed,
        )
