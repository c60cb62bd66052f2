"""Write and commit the Parquet files of the catalog, which never change, and join small ones.

Such a file is called a part. It is written to a temporary file, flushed and renamed, and its folder is flushed, before
SQLite lists the part with its SHA-256. If the writer is interrupted, its file is not in the list, is ignored by
readers, and is removed later. The Parquet metadata of a part record its table and its commit, so that the list can be
rebuilt from the files.

The names of parts are ULIDs, which sort by time: 48 bits of milliseconds and 80 random bits, written as 26 letters and
digits. The format is that of https://github.com/ulid/spec, monotonic within a process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.catalog.schema import EPISODES, TABLES
from twinloop.catalog.state import WorkspaceState, now
from twinloop.core.documents import parse_json, require_regular
from twinloop.core.errors import DatasetError, UnknownNameError
from twinloop.core.evaluation import convert_to_schema
from twinloop.core.files import atomic_open, dumps, sha256_file
from twinloop.dataset.storage.snapshot import is_disk_full

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80
_STEP_BYTES = 8  # size of the random step within a millisecond: two of a million processes agree once in 37 million
LENGTH = 26
_LATEST = 1 << 44 + _RANDOM_BITS  # the year 2527; no clock reaches it, because time_ns ends in the year 2262

_lock = threading.Lock()
_last = 0


def ulid(*, after: str | None = None) -> str:
    """Return a new ULID that sorts after every earlier one of this process and after ``after``.

    If the clock is behind the last ULID, for example because it was set back, the new ULID is the last one plus a
    random number. Forked processes share the last ULID; because of the random number they do not return the same new
    one.

    Args:
        after: ULID that the new one must follow, for example the last name that another machine wrote (its clock may be
            ahead). A text that is not a ULID, or whose time no clock can have, is ignored.
    """
    global _last
    with _lock:
        moment = max(time.time_ns() // 1_000_000, 0)
        drawn = moment << _RANDOM_BITS | int.from_bytes(os.urandom(_RANDOM_BITS // 8), "big")
        before = max(_last, _decode(after))
        _last = drawn if drawn > before else before + 1 + int.from_bytes(os.urandom(_STEP_BYTES), "big")
        return _encode(_last)


def _decode(name: str | None) -> int:
    """Return the number that a ULID encodes; 0 for None and for a name that `ulid` cannot produce."""
    if name is None or len(name) != LENGTH or not set(name) <= set(_ALPHABET):
        return 0
    value = 0
    for letter in name:
        value = value << 5 | _ALPHABET.index(letter)
    return value if value < _LATEST else 0


def _encode(value: int) -> str:
    return "".join(_ALPHABET[value >> 5 * place & 31] for place in range(LENGTH - 1, -1, -1))


ABOUT = b"twinloop"
SCHEMA = 1
PATTERN = "part-*.parquet"
_ROWS = 1 << 17  # rows of a Parquet row group
_ROWS_OF = {"params": 1 << 14}  # sorted by name: small enough to skip to one name, large enough to compress


@dataclass(frozen=True, kw_only=True)
class PartFile:
    """Committed Parquet file of the catalog, as listed in the table ``parts``.

    Attributes:
        part: file name, ``part-ULID.parquet``.
        table_name: table whose rows the file has.
        position: ULID that orders the files of a table by their commits.
        rows: number of rows.
        bytes: size of the file in bytes.
        sha256: SHA-256 of the file.
        batch: dataset folder from which the rows were read; None for several folders or for rows of other tables.
        revision: revision of this dataset folder from which the rows were read, or None. It increases by one each time
            a changed folder is added again.
        run_id: run that wrote the rows, or None.
        committed: time of the commit, ISO 8601 in UTC.
    """

    part: str
    table_name: str
    position: str
    rows: int
    bytes: int
    sha256: str
    batch: str | None
    revision: int | None
    run_id: str | None
    committed: str


@dataclass(frozen=True, kw_only=True)
class DraftPart:
    """Rows that are to be written to a new Parquet file of the catalog.

    Attributes:
        table: name of the table.
        rows: the rows.
        batch: dataset folder from which the rows were read, if it is one.
        revision: number of the change of this dataset folder at which the rows were read.
        position: position of the file among the table's files; None for the last position.
        about: further entries for the metadata of the Parquet file.
    """

    table: str
    rows: pa.Table
    batch: str | None = None
    revision: int | None = None
    position: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])


class PartStore:
    """Store of the catalog's Parquet files: ``folder`` (``catalog/``) has one subfolder per table."""

    def __init__(self, folder: Path, state: WorkspaceState) -> None:
        self.folder, self.state = folder, state

    def path(self, table: str, part: str) -> Path:
        """Return the path of a Parquet file, given its table and its file name."""
        return self.folder / table / part

    def list_parts(self, table: str) -> list[PartFile]:
        """Return the committed Parquet files of a table, in the order of their positions."""
        sql = "SELECT * FROM parts WHERE table_name = ? ORDER BY position, part"
        return [PartFile(**row) for row in self.state.rows(sql, (table,))]

    @contextlib.contextmanager
    def write_parts(self, drafts: Sequence[DraftPart], *, run_id: str | None) -> Iterator[list[PartFile]]:
        """Return a context manager that writes drafts to Parquet files and yields these files.

        The caller commits the files with `register_parts` within the block. If the block raises an error, the files are
        removed.

        Args:
            drafts: the rows to write, one file each.
            run_id: id of the run that writes them, or None.

        Raises:
            InputError: If the workspace cannot be written.
            DatasetError: If the disk is full. Nothing has changed then.
        """
        parts: list[PartFile] = []
        commit = {"id": ulid(), "parts": len(drafts), "at": now(), "run_id": run_id}
        with self.lock_shared():
            try:
                parts.extend(self._write(draft, commit) for draft in drafts)
                for table in {draft.table for draft in drafts}:
                    flush_folder(self.folder / table)
                yield parts
            except BaseException as error:
                for part in parts:
                    self.path(part.table_name, part.part).unlink(missing_ok=True)
                if is_disk_full(error) and not isinstance(error, DatasetError):
                    raise make_disk_full_error(self.folder) from error
                raise

    @contextlib.contextmanager
    def lock_shared(self) -> Iterator[None]:
        """Return a context manager with a shared lock, to write files that are not committed yet.

        While it is held, no process can hold `lock_exclusive` and remove these files.
        """
        with _lock_folder(self.folder, fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def lock_exclusive(self) -> Iterator[None]:
        """Return a context manager with an exclusive lock, within which no other process writes Parquet files.

        Within it, every file that is not in the list of committed files is a leftover of an interrupted process.
        """
        with _lock_folder(self.folder, fcntl.LOCK_EX):
            yield

    def _find_last_position(self, table: str) -> str | None:
        """Return the last position of a table's Parquet files, committed or not; None if the table has no file.

        A position is a ULID. Positions are compared as text, which orders the files by their commits.
        """
        row = self.state.row("SELECT max(position) AS last FROM parts WHERE table_name = ?", (table,))
        files = [path.stem.removeprefix("part-") for path in (self.folder / table).glob(PATTERN)]
        return max([*files, *([row["last"]] if row and row["last"] else [])], default=None)

    def _write(self, draft: DraftPart, commit: Mapping[str, Any]) -> PartFile:
        key = ulid(after=self._find_last_position(draft.table))
        name, position = f"part-{key}.parquet", draft.position or key
        path = self.path(draft.table, name)
        about = {
            "schema": SCHEMA,
            "table": draft.table,
            "batch": draft.batch,
            "revision": draft.revision,
            "position": position,
            "commit": dict(commit),
            **draft.about,
        }
        rows = draft.rows.replace_schema_metadata({ABOUT: dumps(about).encode()})
        with atomic_open(path) as file:
            pq.write_table(rows, file, compression="zstd", row_group_size=_ROWS_OF.get(draft.table, _ROWS))
        return PartFile(
            part=name,
            table_name=draft.table,
            position=position,
            rows=len(rows),
            bytes=path.stat().st_size,
            sha256=sha256_file(path),
            batch=draft.batch,
            revision=draft.revision,
            run_id=commit["run_id"],
            committed=commit["at"],
        )


def register_parts(
    connection: sqlite3.Connection, parts: Sequence[PartFile], *, instead_of: Sequence[PartFile] = ()
) -> None:
    """Add Parquet files to the list of committed files, and remove the files that they replace, within a transaction.

    A file comes after all committed files of its table, unless it takes the position of a file that it replaces. The
    order is therefore that of the commits, and does not depend on the clocks of the writing machines.

    Args:
        connection: connection with an open transaction.
        parts: the files to add.
        instead_of: the committed files that they replace.
    """
    taken_over = {part.position for part in instead_of}
    for part in parts:
        row = asdict(part)
        if part.position not in taken_over:
            row["position"] = _choose_position(connection, part)
        names = ", ".join(row)
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO parts ({names}) VALUES ({marks})", list(row.values()))  # noqa: S608
    for part in instead_of:
        connection.execute("DELETE FROM parts WHERE part = ?", (part.part,))
        connection.execute(
            "INSERT OR REPLACE INTO retired VALUES (?, ?)", (f"{part.table_name}/{part.part}", time.time())
        )
    connection.execute("UPDATE counters SET value = value + 1 WHERE name = 'parts'")


def _choose_position(connection: sqlite3.Connection, part: PartFile) -> str:
    """Return the ULID that sorts a Parquet file after all committed files of its table.

    It is ``part.position``, or a later ULID if another process committed a file in the meantime.
    """
    sql = "SELECT max(position) FROM parts WHERE table_name = ?"
    last = connection.execute(sql, (part.table_name,)).fetchone()[0]
    return part.position if last is None or part.position > last else ulid(after=last)


def read_part_metadata(path: Path) -> dict[str, Any]:
    """Read twinloop's entry in the metadata of a Parquet file of the catalog: table, batch, position and commit.

    Raises:
        DatasetError: If the file is damaged, is not a file of a catalog, or was written by a newer version.
    """
    require_regular(path)
    try:
        about = parse_json((pq.read_schema(path).metadata or {})[ABOUT], where=str(path))
        schema = int(about["schema"])
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise DatasetError(
            f"{path} is damaged, or is not a part of a catalog ({error}). Run `twinloop fsck`."
        ) from error
    if schema > SCHEMA:
        raise DatasetError(f"{path} has schema {schema}; this version reads up to {SCHEMA}. Upgrade twinloop.")
    return about


def convert_table_rows(table: str, rows: pa.Table, *, given: Mapping[str, Any] | None = None) -> pa.Table:
    """Convert rows to exactly the columns of a catalog table, in its order and types.

    Optional columns that are missing become null.

    Args:
        table: name of the table.
        rows: the rows to convert.
        given: constant values for columns that ``rows`` lacks.

    Raises:
        UnknownNameError: If the table does not exist, or ``rows`` has a column that the table does not have.
        InputError: If a required column is missing or has nulls, or a column has another type.
    """
    if table not in TABLES:
        raise UnknownNameError("table", table, TABLES, where="the catalog's tables that take rows")
    declared = TABLES[table]
    meanings = {column.name: column.meaning for column in declared.columns}
    return convert_to_schema(rows, declared.schema, f"the table {table}", given=given, meanings=meanings)


def make_disk_full_error(folder: Path) -> DatasetError:
    """Return the error for a disk that became full while writing to ``folder``."""
    return DatasetError(
        f"No space left on the disk (or a file size limit reached) while writing to {folder}. Earlier commits "
        "are unchanged. Free some space and run this again."
    )


def flush_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to disk, so that new file names survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _lock_folder(folder: Path, kind: int) -> Iterator[None]:
    """Return a context manager with an advisory lock (``flock``) on a folder.

    The lock also ends if the process ends.

    Args:
        folder: the folder.
        kind: ``fcntl.LOCK_SH`` (shared) or ``fcntl.LOCK_EX`` (exclusive).
    """
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, kind)
        yield
    finally:
        os.close(handle)


