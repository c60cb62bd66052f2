"""Many small parts become few: the rows stay, in their order, and no reader notices."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.catalog.parts import Draft, Part, Parts, about_of, enlist
from twinloop.catalog.schema import EPISODES, TABLES

SMALL = 1 << 16  # rows: a part with fewer is joined with its neighbours
LARGE = 1 << 20  # rows: a joined part has no more
GRACE_S = 3600.0  # how long a part that was replaced stays for readers that began before


def compact(parts: Parts, *, least: int = 8) -> dict[str, int]:
    """Join neighbouring small parts of every table, ``least`` or more at a time; how many went into others, by table.

    The new part counts from the transaction that strikes out those it replaces; their files stay an hour for readers
    that have begun. Nobody else writes meanwhile.

    Raises:
        DatasetError: a part is damaged, or the disk is full; nothing has changed.
    """
    joined: dict[str, int] = {}
    for table in TABLES:
        for group in _groups(parts.listed(table)):
            if len(group) >= least:
                _join(parts, table, group)
                joined[table] = joined.get(table, 0) + len(group)
    remove_retired(parts)
    return joined


def remove_retired(parts: Parts, *, grace_s: float = GRACE_S) -> int:
    """Remove the files of parts that were replaced long enough ago; how many."""
    moment = time.time()
    rows = parts.state.rows("SELECT path FROM retired WHERE at < ?", (moment - grace_s,))
    for row in rows:
        (parts.folder / row["path"]).unlink(missing_ok=True)
    with parts.state.transaction() as connection:
        connection.executemany("DELETE FROM retired WHERE path = ?", [(row["path"],) for row in rows])
        # A moment that has not come yet is of a clock that was ahead: the time to wait begins now.
        connection.execute("UPDATE retired SET at = ? WHERE at > ?", (moment, moment))
    return len(rows)


def _groups(listed: list[Part]) -> Iterator[list[Part]]:
    """Runs of small parts, no run with more rows than a large one has."""
    group, rows = list[Part](), 0
    for part in listed:
        if part.rows >= SMALL or rows + part.rows > LARGE:
            yield group
            group, rows = [], 0
        if part.rows < SMALL:
            group.append(part)
            rows += part.rows
    yield group


def _join(parts: Parts, table: str, group: list[Part]) -> None:
    paths = [parts.path(table, part.part) for part in group]
    rows = pa.concat_tables([pq.read_table(path).replace_schema_metadata() for path in paths])
    about: dict[str, object] = {"replaces": [part.part for part in group]}
    if table == EPISODES.name:
        about["batch_records"] = _records([about_of(path) for path in paths])
    batches = {part.batch for part in group}
    same = next(iter(batches)) if len(batches) == 1 else None
    draft = Draft(
        table=table,
        rows=rows.sort_by("name") if table == "params" else rows,
        batch=same,
        revision=group[-1].revision if same is not None else None,
        position=group[0].position,
        about=about,
    )
    with parts.written([draft], run_id=None) as written, parts.state.transaction() as connection:
        enlist(connection, written, instead_of=group)


def _records(abouts: list[dict[str, object]]) -> list[object]:
    """The records of all batches that the parts tell of."""
    found: list[object] = []
    for about in abouts:
        if about.get("batch_record"):
            found.append(about["batch_record"])
        more = about.get("batch_records")
        found += more if isinstance(more, list) else []
    return found
