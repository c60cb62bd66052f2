"""Whether ``state.sqlite`` is what the catalog committed: its pages, its newest commit, and every row."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

from twinloop.catalog.fsck import Finding
from twinloop.catalog.state import NewerStateError, State, UnreachableStateError
from twinloop.catalog.state_digests import changed_tables, count_file, read_count, read_hash
from twinloop.core.errors import DatasetError
from twinloop.core.files import sha256_file

# The fields of SQLite's header that never change in our files (sqlite.org/fileformat.html): offset, format, value.
_HEADER = ((0, "16s", (b"SQLite format 3\0",)), (18, "6B", (2, 2, 0, 64, 32, 32)), (44, ">3I", (4, 0, 0)),
           (56, ">I", (1,)), (64, ">2I20s", (0, 0, bytes(20))))  # fmt: skip


def check_state(path: Path) -> list[Finding]:
    """Return what keeps SQLite from reading its file, all pages and all commits of it.

    Raises:
        NewerStateError: it is of a newer version. Nothing of it may be judged or made again.
        UnreachableStateError: the disk is full or refuses otherwise, which says nothing about the file.
    """
    try:
        state = State(path)
        try:
            answer = [row["integrity_check"] for row in state.rows("PRAGMA integrity_check(5)")]
            lost = _lost_commits(state)
        finally:
            state.close()
    except (NewerStateError, UnreachableStateError):
        raise
    except DatasetError as error:
        return [_damaged(path, str(error))]
    if answer != ["ok"]:
        return [_damaged(path, f"{path} is damaged: {'; '.join(answer)}.")]
    if not _has_our_header(path):
        return [_damaged(path, f"{path} is damaged: its header is not one that we write.")]
    if lost > 0:
        what = f"{path} lacks its last {lost} commits: it is an older copy, or its write-ahead log was damaged."
        return [_damaged(path, what)]
    return []


def check_rows(state: State) -> Iterator[Finding]:
    """Find tables whose rows something else than a commit has changed, and the file that counts the commits."""
    with state.snapshot() as connection:
        changed = _changed(connection)
    for table in changed:
        yield Finding(
            kind="rows",
            where=f"{state.path.name}: {table}",
            what=f"{state.path}: rows of {table} are not those that were committed.",
            remedy=f"Put a copy of {state.path.name} back. --repair keeps the rows as they are, and the old file.",
            repair="rebuild",
        )
    digest = read_hash(state.path, state.counter("state"))
    if not changed and digest not in (None, sha256_file(state.path)):
        yield Finding(
            kind="bytes",
            where=state.path.name,
            what=f"{state.path} has other bytes than after its last commit. All of its rows are whole.",
            remedy="Nothing is lost: SQLite makes no use of these bytes. --repair notes them as they are.",
            repair="count",
        )
    name = count_file(state.path)
    if state.row("SELECT 1 FROM sqlite_master WHERE name = 'row_digests'") and read_count(state.path) is None:
        yield Finding(
            kind="count",
            where=name.name,
            what=f"{name} is missing or damaged. It holds the number of the newest commit.",
            remedy="Nothing is lost: --repair and the next commit write it again.",
            repair="count",
        )


def _changed(connection: sqlite3.Connection) -> list[str]:
    try:
        return changed_tables(connection)
    except (sqlite3.Error, OverflowError):
        return ["its tables"]


def _lost_commits(state: State) -> int:
    """Return how many commits were counted that the file does not have."""
    noted = read_count(state.path)
    return 0 if noted is None else noted - state.counter("state")


def _has_our_header(path: Path) -> bool:
    with path.open("rb") as file:
        header = file.read(100)
    return len(header) == 100 and all(struct.unpack_from(form, header, at) == value for at, form, value in _HEADER)


def _damaged(path: Path, what: str) -> Finding:
    return Finding(
        kind="state",
        where=path.name,
        what=what,
        remedy=f"Put a copy of {path.name} back, or make it again from the parts: `twinloop fsck --repair`.",
        repair="rebuild",
    )
