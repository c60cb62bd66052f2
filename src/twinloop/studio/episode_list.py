"""List episodes by filters: as SQL that a person can read and change, page by page."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from twinloop.catalog.engine import quote_literal
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.studio.data import StudioData
from twinloop.workflows.data.query import write_table

MOST_PER_PAGE = 200
# The outcome by people, rules and models if they gave one, else by the success condition of the task.
LABELLED = "(SELECT episode_id, value FROM consensus WHERE kind = 'success') l"
OUTCOME = "coalesce(l.value, CASE e.success WHEN true THEN 'yes' WHEN false THEN 'no' END, 'unknown')"
_FINDINGS = (
    "(SELECT episode_id, count(*) AS findings FROM scores WHERE verdict IN ('bad', 'suspect') GROUP BY episode_id) f"
)
_ORDERS = {
    "place": "e.batch, e.episode_index",
    "longest": "e.duration_s DESC, e.batch, e.episode_index",
    "shortest": "e.duration_s, e.batch, e.episode_index",
    "suspect": "coalesce(f.findings, 0) DESC, e.batch, e.episode_index",
}
_COLUMNS = {
    "source": "source",
    "batch": "batch",
    "task": "task",
    "robot": "robot_type",
    "twin": "twin",
    "actor": "actor",
}
_LABELS = {"tag": "tag", "failure": "failure"}
FILTERS = (*_COLUMNS, *_LABELS, "outcome", "verdict", "parameter", "excluded", "order")


def build_sql(filters: Mapping[str, str]) -> str:
    """Return the SQL statement that selects the ids of the episodes that meet all filters, in order.

    Args:
        filters: values by name of the filter, of `FILTERS`. ``parameter`` is ``NAME:LOW:HIGH`` in SI, and ``excluded``
            lists the excluded episodes only.

    Raises:
        UnknownNameError: If there is no such filter or order.
        InputError: If a range is no pair of numbers.
    """
    unknown = [name for name in filters if name not in FILTERS]
    if unknown:
        raise UnknownNameError("filter", unknown[0], FILTERS, where="the list of episodes")
    conditions = [f"e.{_COLUMNS[name]} = {quote_literal(value)}" for name, value in filters.items() if name in _COLUMNS]
    for name, kind in _LABELS.items():
        if name in filters:
            chosen = f"kind = '{kind}' AND value = {quote_literal(filters[name])}"
            conditions.append(f"e.episode_id IN (SELECT episode_id FROM labels WHERE {chosen})")  # noqa: S608 - quoted
    if "verdict" in filters:
        chosen = f"verdict = {quote_literal(filters['verdict'])}"
        conditions.append(f"e.episode_id IN (SELECT episode_id FROM scores WHERE {chosen})")  # noqa: S608 - quoted
    if "parameter" in filters:
        conditions.append(_format_range(filters["parameter"]))
    joined = f"\nLEFT JOIN {_FINDINGS} USING (episode_id)" if filters.get("order") == "suspect" else ""
    if "outcome" in filters:
        joined += f"\nLEFT JOIN {LABELLED} USING (episode_id)"
        conditions.append(f"{OUTCOME} = {quote_literal(filters['outcome'])}")
    order = filters.get("order", "place")
    if order not in _ORDERS:
        raise UnknownNameError("order", order, _ORDERS, where="the list of episodes")
    source = "episodes e"
    if "excluded" in filters:
        source = "places e SEMI JOIN tombstones USING (episode_id)"
    where = f"\nWHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT e.episode_id FROM {source}{joined}{where}\nORDER BY {_ORDERS[order]}"  # noqa: S608 - quoted


def _format_range(text: str) -> str:
    name, *bounds = text.rsplit(":", 2)
    try:
        low, high = (float(bound) for bound in bounds)
    except ValueError:
        raise InputError(f"The range {text} is not NAME:LOW:HIGH, such as object/mass:0.02:0.05.") from None
    chosen = f"name = {quote_literal(name)} AND value BETWEEN {low!r} AND {high!r}"
    return f"e.episode_id IN (SELECT episode_id FROM params WHERE {chosen})"  # noqa: S608 - quoted


def list_episodes(data: StudioData, sql: str, *, offset: int, limit: int) -> dict[str, Any]:
    """Return one page of the episodes that a statement selects, with what the list shows of each.

    Args:
        data: the workspace.
        sql: statement whose rows have a column ``episode_id``.
        offset: number of episodes before the page.
        limit: largest number of episodes on the page.

    Raises:
        TwinloopError: If the statement is wrong; see `Workspace.query`.
    """
    return _list_page(data, sql, offset, max(1, min(limit, MOST_PER_PAGE)), data.moment)


@functools.lru_cache(maxsize=64)
def _list_page(data: StudioData, sql: str, offset: int, limit: int, moment: tuple[int, int]) -> dict[str, Any]:
    chosen = _select_ids(data, sql, moment)
    ids = [str(name) for name in chosen.slice(offset, limit).to_pylist()]
    return {"sql": sql, "total": len(chosen), "offset": offset, "rows": describe_episodes(data, ids)}


@functools.lru_cache(maxsize=4)
def _select_ids(data: StudioData, sql: str, _moment: tuple[int, int]) -> pa.ChunkedArray:
    """Return the ids that a statement selects; they are kept for the next pages, until the next commit."""
    answer = data.table(sql)
    if "episode_id" not in answer.column_names:
        raise InputError("The statement gives no column episode_id, such as SELECT episode_id FROM episodes.")
    return answer.column("episode_id")


# The ids stand in the statement, because DuckDB then skips the other episodes in every view.
_DETAILS = """
    SELECT e.episode_id, e.batch, e.episode_index, e.frames, e.fps, e.duration_s, e.robot_type, e.task, e.source,
        e.twin, e.actor, e.success, e.valid, e.cameras, l.value AS labelled, t.reason AS excluded,
        coalesce(g.tags, []) AS tags, s.bad, s.suspect, s.checks
    FROM (SELECT DISTINCT ON (episode_id) * FROM places WHERE episode_id IN (:ids) ORDER BY batch, episode_index) e
    LEFT JOIN (SELECT episode_id, value FROM consensus WHERE kind = 'success' AND episode_id IN (:ids)) l
        USING (episode_id)
    LEFT JOIN tombstones t USING (episode_id)
    LEFT JOIN (SELECT episode_id, list(value ORDER BY value) AS tags FROM labels
        WHERE kind = 'tag' AND episode_id IN (:ids) GROUP BY episode_id) g USING (episode_id)
    LEFT JOIN (SELECT episode_id, count(*) FILTER (verdict = 'bad') AS bad,
        count(*) FILTER (verdict = 'suspect') AS suspect, count(*) AS checks
        FROM scores WHERE episode_id IN (:ids) GROUP BY episode_id) s USING (episode_id)"""


def describe_episodes(data: StudioData, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the list shows of some episodes, in the given order."""
    if not ids:
        return []
    listed = ", ".join(quote_literal(name) for name in ids)
    found = {row["episode_id"]: row for row in data.rows(_DETAILS.replace(":ids", listed))}
    return [found[name] for name in ids if name in found]


