"""What SQL sees: views over the parts, over the tables of the state, and over the frames of the datasets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from twinloop.catalog.fault_views import FAULT_VIEWS
from twinloop.catalog.frozen import LISTS
from twinloop.catalog.said_views import DATASET_VIEWS, LABEL_VIEWS, LINEAGE_VIEWS
from twinloop.catalog.schema import EPISODES, TABLES
from twinloop.catalog.state_schema import STATE_TABLES

# Views of the rows from the run that was committed last, for each value of some columns: the table, and the columns.
# What a check no longer finds in an episode is then no longer wrong with it.
LATEST: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "scores": ("scores", ("episode_id", "check")),
    "latest_evaluations": ("evaluations", ("policy", "suite")),
}

# Views that are made of others, as SQL, each after those it is made of.
DERIVED: Mapping[str, str] = {**DATASET_VIEWS, **LINEAGE_VIEWS, **LABEL_VIEWS, **FAULT_VIEWS}

# Names under which the parts of a table are shown as they are.
PART_VIEWS = {"score_history" if name == "scores" else name: name for name in TABLES if name != EPISODES.name}
MADE = ("episodes", "places", LISTS)  # put together by the catalog
FRAME_VIEWS = ("frames", "contacts")
NAMES = tuple(sorted({*MADE, *PART_VIEWS, *LATEST, *STATE_TABLES, *DERIVED, *FRAME_VIEWS}))

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def latest_sql(source: str, key: Iterable[str]) -> str:
    """Return the SQL of the rows from the run that was committed last, for each value of the columns ``key``.

    ``source`` reads a table's parts in the order of their commits. The order of rows decides, and not the runs' names,
    which hold the time of a clock that may have been wrong.
    """
    columns = ", ".join(f'"{name}"' for name in key)
    return f"""
        SELECT * EXCLUDE (latest) FROM (
            SELECT *, arg_max(run_id, (file_index::BIGINT << 40) + file_row_number) OVER (PARTITION BY {columns})
                AS latest FROM {source}
        ) WHERE run_id = latest"""  # noqa: S608 - names of our own


def named(sql: str) -> set[str]:
    """The views that a statement can mean, and all that they are made of; perhaps more than it uses."""
    return _with_needs(_words(sql))


def _with_needs(names: Iterable[str]) -> set[str]:
    names = set(names)
    more = names.union(*(_words(DERIVED[name]) for name in names if name in DERIVED))
    return names if more == names else _with_needs(more)


def _words(sql: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(sql)}.intersection(NAMES)
