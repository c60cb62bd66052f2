"""Read and write ``state.sqlite``, the only file of the catalog that is changed; its transactions commit all changes.

SQLite runs in WAL mode (write-ahead log): readers never wait, and one process writes at a time while other writers
wait. A committed transaction survives a crash of its process and of the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from twinloop.catalog import state_schema
from twinloop.catalog.state_digests import (
    RowDigests,
    compute_digests,
    read_digests,
    write_count,
    write_digests,
    write_hash,
)
from twinloop.catalog.state_schema import STATE_TABLES
from twinloop.core.errors import (
    DatasetError,
    DatasetLockedError,
    UnknownNameError,
    convert_os_error,
    make_disk_full_error,
)

BUSY_S = 30.0  # how long a writer waits for its turn: a commit takes milliseconds, so a longer wait is an error
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_READ_ONLY = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)  # on a full disk, SQLite cannot create the files next to a WAL


class NewerStateError(DatasetError):
    """Error if a newer version of twinloop made ``state.sqlite``; only that version may change the file."""


class UnreachableStateError(DatasetError):
    """Error if the disk refuses access because it is full, read-only or faulty; the file itself may be intact."""


class _ThreadConnection:
    """SQLite connection of one thread in one process; it closes when the thread ends or the state is no longer used."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.process, self.connection = os.getpid(), connection
        weakref.finalize(self, connection.close)  # `__del__` may come after the connection's own, in a cycle


