"""Whether parts are in the order of their commits, and whether records of runs hold credentials; and the repair."""

from __future__ import annotations

from collections.abc import Iterator

from twinloop.catalog.fsck import Finding
from twinloop.catalog.parts import Parts
from twinloop.catalog.querying import without_secrets
from twinloop.catalog.schema import EVALUATIONS, SCORES
from twinloop.catalog.state import State
from twinloop.catalog.ulid import ulid

_ORDERED = (SCORES.name, EVALUATIONS.name)  # tables of which the rows that were committed last are shown


def check_order(parts: Parts) -> Iterator[Finding]:
    """Find parts that come before parts committed earlier: older versions took the order from the writers' clocks."""
    for table in _ORDERED:
        misplaced = _misplaced(parts.state, table)
        if misplaced:
            yield Finding(
                kind="order",
                where=f"catalog/{table}",
                what=f"{len(misplaced)} parts of {table} come before parts that were committed earlier: a clock was "
                "ahead when those were written.",
                remedy="--repair puts them into the order of their commits.",
                repair="reorder",
            )


def put_in_order(parts: Parts) -> str:
    """Put the parts that `check_order` finds after those committed before them; return what was done."""
    moved = 0
    with parts.state.transaction() as connection:
        for table in _ORDERED:
            last = connection.execute("SELECT max(position) FROM parts WHERE table_name = ?", (table,)).fetchone()[0]
            for part in _misplaced(parts.state, table):
                last, moved = ulid(after=last), moved + 1
                connection.execute("UPDATE parts SET position = ? WHERE part = ?", (last, part))
        connection.execute("UPDATE counters SET value = value + 1 WHERE name = 'parts'")
    return f"{moved} parts were put into the order of their commits."


def check_secrets(state: State) -> Iterator[Finding]:
    """Find runs whose recorded arguments or figures hold credentials: versions before redaction kept them."""
    found = [row["run_id"] for row in state.rows("SELECT * FROM runs ORDER BY rowid") if without_secrets(row) != row]
    if found:
        yield Finding(
            kind="secret",
            where="runs of state.sqlite",
            what=f"{len(found)} runs hold credentials in their arguments or figures, the first {found[0]}.",
            remedy="--repair removes them from the records. Change those credentials: copies may hold them.",
            repair="redact",
        )


def remove_secrets(state: State) -> str:
    """Remove credentials from the records of runs, and their bytes from the file; return what was done."""
    changed = 0
    with state.transaction() as connection:
        for row in state.rows("SELECT * FROM runs"):
            clean = without_secrets(row)
            if clean != row:
                changed += 1
                connection.execute(
                    "UPDATE runs SET folder = :folder, arguments = :arguments, result = :result WHERE run_id = :run_id",
                    clean,
                )
    state.shrink()  # pages that SQLite no longer uses still hold the old bytes
    return f"{changed} records of runs were cleaned. Change those credentials."


def _misplaced(state: State, table: str) -> list[str]:
    """Return the parts, in the order of their commits, that come before one committed earlier.

    SQLite numbers rows in the order of the commits. A part that replaced others has their position and does not count.
    """
    found, last = list[str](), ""
    for row in state.rows("SELECT part, position FROM parts WHERE table_name = ? ORDER BY rowid", (table,)):
        if row["part"] != f"part-{row['position']}.parquet":
            continue
        if row["position"] < last:
            found.append(row["part"])
        last = max(last, row["position"])
    return found
