"""Detect changes of ``state.sqlite`` that were not made by a commit of twinloop.

Two means are used: a file next to ``state.sqlite`` with the number of commits, and one digest (hash) per table.

SQLite silently drops the end of its write-ahead log if a byte of the log is damaged, and with it the commits in that
part. The first line of the file, written after each commit, is the number of commits, so that `fsck` can detect lost
commits. The second line is the SHA-256 of ``state.sqlite`` after a commit. It is written when a process closes
``state.sqlite``, and covers also bytes that SQLite does not use. It is ignored if it belongs to an earlier commit.

The digest of a table is the exclusive or of a 64-bit BLAKE2b hash of each row. A transaction therefore updates the
digest from its changed rows only, for a table of any size. Temporary triggers report these rows. The triggers belong to
one connection, so other programs can still write to the file without them; `fsck` then names the table that the other
program changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from twinloop.core.files import sha256_bytes, sha256_file

_COUNT, _CHECK = 20, 42  # characters of a number, and of a line's checksum
_FIRST = _COUNT + 1 + _CHECK + 1  # bytes of the first line


def count_file(state: Path) -> Path:
    """Return the path of ``state.sqlite.commits``, given the path of ``state.sqlite``.

    The file records the number of commits, by which `fsck` detects that ``state.sqlite`` has lost commits.
    """
    return state.with_name(f"{state.name}.commits")


def write_count(state: Path, count: int) -> None:
    """Write the number of the newest commit to the file `count_file`; do nothing if the folder cannot be written."""
    _write_line(state, _format_line(f"{count:0{_COUNT}d}"), 0)


def write_hash(state: Path, count: int) -> None:
    """Write ``count`` and the SHA-256 of ``state.sqlite`` to the file `count_file`; do nothing if that is impossible.

    Args:
        state: path of ``state.sqlite``.
        count: number of the newest commit.
    """
    with contextlib.suppress(OSError):
        _write_line(state, _format_line(f"{count:0{_COUNT}d} {sha256_file(state)}"), _FIRST)


def read_count(state: Path) -> int | None:
    """Return the number of commits that the file `count_file` records; None if this file is missing or damaged.

    Args:
        state: path of ``state.sqlite``.
    """
    lines = _read_lines(state)
    return int(lines[0]) if lines else None


def read_hash(state: Path, count: int) -> str | None:
    """Return the SHA-256 of ``state.sqlite`` after commit ``count``, or None if it was not recorded.

    Args:
        state: path of ``state.sqlite``.
        count: number of the commit.
    """
    lines = _read_lines(state)
    number, _, digest = (lines[1] if len(lines) > 1 else "").partition(" ")
    return digest if digest and int(number) == count else None


def _write_line(state: Path, line: bytes, at: int) -> None:
    with contextlib.suppress(OSError):
        # In place and in one call: a process that is killed leaves the old line or the new one.
        handle = os.open(count_file(state), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            if not _read_lines(state):
                os.ftruncate(handle, 0)  # the present content is damaged
            os.pwrite(handle, line, at)
        finally:
            os.close(handle)


def _format_line(text: str) -> bytes:
    return f"{text} {sha256_bytes(text.encode())[:_CHECK]}\n".encode()


def _read_lines(state: Path) -> list[str]:
    """Return the lines of ``state.sqlite.commits`` (see `count_file`), excluding their checksums.

    The first line is the number of commits. The second line, if present, is a number of commits and the SHA-256 of
    ``state.sqlite`` after these commits. The list is empty if the file is missing or a checksum is wrong.
    """
    file = count_file(state)
    try:
        data = file.read_bytes() if file.is_file() else b""
        texts = [line.rpartition(" ")[0] for line in data.decode("ascii").splitlines()]
    except (OSError, UnicodeDecodeError):
        return []
    return texts if data == b"".join(_format_line(text) for text in texts) else []


TABLE = "row_digests"
_SCHEMA = "sqlite_master"  # the statements that created the tables have a digest too
_EVENTS = {"INSERT": ("NEW",), "DELETE": ("OLD",), "UPDATE": ("OLD", "NEW")}


class RowDigests:
    """Changes of the table digests by one SQLite connection, collected until its transaction stores them.

    The digest of a table is the exclusive or of a hash of each row.

    Create it outside of a transaction: a rollback would remove the temporary triggers that report changed rows.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._changes: dict[str, int] = {}
        connection.create_function("note_row", -1, self._record_row)
        connection.execute("PRAGMA recursive_triggers = ON")  # otherwise rows that INSERT OR REPLACE removes are missed
        triggers = [
            _format_trigger(connection, table, *event)
            for table in _list_tables(connection)
            for event in _EVENTS.items()
        ]
        connection.executescript("\n".join(triggers))

    def discard_changes(self) -> None:
        """Discard the collected changes, after their transaction was rolled back."""
        self._changes.clear()

    def store(self) -> None:
        """Add the collected changes to the stored digests; must be called before the transaction is committed."""
        toggle = f"UPDATE {TABLE} SET digest = (digest | ?) - (digest & ?) WHERE name = ?"  # noqa: S608 - exclusive or
        self._connection.executemany(toggle, [(change, change, table) for table, change in self._changes.items()])
        self._changes.clear()

    def _record_row(self, table: str, *row: Any) -> None:
        self._changes[table] = self._changes.get(table, 0) ^ _hash_row(row)


