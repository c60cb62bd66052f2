"""Queries over the catalog as it is now: what has been read stays in memory until something changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twinloop.catalog.engine import Engine
from twinloop.catalog.frozen import LISTS, lists
from twinloop.catalog.parts import Parts
from twinloop.catalog.schema import EPISODES
from twinloop.catalog.state_schema import STATE_TABLES
from twinloop.catalog.views import DERIVED, PART_VIEWS, named


class Queries:
    """The catalog to SQL."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._held: dict[str, pa.Table] = {}

    def run(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> pa.Table:
        """One statement; see `Workspace.query`."""
        wanted = named(sql)
        tables: dict[str, pa.Table] = {}
        if wanted & {"episodes", "places"}:
            places, episodes = self._episodes()
            tables |= {"places": places, "episodes": episodes}
        if LISTS in wanted:
            tables[LISTS] = lists(self._parts.folder.parent, self._parts.state)
        tables |= {name: self._parts.state.arrow(name) for name in STATE_TABLES if name in wanted}
        files = {
            view: [self._parts.path(table, part.part) for part in self._parts.listed(table)]
            for view, table in PART_VIEWS.items()
            if view in wanted
        }
        engine = Engine(tables=tables, files=files, views={name: DERIVED[name] for name in DERIVED if name in wanted})
        try:
            return engine.query(sql, parameters)
        finally:
            engine.close()

    def _episodes(self) -> tuple[pa.Table, pa.Table]:
        """Every copy, and each episode once: its first copy, unless it is buried."""
        listed = self._parts.listed(EPISODES.name)
        for part in listed:
            if part.part not in self._held:
                self._held[part.part] = pq.read_table(
                    self._parts.path(EPISODES.name, part.part), schema=EPISODES.schema
                )
        tables = [self._held[part.part] for part in listed]
        places = pa.concat_tables(tables).combine_chunks() if tables else EPISODES.schema.empty_table()
        buried = pa.array([row["episode_id"] for row in self._parts.state.rows("SELECT episode_id FROM tombstones")])
        keep = _first(places["episode_id"])
        if len(buried):
            keep &= ~pc.is_in(places["episode_id"], value_set=buried).to_numpy(zero_copy_only=False)
        return places, places if keep.all() else places.filter(pa.array(keep))


def _first(names: pa.ChunkedArray) -> np.ndarray:
    """Where a value comes for the first time."""
    if not len(names):
        return np.zeros(0, dtype=bool)
    codes = names.combine_chunks().dictionary_encode().indices.to_numpy()
    return np.diff(np.maximum.accumulate(codes), prepend=-1) > 0