class WorkspaceState:
    """Access to ``state.sqlite`` of a workspace, with one SQLite connection per thread and process.

    A file of an earlier version of twinloop is migrated when it is opened.

    Raises:
        DatasetError: If the file is missing, damaged, or of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._copied_for_space = False
        if not path.is_file():
            raise DatasetError(
                f"{path} is missing. `twinloop fsck --repair` rebuilds its index from the parts in {path.parent}; "
                "labels and dataset versions are only in this file and need a copy of it."
            )
        with self._translate_errors():
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if not 1 <= version <= state_schema.VERSION:
            newer = version > state_schema.VERSION
            raise (NewerStateError if newer else DatasetError)(
                f"{path} has schema {version}; this version reads 1 to {state_schema.VERSION}. "
                + ("Upgrade twinloop." if newer else "Run `twinloop fsck`.")
            )
        if version < state_schema.VERSION:
            self._migrate()

    @classmethod
    def create(cls, path: Path) -> WorkspaceState:
        """Create an SQLite file with empty tables at ``path`` and open it; the file appears only when it is complete.

        Raises:
            DatasetError: If the file cannot be written.
        """
        fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        _remove_unfinished(path)
        try:
            with contextlib.closing(sqlite3.connect(fresh)) as connection:
                connection.executescript(f"PRAGMA journal_mode = WAL; BEGIN; {state_schema.create_sql()} COMMIT;")
                with connection:
                    write_digests(connection, compute_digests(connection))
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            fresh.replace(path)
        except (sqlite3.Error, OSError) as error:
            _remove_unfinished(path)
            raise convert_os_error(error, path) if isinstance(error, OSError) else _make_error(path, error) from error
        write_count(path, 0)
        return cls(path)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Return a context manager for a write transaction: all changes of the block are committed, or none.

        It yields the SQLite connection.

        Raises:
            DatasetLockedError: If another process has been writing for more than 30 s.
            DatasetError: If the file cannot be written or is damaged, or the disk is full.
        """
        connection = self._connection
        with self._translate_errors():
            digests = self._prepare_digests(connection)  # before the transaction: a rollback would remove its triggers
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                count = _count_transaction(connection)
                digests.store()
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        write_count(self.path, count)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Return a context manager for a read transaction, within which all reads see the same commit.

        It yields the SQLite connection.
        """
        connection = self._connection
        if connection.in_transaction:
            yield connection
            return
        with self._translate_errors():
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("COMMIT")

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Run a trusted SQL statement, never one of a user; return its rows, each as a dictionary by column name."""
        with self._translate_errors():
            cursor = self._connection.execute(sql, parameters)
            names = [entry[0] for entry in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> dict[str, Any] | None:
        """Run a trusted SQL statement, never one of a user; return its first row as a dictionary, or None."""
        found = self.rows(sql, parameters)
        return found[0] if found else None

    def counter(self, name: str) -> int:
        """Return a counter that grows with each committed transaction, so that readers can notice changes.

        Args:
            name: ``state`` to count all transactions, ``parts`` for those that changed the list of Parquet files.
        """
        with self._translate_errors():
            return self._connection.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()[0]

    def read_table(self, table: str, *, after: int = 0) -> pa.Table:
        """Return a table of ``state.sqlite`` as an Arrow table.

        Args:
            table: name of the table.
            after: return only rows with a higher SQLite ``rowid`` than this number; 0 for all rows.

        Raises:
            UnknownNameError: If the table does not exist.
        """
        if table not in STATE_TABLES:
            raise UnknownNameError("table", table, STATE_TABLES, where=str(self.path))
        columns = STATE_TABLES[table].columns
        names = ", ".join(f'"{column.name}"' for column in columns)
        with self._translate_errors():
            found = self._connection.execute(
                f"SELECT {names} FROM {table} WHERE rowid > ? ORDER BY rowid",  # noqa: S608 - names of our own
                (after,),
            ).fetchall()
        values = list(zip(*found, strict=True)) or [()] * len(columns)
        arrays = [
            pa.array(
                [None if v is None else bool(v) for v in column] if entry.type == pa.bool_() else column, entry.type
            )
            for entry, column in zip(columns, values, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=STATE_TABLES[table].schema)

    def vacuum(self) -> None:
        """Rewrite the file, so that no byte of deleted data remains in the file or in its write-ahead log."""
        with self._translate_errors():
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _migrate(self) -> None:
        """Convert the file to the schema of this version in one transaction; a read-only file is not changed."""
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if _is_read_only_error(error):
                return
            raise self._convert_error(error) from error
        with self._translate_errors():
            try:
                count = _run_migrations(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
        write_count(self.path, count)

    def close(self) -> None:
        """Close the SQLite connection of the calling thread."""
        held = getattr(self._local, "held", None)
        if held is not None and held.process == os.getpid():
            if self._local.digests is not None:
                self._record_file_hash(held.connection)
            held.connection.close()
        self._local.held = None
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    @property
    def _connection(self) -> sqlite3.Connection:
        """SQLite connection of the calling thread, opened at the first use.

        SQLite connections must not be used after a fork or be shared by threads.
        """
        held = getattr(self._local, "held", None)
        if held is None or held.process != os.getpid():
            held = _ThreadConnection(self._connect())
            self._local.held, self._local.digests = held, None
        return held.connection

    def _record_file_hash(self, connection: sqlite3.Connection) -> None:
        """Copy SQLite's write-ahead log into ``state.sqlite``, and record the SHA-256 of ``state.sqlite``.

        If the log cannot be copied completely, for example because another process reads it, record nothing.
        """
        with contextlib.suppress(sqlite3.Error):
            count = connection.execute("SELECT value FROM counters WHERE name = 'state'").fetchone()[0]
            _, frames, done = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if frames == done:
                write_hash(self.path, count)

    def _prepare_digests(self, connection: sqlite3.Connection) -> RowDigests:
        """Return this connection's `RowDigests`, emptied for a new transaction.

        It collects how a transaction changes the table digests (hashes of the tables' rows), by which `fsck` detects
        changes by other programs. The first call creates the object. It must happen before the connection's first
        transaction.
        """
        if self._local.digests is None:
            self._local.digests = RowDigests(connection)
        self._local.digests.discard_changes()
        return self._local.digests

    def _connect(self) -> sqlite3.Connection:
        try:
            return _open_connection(self.path)
        except sqlite3.OperationalError as error:
            if _error_code(error) not in (*_READ_ONLY, *_NO_ROOM):
                raise
            self._copied_for_space = _error_code(error) in _NO_ROOM
        # SQLite reads a WAL through files that it creates next to it. If it cannot create them, a copy is read.
        if self._copy is None:
            self._copy = _copy_state(self.path)
        connection = _open_connection(Path(self._copy.name) / self.path.name)
        connection.execute("PRAGMA query_only = ON")
        return connection

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._convert_error(error) from error

    def _convert_error(self, error: sqlite3.Error) -> DatasetError:
        if self._copied_for_space and _is_read_only_error(error):
            return make_disk_full_error(self.path)
        return _make_error(self.path, error)


def now() -> str:
    """Return the present time in UTC as ISO 8601 text with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _make_error(path: Path, error: sqlite3.Error) -> DatasetError:
    """Convert an error of SQLite to the error of twinloop that explains the cause and the next step."""
    code = _error_code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DatasetLockedError(
            f"Another process has been writing to {path} for more than {BUSY_S:.0f} s. Wait for it to end, "
            "or stop it; then run this again. Nothing was changed."
        )
    if code in _CORRUPT:
        return DatasetError(
            f"{path} is damaged ({error}). Restore a copy of it, or let `twinloop fsck --repair` rebuild its "
            "index from the parts; labels and dataset versions are then copied as far as they can be read."
        )
    if code == sqlite3.SQLITE_FULL:
        return UnreachableStateError(str(make_disk_full_error(path)))
    if _is_read_only_error(error):
        return UnreachableStateError(
            f"{path} cannot be written ({error}). Make the workspace writable, or work in a copy of it; "
            "queries still work."
        )
    if code == sqlite3.SQLITE_IOERR:
        return UnreachableStateError(
            f"{path} cannot be read or written ({error}): the disk is full or has a fault. Free some space, or read "
            "the system's log; then run this again."
        )
    return DatasetError(f"{path}: {error}. Run `twinloop fsck` to check the catalog.")


def _copy_state(path: Path) -> tempfile.TemporaryDirectory[str]:
    """Copy a SQLite file and its write-ahead log to a new temporary folder; return the folder.

    Raises:
        DatasetError: If there is no space for temporary files.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="twinloop-state-")
        for source in (path, path.with_name(f"{path.name}-wal")):
            if source.is_file():
                shutil.copy(source, Path(folder.name) / source.name)
    except OSError as error:
        raise convert_os_error(error, f"A copy of {path} in {tempfile.gettempdir()}") from error
    return folder


def _error_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _remove_unfinished(path: Path) -> None:
    """Remove temporary files that `WorkspaceState.create` left for ``path`` in processes that have ended."""
    for left in path.parent.glob(f".{path.name}.*.tmp*"):
        owner = left.name.removeprefix(f".{path.name}.").partition(".")[0]
        if owner == str(os.getpid()) or not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):
                left.unlink()


def _count_transaction(connection: sqlite3.Connection) -> int:
    """Increment the counter of transactions; return the new number."""
    sql = "UPDATE counters SET value = value + 1 WHERE name = 'state' RETURNING value"
    return connection.execute(sql).fetchall()[0][0]


def _run_migrations(connection: sqlite3.Connection) -> int:
    """Convert a file to the schema of this version within a transaction; return the number of the transaction."""
    # Another process may have done it meanwhile.
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    stored = read_digests(connection)
    before = compute_digests(connection) if stored is not None else {}
    for step in range(version, state_schema.VERSION):
        for statement in state_schema.STEPS[step]:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {max(version, state_schema.VERSION)}")
    count = _count_transaction(connection)
    # A row that was changed outside of a commit is still reported after the migration.
    wrong = {name: (stored or {}).get(name, 0) ^ digest for name, digest in before.items()}
    write_digests(connection, {n: digest ^ wrong.get(n, 0) for n, digest in compute_digests(connection).items()})
    return count


def _is_read_only_error(error: sqlite3.Error) -> bool:
    return _error_code(error) in _READ_ONLY or "readonly" in str(error)


def _open_connection(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")  # a commit in WAL is then on the disk when it returns
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


class OpenWorkspace(Protocol):
    """Interface of an open `Workspace`, for the helper modules that `Workspace` itself imports."""

    @property
    def root(self) -> Path:
        """Folder of the workspace."""
        ...

    @property
    def state(self) -> WorkspaceState:
        """Access to the workspace's ``state.sqlite``."""
        ...

    def query(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, max_rows: int | None = None
    ) -> pa.Table:
        """Run one read-only SQL statement and return its rows; see `Workspace.query`."""
        ...