def compute_digests(connection: sqlite3.Connection) -> dict[str, int]:
    """Compute the digest of each table from its present rows, by name of the table.

    A digest is the exclusive or of a 64-bit BLAKE2b hash of each row, so it does not depend on the order of the rows.
    The digest ``sqlite_master`` covers the statements that created the tables.
    """
    before = connection.text_factory
    connection.text_factory = _decode_text
    try:
        rows = {name: f'SELECT * FROM "{name}"' for name in _list_tables(connection)}  # noqa: S608
        found = {name: _combine_hashes(connection.execute(query)) for name, query in rows.items()}
        found[_SCHEMA] = _combine_hashes(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))
    finally:
        connection.text_factory = before
    return found


def read_digests(connection: sqlite3.Connection) -> dict[str, int] | None:
    """Return the stored digest of each table; None for a file of an earlier version that stores none."""
    if TABLE not in _list_tables(connection, include_digests=True):
        return None
    return dict(connection.execute(f"SELECT name, digest FROM {TABLE}").fetchall())  # noqa: S608


def write_digests(connection: sqlite3.Connection, digests: dict[str, int]) -> None:
    """Replace the stored digests of all tables."""
    connection.execute(f"DELETE FROM {TABLE}")  # noqa: S608
    connection.executemany(f"INSERT INTO {TABLE} VALUES (?, ?)", list(digests.items()))  # noqa: S608


def find_changed_tables(connection: sqlite3.Connection) -> list[str]:
    """Return the tables whose rows differ from the committed rows; an empty list for a file without stored digests."""
    stored = read_digests(connection)
    if stored is None:
        return []
    measured = compute_digests(connection)
    return sorted(name for name in stored.keys() | measured.keys() if stored.get(name) != measured.get(name))


def _list_tables(connection: sqlite3.Connection, *, include_digests: bool = False) -> list[str]:
    """Return the sorted names of the tables; if ``include_digests`` is true, including the table of digests."""
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    return [row[0] for row in rows if not row[0].startswith("sqlite_") and (include_digests or row[0] != TABLE)]


def _format_trigger(connection: sqlite3.Connection, table: str, event: str, rows: Iterable[str]) -> str:
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    values = [", ".join(f'{row}."{column}"' for column in columns) for row in rows]
    calls = [f"note_row('{table}', {row})" for row in values]
    return (
        f"CREATE TEMP TRIGGER digest_{table}_{event.lower()} AFTER {event} ON main.{table} "
        f"BEGIN SELECT {', '.join(calls)}; END;"
    )


def _combine_hashes(rows: Iterable[tuple[Any, ...]]) -> int:
    digest = 0
    for row in rows:
        digest ^= _hash_row(row)
    return digest


def _hash_row(row: tuple[Any, ...]) -> int:
    # `ascii` and not `repr`, which writes new characters of Unicode differently in each version of Python.
    made = hashlib.blake2b(ascii(row).encode(), digest_size=8).digest()
    return int.from_bytes(made, "little", signed=True)


def _decode_text(raw: bytes) -> str:
    """Decode bytes as UTF-8; other bytes become surrogates, so that different bytes give different texts."""
    return raw.decode("utf-8", "surrogateescape")
