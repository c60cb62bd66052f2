"""``state.sqlite``: the one file of the catalog that changes, and with it the moment at which anything is committed.

SQLite in WAL mode: readers never wait, one process writes at a time and others wait for their turn. What a transaction
has committed survives the end of its process and of the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from twinloop.catalog import state_schema
from twinloop.catalog.state_schema import STATE_TABLES
from twinloop.core.errors import DatasetError, DatasetLockedError, UnknownNameError

BUSY_S = 30.0  # how long a writer waits for its turn: a commit takes milliseconds, so that who waits longer is told
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_READ_ONLY = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)


class NewerStateError(DatasetError):
    """The file was made by a newer version of twinloop, which alone may change it."""


class State:
    """The SQLite file of a workspace, with a connection for each thread and process.

    Raises:
        DatasetError: the file is missing, damaged or of a newer version; says what to do.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        if not path.is_file():
            raise DatasetError(
                f"{path} is missing. `twinloop fsck --repair` makes its index again from the parts in {path.parent}; "
                "labels and frozen datasets stand in it alone and come back from a copy of the file."
            )
        with self._explained():
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
    def create(cls, path: Path) -> State:
        """An empty one, whole from the moment it is there."""
        fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        connection = sqlite3.connect(fresh)
        try:
            connection.executescript(f"PRAGMA journal_mode = WAL; BEGIN; {state_schema.create_sql()} COMMIT;")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()
        fresh.replace(path)
        return cls(path)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The right to write, and everything in the block or nothing of it.

        Raises:
            DatasetLockedError: another process wrote for longer than one waits.
            DatasetError: the file cannot be written, the disk is full, or it is damaged.
        """
        connection = self._connection
        with self._explained():
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("UPDATE counters SET value = value + 1 WHERE name = 'state'")
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """One moment of the state, however long the block reads."""
        connection = self._connection
        if connection.in_transaction:
            yield connection
            return
        with self._explained():
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("COMMIT")

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The rows of a statement of our own, each by column."""
        with self._explained():
            cursor = self._connection.execute(sql, parameters)
            names = [entry[0] for entry in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> dict[str, Any] | None:
        """The first row of a statement of our own, or None."""
        found = self.rows(sql, parameters)
        return found[0] if found else None

    def counter(self, name: str) -> int:
        """What rises with every transaction (``state``), or with those that change the parts (``parts``)."""
        with self._explained():
            return self._connection.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()[0]

    def arrow(self, table: str, *, after: int = 0) -> pa.Table:
        """A declared table as it is now; of one whose rows are numbered, those after the first ``after``.

        Raises:
            UnknownNameError: none of that name.
        """
        if table not in STATE_TABLES:
            raise UnknownNameError("table", table, STATE_TABLES, where=str(self.path))
        columns = STATE_TABLES[table].columns
        names = ", ".join(f'"{column.name}"' for column in columns)
        with self._explained():
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

    def _migrate(self) -> None:
        """Take every step from the file's version to this one, in one transaction."""
        with self.transaction() as connection:
            # Another process may have done it meanwhile.
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            for step in range(version, state_schema.VERSION):
                for statement in state_schema.STEPS[step]:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {max(version, state_schema.VERSION)}")

    def close(self) -> None:
        """Give this thread's connection back."""
        held = getattr(self._local, "held", None)
        if held is not None and held[0] == os.getpid():
            held[1].close()
        self._local.held = None
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    @property
    def _connection(self) -> sqlite3.Connection:
        """This thread's connection: SQLite's must not cross a fork or be used by two threads at once."""
        held = getattr(self._local, "held", None)
        if held is None or held[0] != os.getpid():
            held = (os.getpid(), self._connect())
            self._local.held = held
        return held[1]

    def _connect(self) -> sqlite3.Connection:
        try:
            return _opened(self.path)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _READ_ONLY:
                raise
        # SQLite reads a WAL through files that it makes beside it. Where none can be made, a copy is read.
        if self._copy is None:
            self._copy = tempfile.TemporaryDirectory(prefix="twinloop-state-")
            for suffix in ("", "-wal"):
                source = self.path.with_name(self.path.name + suffix)
                if source.is_file():
                    shutil.copy(source, Path(self._copy.name) / source.name)
        connection = _opened(Path(self._copy.name) / self.path.name)
        connection.execute("PRAGMA query_only = ON")
        return connection

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: sqlite3.Error) -> DatasetError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return DatasetLockedError(
                f"Another process has been writing to {self.path} for more than {BUSY_S:.0f} s. Wait for it to end, "
                "or stop it; then run this again. Nothing was changed."
            )
        if code == sqlite3.SQLITE_FULL:
            return DatasetError(
                f"No space left on the disk while writing {self.path}. What was committed before is unharmed. Free "
                "some space and run this again."
            )
        if code in _CORRUPT:
            return DatasetError(
                f"{self.path} is damaged ({error}). Put a copy of it back, or let `twinloop fsck --repair` make its "
                "index again from the parts; labels and frozen datasets then come back as far as they can be read."
            )
        if code in _READ_ONLY or "readonly" in str(error):
            return DatasetError(
                f"{self.path} cannot be written ({error}). Make the workspace writable, or work in a copy of it; "
                "queries go on working."
            )
        return DatasetError(f"{self.path}: {error}. Run `twinloop fsck` to see whether the catalog is whole.")


def now() -> str:
    """This moment, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")  # a commit in WAL is then on the disk when it returns
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
