"""Repair faults that `fsck` found, without loss of data, and rebuild ``state.sqlite`` from the catalog's Parquet files.

Runs, labels, dataset versions, policies and exclusions of episodes are only in ``state.sqlite``. If the file is
damaged, their readable rows are copied one by one; if the file is missing, they are lost.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from twinloop.catalog.adding import (
    add_folder,
    mark_params_stored,
    store_locations,
    update_batch_path,
    write_record,
    write_seals,
)
from twinloop.catalog.dataset_folder import Fingerprint, read_checked_info, seal_files
from twinloop.catalog.fsck import SWEPT, FsckFinding, is_part_damaged
from twinloop.catalog.fsck_state import remove_secrets, reorder_parts
from twinloop.catalog.parts import (
    PATTERN,
    PartFile,
    PartStore,
    read_part_metadata,
    register_parts,
    remove_retired,
    ulid,
)
from twinloop.catalog.schema import EPISODES, PARAMS, TABLES
from twinloop.catalog.state import WorkspaceState
from twinloop.catalog.state_digests import count_file
from twinloop.catalog.state_schema import STATE_TABLES
from twinloop.core.errors import DatasetError, TwinloopError
from twinloop.core.files import sha256_file
from twinloop.dataset.lerobot import layout

_INDEX = ("parts", "batches")  # rebuilt from the parts; the rows of every other table are copied


@dataclass(kw_only=True)
class RepairResult:
    """Result of rebuilding ``state.sqlite``.

    Attributes:
        parts: number of Parquet files that the new file lists.
        damaged: paths of the Parquet files that cannot be read.
        unfinished: paths of the Parquet files whose commit was not finished; they are not listed.
        taken: number of rows that were copied from the old file, by table.
    """

    parts: int = 0
    damaged: list[str] = field(default_factory=list[str])
    unfinished: list[str] = field(default_factory=list[str])
    taken: dict[str, int] = field(default_factory=dict[str, int])


def rebuild_state(folder: Path, path: Path) -> RepairResult:
    """Rebuild ``state.sqlite`` from the Parquet files of the catalog.

    An existing file is kept as ``state.sqlite.damaged-ULID``, and its readable rows are copied.

    Args:
        folder: the workspace's folder ``catalog``.
        path: path of ``state.sqlite``.
    """
    rebuilt = RepairResult()
    fresh = path.with_name(f".{path.name}.rebuilt")
    _remove_state_files(fresh)
    state = WorkspaceState.create(fresh)
    try:
        _rebuild_index(folder, state, _read_valid_metadata(folder, rebuilt), _read_positions(path), rebuilt)
        _copy_other_tables(path, state, rebuilt)
        with state.transaction() as connection:
            connection.execute("UPDATE counters SET value = value + ?", (int.from_bytes(os.urandom(4), "big"),))
    finally:
        state.close()
    with contextlib.closing(sqlite3.connect(fresh)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    kept = f"{path.name}.damaged-{ulid()}"
    for suffix in ("-wal", "-shm", ""):
        old = path.with_name(path.name + suffix)
        if old.exists():
            old.rename(path.with_name(kept + suffix))
    fresh.replace(path)
    count_file(fresh).replace(count_file(path))
    _remove_state_files(fresh)
    return rebuilt


def _read_valid_metadata(folder: Path, rebuilt: RepairResult) -> dict[Path, dict[str, Any]]:
    """Return the metadata of each valid Parquet file: it is readable, was committed, and was not replaced.

    Names of damaged files and of files from unfinished commits are added to ``rebuilt``.
    """
    found: dict[Path, dict[str, Any]] = {}
    for table in TABLES:
        for path in sorted((folder / table).glob(PATTERN)):
            try:
                found[path] = read_part_metadata(path)
            except DatasetError:
                rebuilt.damaged.append(path.relative_to(folder).as_posix())
    # Parts that an unfinished commit would have replaced are still valid.
    whole = {path: about for path, about in found.items() if rebuilt.damaged or _is_commit_complete(about, found)}
    replaced = {name for about in whole.values() for name in about.get("replaces", ())}
    rebuilt.unfinished += [path.relative_to(folder).as_posix() for path in found.keys() - whole.keys()]
    kept = {path: about for path, about in whole.items() if path.name not in replaced}
    return _drop_repeated_parts(_keep_last_revisions(kept))


def _is_commit_complete(about: Mapping[str, Any], found: Mapping[Path, dict[str, Any]]) -> bool:
    """Return whether all files of a commit exist.

    A commit adds one or more Parquet files to the catalog at once. The entry ``commit`` in the metadata of each file
    has the commit's ``id``, and the number of its files (``parts``).

    Args:
        about: metadata of one Parquet file of the commit.
        found: metadata of all readable Parquet files, by path.
    """
    commit = about["commit"]
    return sum(other["commit"]["id"] == commit["id"] for other in found.values()) >= commit["parts"]


def _keep_last_revisions(metadata: Mapping[Path, dict[str, Any]]) -> dict[Path, dict[str, Any]]:
    """Keep only the last Parquet file of each revision (numbered change) of a batch in a table.

    The earlier files of the same revision are from writers that were interrupted before the commit.

    Args:
        metadata: metadata of each Parquet file.
    """
    last: dict[Any, tuple[Path, dict[str, Any]]] = {}
    for path, about in sorted(metadata.items(), key=lambda item: item[0].name):
        single = about["batch"] is not None and not about.get("replaces")
        key = (about["table"], about["batch"], about["revision"]) if single else path
        last[key] = (path, about)
    return dict(last.values())


def _drop_repeated_parts(metadata: Mapping[Path, dict[str, Any]]) -> dict[Path, dict[str, Any]]:
    """Keep only the last of several Parquet files that `Workspace.append` wrote in one run with equal rows.

    Such files exist if a writer was interrupted and ran again.

    Args:
        metadata: metadata of each Parquet file.
    """
    last: dict[Path, dict[str, Any]] = {}
    alike: dict[Any, list[Path]] = {}
    for path, about in sorted(metadata.items(), key=lambda item: item[0].name):
        if about["batch"] is None and not about.get("replaces"):
            group = alike.setdefault((about["table"], about["commit"]["run_id"], pq.read_metadata(path).num_rows), [])
            rows = pq.read_table(path)
            for other in [other for other in group if pq.read_table(other).equals(rows)]:
                group.remove(other)
                del last[other]
            group.append(path)
        last[path] = about
    return last


def _read_positions(path: Path) -> dict[str, str]:
    """Return the position of each Parquet file, by file name, from an old ``state.sqlite``, as far as it is readable.

    A position is a ULID, whose order as text is the order of the commits. The metadata of a Parquet file have the
    position that its writer expected. The real position is a later ULID if another process committed in between.
    """
    if not path.is_file():
        return {}
    with contextlib.closing(sqlite3.connect(path)) as old:
        rows = list(_read_until_error(old, "SELECT part, position FROM parts"))
    return {part: position for part, position in rows if isinstance(part, str) and isinstance(position, str)}


def _rebuild_index(
    folder: Path,
    state: WorkspaceState,
    abouts: Mapping[Path, dict[str, Any]],
    positions: Mapping[str, str],
    rebuilt: RepairResult,
) -> None:
    parts = [
        _make_part_file(path, {**about, "position": positions.get(path.name, about["position"])})
        for path, about in abouts.items()
    ]
    parts.sort(key=lambda part: (part.position, part.part))
    records: dict[str, dict[str, Any]] = {}
    for about in abouts.values():
        for record in [about.get("batch_record"), *about.get("batch_records", ())]:
            if record and record["revision"] >= records.get(record["batch"], {"revision": 0})["revision"]:
                records[record["batch"]] = record
    with state.transaction() as connection:
        register_parts(connection, parts)
        for record in records.values():
            write_record(connection, record)
            dataset = folder.parent / record["path"]
            if dataset.is_dir():
                write_seals(connection, record["batch"], seal_files(dataset))
        for path, about in abouts.items():
            if about["table"] == EPISODES.name:
                rows = pq.read_table(path, columns=["episode_id", "batch", "episode_index"])
                for batch in rows["batch"].unique().to_pylist():
                    store_locations(
                        connection, batch, rows.filter([value == batch for value in rows["batch"].to_pylist()])
                    )
            elif about["table"] == PARAMS.name:
                mark_params_stored(connection, pq.read_table(path, columns=["episode_id"]))
    rebuilt.parts = len(parts)


def _make_part_file(path: Path, about: Mapping[str, Any]) -> PartFile:
    return PartFile(
        part=path.name,
        table_name=about["table"],
        position=about["position"],
        rows=pq.read_metadata(path).num_rows,
        bytes=path.stat().st_size,
        sha256=sha256_file(path),
        batch=about["batch"],
        revision=about["revision"],
        run_id=about["commit"]["run_id"],
        committed=about["commit"]["at"],
    )


def _copy_other_tables(path: Path, state: WorkspaceState, rebuilt: RepairResult) -> None:
    """Copy all readable rows from the old file at ``path``, except of the tables that are rebuilt from Parquet files.

    The numbers of copied rows are added to ``rebuilt``.
    """
    if not path.is_file():
        return
    with contextlib.closing(sqlite3.connect(path)) as old, state.transaction() as connection:
        old.text_factory = lambda raw: raw.decode("utf-8", "replace")  # one damaged text must not end a table
        for name in (*STATE_TABLES, "run_files"):
            if name in _INDEX:
                continue
            held = {row[1] for row in _read_until_error(old, f"PRAGMA table_info({name})")}  # older files lack columns
            own = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            names = [column for column in own if column in held]
            columns = ", ".join(f'"{column}"' for column in names)
            marks = ", ".join("?" * len(names))
            rebuilt.taken[name] = 0
            for row in _read_until_error(old, f"SELECT {columns} FROM {name}"):  # noqa: S608 - names of our own
                connection.execute(f"INSERT OR IGNORE INTO {name} ({columns}) VALUES ({marks})", row)  # noqa: S608
                rebuilt.taken[name] += 1


def _read_until_error(old: sqlite3.Connection, sql: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a statement; end silently at the first row that SQLite cannot read."""
    with contextlib.suppress(sqlite3.Error):
        yield from old.execute(sql)


