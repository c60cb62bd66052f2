"""Queries over the catalog as it is now: what has been read stays in memory until something changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from twinloop.catalog.answers import numbers
from twinloop.catalog.engine import Engine, Parameters
from twinloop.catalog.frames import data_files, view_sql
from twinloop.catalog.frozen import LISTS, lists
from twinloop.catalog.kept import Kept
from twinloop.catalog.limits import Limits
from twinloop.catalog.parts import Part, Parts
from twinloop.catalog.run_records import without_secrets
from twinloop.catalog.schema import EPISODES, SCORES, TABLES
from twinloop.catalog.shown import Cache, newest, once
from twinloop.catalog.state_schema import RUNS, STATE_TABLES
from twinloop.catalog.views import DERIVED, FRAME_VIEWS, LATEST, NAMES, PART_VIEWS, latest_sql, named
from twinloop.core.errors import DatasetError, UnknownNameError

MOST_IN_MEMORY = 4_000_000  # rows of scores that are held, some 150 bytes each; beyond that they are read each time
_HELD = {"episodes", "places"}
_TRIES = 3
_LOGGER = logging.getLogger(__name__)


class Queries:
    """The catalog to SQL.

    Args:
        parts: of the catalog.
        folder_of: the folder of a batch, or an error that says what became of it.
        limits: of each statement.
    """

    def __init__(self, parts: Parts, folder_of: Callable[[str], Path], limits: Limits) -> None:
        self._parts, self._folder_of, self._limits = parts, folder_of, limits
        self._cache = Cache(Kept(parts.folder))
        self._engine: Engine | None = None
        self._at: tuple[int, int] = (-1, -1)

    def run(self, sql: str, parameters: Parameters = (), *, most_rows: int | None = None) -> pa.Table:
        """One statement; see `Workspace.query`."""
        wanted = (named(sql) or set(NAMES)) - {*FRAME_VIEWS}
        tries = 0
        while True:
            try:
                return numbers(self._ready(wanted).query(sql, parameters, most_rows=most_rows))
            except UnknownNameError as error:
                # Frames are also a column of episodes: what names the view is what DuckDB looks for as a table.
                name = error.name.lower()
                if name not in FRAME_VIEWS or name in wanted:
                    raise
                wanted |= {name, "places"}
            except DatasetError:
                # Another process may have joined parts meanwhile and removed the old ones.
                tries += 1
                if tries > _TRIES or self._moment() == self._at:
                    raise

    def close(self) -> None:
        """Let go of what is held."""
        if self._engine is not None:
            self._engine.close()
        self._engine, self._at = None, (-1, -1)

    def _moment(self) -> tuple[int, int]:
        state = self._parts.state
        return state.counter("parts"), state.counter("state")

    def _ready(self, wanted: set[str]) -> Engine:
        """An engine of this moment with the views that are wanted."""
        with self._parts.state.snapshot():
            moment = self._moment()
            if moment != self._at or self._engine is None or not self._engine.usable:
                self.close()
            frames = {name: self._frames(name) for name in FRAME_VIEWS if name in wanted}
            for name in FRAME_VIEWS:  # folders come and go without a commit
                if self._engine is not None:
                    self._engine.hide(name)
            engine = self._engine or Engine(self._limits)
            self._engine = engine
            self._at = moment
            for name in sorted(wanted - engine.views, key=_order):
                self._show(engine, name, frames)
        return engine

    def _show(self, engine: Engine, name: str, frames: Mapping[str, Mapping[str, Sequence[Path]]]) -> None:
        if name in _HELD:
            for view, table in self._episodes().items():
                engine.show(view, table)
        elif name == LISTS:
            engine.show(name, lists(self._parts.folder.parent, self._parts.state))
        elif name in STATE_TABLES:
            held = self._cache.state(self._parts.state, name)
            engine.show(name, _without_secrets(held) if name == RUNS.name else held)
        elif name in frames:
            engine.show_sql(name, view_sql(frames[name], engine.parquet))
        elif name in PART_VIEWS:
            self._show_parts(engine, name)
        elif name == "scores" and self._few_scores():
            self._scores()
            engine.show(name, self._cache.made("scores", SCORES.name, newest))
        elif name in LATEST:
            self._show_latest(engine, name)
        elif name in DERIVED:
            engine.show_sql(name, DERIVED[name])

    def _show_latest(self, engine: Engine, name: str) -> None:
        table, key = LATEST[name]
        paths = [self._parts.path(table, part.part) for part in self._parts.listed(table)]
        if paths:
            engine.show_sql(name, latest_sql(engine.parquet(paths), key))
        else:
            engine.show(name, TABLES[table].schema.empty_table())

    def _show_parts(self, engine: Engine, name: str) -> None:
        table = PART_VIEWS[name]
        listed = self._parts.listed(table)
        if table == SCORES.name and self._few_scores():
            engine.show(name, self._scores())
        elif listed:
            engine.show_files(name, [self._parts.path(table, part.part) for part in listed])
        else:
            engine.show(name, self._cache.read(self._parts, table, ()))

    def _episodes(self) -> dict[str, pa.Table]:
        """Every copy, and each episode once: its first copy, unless it is buried."""
        places = self._cache.read(self._parts, EPISODES.name, self._parts.listed(EPISODES.name))
        buried = frozenset(row["episode_id"] for row in self._parts.state.rows("SELECT episode_id FROM tombstones"))
        return {"places": places, "episodes": self._cache.made("episodes", EPISODES.name, once, buried)}

    def _scores(self) -> pa.Table:
        return self._cache.read(self._parts, SCORES.name, self._parts.listed(SCORES.name))

    def _few_scores(self) -> bool:
        listed: list[Part] = self._parts.listed(SCORES.name)
        return sum(part.rows for part in listed) <= MOST_IN_MEMORY

    def _frames(self, view: str) -> dict[str, list[Path]]:
        """The files behind a view of frames; batches that are gone, another or damaged are left out, which is said.

        Raises:
            DatasetError: that goes for every batch.
        """
        found: dict[str, list[Path]] = {}
        problems = list[DatasetError]()
        for row in self._parts.state.rows("SELECT batch FROM batches ORDER BY added, batch"):
            try:
                found[row["batch"]] = data_files(view, self._folder_of(row["batch"]))
            except DatasetError as error:
                problems.append(error)
        if problems and not found:
            raise problems[0]
        for problem in problems:
            _LOGGER.warning("Left out of the view %s: %s", view, problem)
        return found


def _without_secrets(runs: pa.Table) -> pa.Table:
    """Return records of runs without credentials, which versions before redaction kept; see `catalog.fsck_runs`."""
    rows = [without_secrets(row) for row in runs.to_pylist()]
    return pa.Table.from_pylist(rows, schema=runs.schema)


def _order(name: str) -> tuple[int, str]:
    """Views that are made of others come after them."""
    derived = list(DERIVED)
    return (derived.index(name) + 1 if name in derived else len(derived) + 1 if name in FRAME_VIEWS else 0, name)
