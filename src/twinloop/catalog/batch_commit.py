"""The commit of a batch: rows of its episodes and parameters as parts, its record, and where each episode lies."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twinloop.catalog.episode_rows import Rows
from twinloop.catalog.parts import Draft, Part, Parts, about_of, enlist
from twinloop.catalog.schema import EPISODES, PARAMS
from twinloop.catalog.seals import Seal, of_block
from twinloop.catalog.state import State


class ChangedMeanwhileError(Exception):
    """Another process brought the same batch up to date first."""


@dataclass(frozen=True, kw_only=True)
class BatchCommit:
    """What is to be committed of a batch at once.

    ``record`` is its row of ``batches``; ``rows`` and ``seals`` are what came to it, or all of it where it was
    ``rewritten``.
    """

    record: Mapping[str, Any]
    rows: Rows
    seals: Sequence[Seal] = ()
    rewritten: bool = False

    @property
    def batch(self) -> str:
        """The batch's name."""
        return self.record["batch"]

    def make(self, parts: Parts, *, run_id: str | None) -> tuple[list[Part], int]:
        """Do it; the parts, and how many episodes lay nowhere before.

        Raises:
            ChangedMeanwhileError: the batch has another revision than the one before ``record``'s.
            DatasetError: the disk is full; nothing has changed.
        """
        params = undrawn(parts.state, self.rows.params)
        revision = self.record["revision"]
        replaced, others = self._replaced(parts) if self.rewritten else ([], [])
        about = {"batch_record": dict(self.record), "replaces": [part.part for part in replaced]}
        drafts = [
            Draft(table=table, rows=rows, batch=self.batch, revision=revision, about=about)
            for table, rows in ((EPISODES.name, self.rows.episodes), (PARAMS.name, params))
            if len(rows) or table == EPISODES.name
        ]
        with parts.written([*drafts, *others], run_id=run_id) as written, parts.state.transaction() as connection:
            self._require_revision(connection, revision - 1)
            enlist(connection, written, instead_of=replaced)
            if self.rewritten:
                connection.execute("DELETE FROM places WHERE batch = ?", (self.batch,))
                connection.execute("DELETE FROM seals WHERE batch = ?", (self.batch,))
            new = place(connection, self.batch, self.rows.episodes)
            draw(connection, params)
            write_seals(connection, self.batch, self.seals)
            write_record(connection, self.record)
        return written, new

    def _replaced(self, parts: Parts) -> tuple[list[Part], list[Draft]]:
        """The parts that tell of the batch as it was, and what they tell of other batches."""
        replaced, others = list[Part](), list[Draft]()
        for part in parts.listed(EPISODES.name):
            if part.batch == self.batch:
                replaced.append(part)
            elif part.batch is None:  # several batches were joined into it
                path = parts.path(EPISODES.name, part.part)
                rows = pq.read_table(path)
                rest = rows.filter(pc.not_equal(rows["batch"], self.batch))
                if len(rest) < len(rows):
                    replaced.append(part)
                    about = {name: value for name, value in about_of(path).items() if name == "batch_records"}
                    others.append(Draft(table=EPISODES.name, rows=rest, position=part.position, about=about))
        return replaced, others

    def _require_revision(self, connection: sqlite3.Connection, revision: int) -> None:
        found = connection.execute("SELECT revision FROM batches WHERE batch = ?", (self.batch,)).fetchone()
        if (found[0] if found else 0) != revision:
            raise ChangedMeanwhileError


def undrawn(state: State, params: pa.Table) -> pa.Table:
    """Rows of parameters that nobody has written yet, by name: an episode's own name says what was drawn for it."""
    ids = list(dict.fromkeys(params["episode_id"].to_pylist()))
    with state.snapshot() as connection:
        known = {name for name in ids if _has(connection, "drawn", key_of(name))}
    if known:
        mask = pa.array([name not in known for name in params["episode_id"].to_pylist()], pa.bool_())
        params = params.filter(mask)
    return params.sort_by("name")


def place(connection: sqlite3.Connection, batch: str, episodes: pa.Table) -> int:
    """Write down where episodes lie; how many of them lay nowhere before."""
    keys = [key_of(name) for name in episodes["episode_id"].to_pylist()]
    new = sum(not _has(connection, "places", key) for key in dict.fromkeys(keys))
    rows = zip(keys, [batch] * len(keys), episodes["episode_index"].to_pylist(), strict=True)
    connection.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?)", rows)
    return new


def draw(connection: sqlite3.Connection, params: pa.Table) -> None:
    """Write down whose parameters are known."""
    names = dict.fromkeys(params["episode_id"].to_pylist())
    connection.executemany("INSERT OR IGNORE INTO drawn VALUES (?)", [(key_of(name),) for name in names])


def write_seals(connection: sqlite3.Connection, batch: str, seals: Iterable[Seal]) -> None:
    """Write down what files of a batch are.

    Files that belong to no block are given all together, or not at all: those that are gone are forgotten.
    """
    seals = list(seals)
    if any(not of_block(seal.path) for seal in seals):
        held = connection.execute("SELECT path FROM seals WHERE batch = ?", (batch,)).fetchall()
        gone = [(batch, path) for (path,) in held if not of_block(path)]
        connection.executemany("DELETE FROM seals WHERE batch = ? AND path = ?", gone)
    rows = [(batch, seal.path, seal.bytes, seal.sha256, int(seal.whole)) for seal in seals]
    connection.executemany("INSERT OR REPLACE INTO seals VALUES (?, ?, ?, ?, ?)", rows)


def write_record(connection: sqlite3.Connection, record: Mapping[str, Any]) -> None:
    """Write a batch's row."""
    names, marks = ", ".join(record), ", ".join("?" * len(record))
    sql = f"INSERT OR REPLACE INTO batches ({names}) VALUES ({marks})"  # noqa: S608 - names of our own
    connection.execute(sql, list(record.values()))


def key_of(name: str) -> bytes:
    """An episode's name as the index ``places`` holds it: a SHA-256 as its 32 bytes, any other as text."""
    try:
        return bytes.fromhex(name) if len(name) == 64 else name.encode()
    except ValueError:
        return name.encode()


def _has(connection: sqlite3.Connection, table: str, key: bytes) -> bool:
    sql = f"SELECT 1 FROM {table} WHERE episode_id = ? LIMIT 1"  # noqa: S608 - one of two names of our own
    return connection.execute(sql, (key,)).fetchone() is not None