def _remove_state_files(path: Path) -> None:
    for file in (*(path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")), count_file(path)):
        file.unlink(missing_ok=True)


_DEPTH = 4  # folders below the workspace in which a moved dataset is looked for


def repair_state(folder: Path, path: Path) -> str:
    """Rebuild ``state.sqlite`` (``path``) from the catalog's folder; return one sentence or more on the result."""
    rebuilt = rebuild_state(folder, path)
    copied = ", ".join(f"{count} {name}" for name, count in rebuilt.taken.items() if count)
    damaged = f" These parts cannot be read: {', '.join(rebuilt.damaged)}." if rebuilt.damaged else ""
    unfinished = (
        f" These parts were left out, because their commit was not finished: {', '.join(rebuilt.unfinished)}."
        if rebuilt.unfinished
        else ""
    )
    return f"The index was rebuilt from {rebuilt.parts} parts; copied: {copied or 'nothing'}.{damaged}{unfinished}"


def repair(parts: PartStore, findings: Sequence[FsckFinding]) -> dict[FsckFinding, str]:
    """Repair faults, except those that need `repair_state`; return a sentence on each repair, by fault."""
    done: dict[FsckFinding, str] = {}
    for finding in findings:
        try:
            sentence = _repair_one(parts, finding)
        except TwinloopError as error:
            sentence = f"Not repaired: {error}"
        if sentence:
            done[finding] = sentence
    remove_retired(parts)
    return done


def _repair_one(parts: PartStore, finding: FsckFinding) -> str:
    if finding.repair == "sweep":
        return _move_unlisted_file(parts, finding)
    if finding.repair == "forget":
        (parts.folder.parent / finding.location).unlink(missing_ok=True)
        return "Removed."
    if finding.repair == "count":
        with parts.state.transaction():
            return "Written again."
    if finding.repair == "reorder":
        return reorder_parts(parts)
    if finding.repair == "redact":
        return remove_secrets(parts.state)
    if finding.repair == "find" and finding.batch is not None:
        return _find_moved_folder(parts, finding.batch)
    if finding.repair == "add" and finding.batch is not None:
        return _update_batch(parts, finding.batch)
    if finding.repair == "reread":
        return _reread_rows(parts, finding.batch)
    return ""


def _update_batch(parts: PartStore, batch: str) -> str:
    """Add a batch's folder again, so that the catalog has its current content; return a sentence on the result."""
    row = parts.state.row("SELECT path FROM batches WHERE batch = ?", (batch,))
    if row is None:
        return ""
    folder = parts.folder.parent / row["path"]
    added = add_folder(parts, folder, path=row["path"], batch=None, source="real", run_id=None)
    return f"Updated: {added.episodes} episodes, {added.new} new." if added.parts else _reread_rows(parts, batch)


def _move_unlisted_file(parts: PartStore, finding: FsckFinding) -> str:
    """Move a file that is not in the list of committed files to ``catalog/swept``; return a sentence on the result.

    The catalog is locked meanwhile, so that no other process writes Parquet files.
    """
    path = parts.folder.parent / finding.location
    with parts.lock_exclusive():
        if parts.state.row("SELECT 1 FROM parts WHERE part = ?", (path.name,)) or not path.exists():
            return "Its writer has finished in the meantime."
        target = parts.folder / SWEPT / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    return f"Moved to {target.relative_to(parts.folder.parent)}."


def _find_moved_folder(parts: PartStore, batch: str) -> str:
    """Search the workspace for the moved folder of a batch by its fingerprint; return a sentence on the result."""
    row = parts.state.row("SELECT files FROM batches WHERE batch = ?", (batch,))
    before = Fingerprint.from_text(row["files"]) if row else None
    root = parts.folder.parent
    taken = {item["path"] for item in parts.state.rows("SELECT path FROM batches")}
    for info in sorted({path for depth in range(1, _DEPTH) for path in root.glob("*/" * depth + layout.INFO)}):
        folder = info.parent.parent
        path = folder.relative_to(root).as_posix()
        if before is not None and path not in taken and Fingerprint.of(folder).change_since(before) != "changed":
            update_batch_path(parts.state, batch, path)
            return f"Found at {path}."
    return "Not found in the workspace."


def _reread_rows(parts: PartStore, batch: str | None) -> str:
    """Remove damaged Parquet files from the list, and read their rows from the dataset folders again.

    Args:
        parts: the catalog's Parquet files.
        batch: name of a batch (dataset folder in the catalog) whose rows are read again in any case, or None.

    Returns:
        A sentence with the folders that were read.

    Raises:
        DatasetError: If a required dataset folder is missing or damaged. Nothing has changed then.
    """
    listed = [*parts.list_parts(EPISODES.name), *parts.list_parts(PARAMS.name)]
    damaged = [part for part in listed if is_part_damaged(parts, part)]
    intact = [part for part in listed if part not in damaged]
    batches = sorted({*_find_incomplete_batches(parts, damaged, intact), *([batch] if batch else ())})
    rows = parts.state.rows("SELECT batch, path FROM batches ORDER BY batch")
    folders = {row["batch"]: row["path"] for row in rows if row["batch"] in batches}
    for path in folders.values():
        read_checked_info(parts.folder.parent / path)
    with parts.state.transaction() as connection:
        register_parts(connection, [], instead_of=damaged)
        if any(part.table_name == PARAMS.name for part in damaged):
            connection.execute("DELETE FROM drawn")
            for part in intact:
                if part.table_name == PARAMS.name:
                    mark_params_stored(
                        connection, pq.read_table(parts.path(PARAMS.name, part.part), columns=["episode_id"])
                    )
        # With a fingerprint that no folder has, the whole batch is read as new.
        nothing = Fingerprint(info="", files={"": ""}).to_text()
        connection.executemany("UPDATE batches SET files = ? WHERE batch = ?", [(nothing, name) for name in folders])
    for path in folders.values():
        add_folder(parts, parts.folder.parent / path, path=path, batch=None, source="real", run_id=None)
    return f"Read again: {', '.join(folders) or 'nothing was left to read'}."


def _find_incomplete_batches(parts: PartStore, damaged: Sequence[PartFile], intact: Sequence[PartFile]) -> set[str]:
    """Return the names of the batches whose rows are not all in the intact Parquet files."""
    episode_counts = {row["batch"]: row["episodes"] for row in parts.state.rows("SELECT batch, episodes FROM batches")}
    counts = dict.fromkeys(episode_counts, 0)
    for part in intact:
        if part.table_name == EPISODES.name:
            column = pq.read_table(parts.path(EPISODES.name, part.part), columns=["batch"])["batch"]
            for item in column.value_counts().to_pylist():
                counts[item["values"]] = counts.get(item["values"], 0) + item["counts"]
    missing = {name for name, count in episode_counts.items() if counts[name] != count}
    damaged_params = [part for part in damaged if part.table_name == PARAMS.name]
    missing |= {part.batch for part in damaged_params if part.batch is not None}
    return missing if all(part.batch is not None for part in damaged_params) else missing | set(episode_counts)