SMALL = 1 << 16  # rows: a part with fewer is joined with its neighbours
LARGE = 1 << 20  # rows: a joined part has no more
GRACE_S = 3600.0  # time in s for which a replaced part is kept, because other processes may still read it


def compact(parts: PartStore, *, min_files: int = 8) -> dict[str, int]:
    """Join small Parquet files of the catalog (fewer than 65 536 rows), so that queries read fewer files.

    The transaction that lists a joined file also removes the old files from the list. The old files are kept for one
    hour, because other processes may still read them. They are then removed by a later call.

    Args:
        parts: the catalog's Parquet files.
        min_files: minimum number of small files to join that follow one another in the order of their commits.

    Returns:
        The number of joined files by table.

    Raises:
        DatasetError: If a file is damaged or the disk is full. Nothing has changed then.
    """
    joined: dict[str, int] = {}
    for table in TABLES:
        for group in _group_small_parts(parts.list_parts(table)):
            if len(group) >= min_files:
                _join_parts(parts, table, group)
                joined[table] = joined.get(table, 0) + len(group)
    remove_retired(parts)
    return joined


def remove_retired(parts: PartStore, *, grace_s: float = GRACE_S) -> int:
    """Remove Parquet files that were replaced at least ``grace_s`` seconds ago; return the number of removed files."""
    moment = time.time()
    rows = parts.state.rows("SELECT path FROM retired WHERE at < ?", (moment - grace_s,))
    for row in rows:
        (parts.folder / row["path"]).unlink(missing_ok=True)
    with parts.state.transaction() as connection:
        connection.executemany("DELETE FROM retired WHERE path = ?", [(row["path"],) for row in rows])
        # A time in the future comes from a clock that was ahead: start the wait now.
        connection.execute("UPDATE retired SET at = ? WHERE at > ?", (moment, moment))
    return len(rows)


