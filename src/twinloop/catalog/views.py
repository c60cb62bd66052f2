"""What SQL sees: views over the parts, over the tables of the state, and over the frames of the datasets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from twinloop.catalog.fault_views import FAULT_VIEWS
from twinloop.catalog.frozen import LISTS
from twinloop.catalog.said_views import DATASET_VIEWS, LABEL_VIEWS, LINEAGE_VIEWS
from twinloop.catalog.schema import EPISODES, TABLES
from twinloop.catalog.state_schema import STATE_TABLES

# What each check said of an episode in its newest run, so that what it no longer names is no longer wrong: names of
# runs sort by time.
_SCORES = """
    SELECT * EXCLUDE (newest) FROM (
        SELECT *, max(run_id) OVER (PARTITION BY episode_id, "check") AS newest FROM score_history
    ) WHERE run_id = newest
"""

# Views that are made of others, as SQL, each after those it is made of.
DERIVED: Mapping[str, str] = {"scores": _SCORES, **DATASET_VIEWS, **LINEAGE_VIEWS, **LABEL_VIEWS, **FAULT_VIEWS}

# Names under which the parts of a table are shown as they are.
PART_VIEWS = {"score_history" if name == "scores" else name: name for name in TABLES if name != EPISODES.name}
MADE = ("episodes", "places", LISTS)  # put together by the catalog
FRAME_VIEWS = ("frames", "contacts")
NAMES = tuple(sorted({*MADE, *PART_VIEWS, *STATE_TABLES, *DERIVED, *FRAME_VIEWS}))

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def named(sql: str) -> set[str]:
    """The views that a statement can mean, and all that they are made of; perhaps more than it uses."""
    return _with_needs(_words(sql))


def _with_needs(names: Iterable[str]) -> set[str]:
    names = set(names)
    more = names.union(*(_words(DERIVED[name]) for name in names if name in DERIVED))
    return names if more == names else _with_needs(more)


def _words(sql: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(sql)}.intersection(NAMES)