def write_csv(data: StudioData, sql: str) -> bytes:
    """Return the episodes that a statement selects as CSV, with the columns of the view ``places``."""
    chosen = sql.strip().rstrip(";")
    listed = f"SELECT * FROM places SEMI JOIN ({chosen}\n) USING (episode_id) ORDER BY batch, episode_index"  # noqa: S608 - the engine only reads
    written = io.BytesIO()
    write_table(data.table(listed), "csv", written)
    return written.getvalue()


def count_values(data: StudioData) -> dict[str, list[dict[str, Any]]]:
    """Return the values of each filter with the number of episodes, most frequent first."""
    counted = {
        name: data.rows(
            f"SELECT {column} AS value, count(*) AS n FROM episodes WHERE {column} IS NOT NULL "  # noqa: S608 - ours
            "GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 200"
        )
        for name, column in _COLUMNS.items()
    }
    counted["outcome"] = data.rows(
        f"SELECT {OUTCOME} AS value, count(*) AS n FROM episodes e LEFT JOIN {LABELLED} USING (episode_id) "  # noqa: S608 - ours
        "GROUP BY 1 ORDER BY 2 DESC"
    )
    counted["verdict"] = data.rows(
        "SELECT verdict AS value, count(DISTINCT episode_id) AS n FROM scores GROUP BY 1 ORDER BY 2 DESC"
    )
    for name, kind in _LABELS.items():
        counted[name] = data.rows(
            "SELECT value, count(DISTINCT episode_id) AS n FROM labels WHERE kind = ? GROUP BY 1 ORDER BY 2 DESC, 1 "
            "LIMIT 200",
            [kind],
        )
    counted["excluded"] = data.rows("SELECT 'yes' AS value, count(*) AS n FROM tombstones HAVING count(*) > 0")
    counted["parameter"] = data.rows(
        "SELECT name AS value, count(*) AS n, min(value) AS low, max(value) AS high FROM params GROUP BY 1 ORDER BY 1"
    )
    return counted