def _group_small_parts(listed: list[PartFile]) -> Iterator[list[PartFile]]:
    """Yield groups of small Parquet files (fewer than 2^16 rows) that follow one another in the list.

    No group has more than 2^20 rows in total. A group may be empty.
    """
    group, rows = list[PartFile](), 0
    for part in listed:
        if part.rows >= SMALL or rows + part.rows > LARGE:
            yield group
            group, rows = [], 0
        if part.rows < SMALL:
            group.append(part)
            rows += part.rows
    yield group


def _join_parts(parts: PartStore, table: str, group: list[PartFile]) -> None:
    paths = [parts.path(table, part.part) for part in group]
    rows = pa.concat_tables([pq.read_table(path).replace_schema_metadata() for path in paths])
    about: dict[str, object] = {"replaces": [part.part for part in group]}
    if table == EPISODES.name:
        about["batch_records"] = _collect_batch_records([read_part_metadata(path) for path in paths])
    batches = {part.batch for part in group}
    same = next(iter(batches)) if len(batches) == 1 else None
    draft = DraftPart(
        table=table,
        rows=rows.sort_by("name") if table == "params" else rows,
        batch=same,
        revision=group[-1].revision if same is not None else None,
        position=group[0].position,
        about=about,
    )
    with parts.write_parts([draft], run_id=None) as written, parts.state.transaction() as connection:
        register_parts(connection, written, instead_of=group)


def _collect_batch_records(abouts: list[dict[str, object]]) -> list[object]:
    """Return the rows of the table ``batches`` that the metadata of Parquet files contains.

    ``abouts`` are the metadata, one dictionary per file.
    """
    found: list[object] = []
    for about in abouts:
        if about.get("batch_record"):
            found.append(about["batch_record"])
        more = about.get("batch_records")
        found += more if isinstance(more, list) else []
    return found
