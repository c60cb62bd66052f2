"""Answer SQL queries over the current content of the catalog, including frames and contacts of episodes.

Tables that were read for a query stay in memory until the catalog changes.
"""

from __future__ import annotations

import datetime
import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.catalog.dataset_versions import LISTS, read_all_lists
from twinloop.catalog.engine import Parameters, QueryEngine, quote_literal
from twinloop.catalog.limits import QueryLimits
from twinloop.catalog.parts import PartStore
from twinloop.catalog.schema import EPISODES, SCORES, TABLES
from twinloop.catalog.state_schema import RUNS, STATE_TABLES
from twinloop.catalog.view_tables import CacheFolder, ViewTableCache, select_first_copies, select_newest_rows
from twinloop.catalog.views import DERIVED, FRAME_VIEWS, LATEST, NAMES, PART_VIEWS, find_required_views, latest_sql
from twinloop.core.errors import DatasetError, UnknownNameError
from twinloop.core.files import dumps
from twinloop.core.redaction import redact_text, redact_values, redact_words
from twinloop.dataset.lerobot import layout


def convert_decimals(answer: pa.Table) -> pa.Table:
    """Convert the decimal columns of a DuckDB result to types that all programs can read.

    DuckDB returns sums of integers as 128-bit decimals. They become int64 if all values fit; otherwise they stay exact
    decimals. Decimal fractions such as ``1.5`` become float64.
    """
    for place, field in enumerate(answer.schema):
        if pa.types.is_decimal(field.type):
            try:
                column = answer.column(place).cast(pa.float64() if field.type.scale else pa.int64())
            except pa.ArrowInvalid:
                continue
            answer = answer.set_column(place, pa.field(field.name, column.type), column)
    return answer


def convert_to_json(value: Any) -> Any:
    """Convert a value of a query result to JSON-compatible types.

    Times become ISO 8601 texts, bytes hexadecimal texts, and decimals without a fraction integers.
    """
    if isinstance(value, Mapping):
        return {str(key): convert_to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return [convert_to_json(item) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def redact_run(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table ``runs`` with credentials removed; texts without credentials are unchanged."""
    return dict(row) | {
        "folder": redact_values(row["folder"]),
        "arguments": _redact_json(row["arguments"], lambda words: redact_words([str(word) for word in words])),
        "result": _redact_json(row["result"], redact_values),
    }


def _redact_json(text: str, clean: Callable[[Any], Any]) -> str:
    try:
        value = json.loads(text)
        cleaned = clean(value)
    except (ValueError, TypeError):  # not written by `Workspace.record_run`
        return redact_text(text)
    return text if cleaned == value else dumps(cleaned)


CONTACTS = "annotations/contacts"
_GLOBS = {"frames": "data", "contacts": f"{layout.SIDE}/{CONTACTS}"}
_NONE = "SELECT NULL::VARCHAR AS episode_id, NULL::VARCHAR AS batch, NULL::BIGINT AS episode_index WHERE false"


def list_data_files(view: str, folder: Path) -> list[Path]:
    """Return the Parquet files of a dataset folder with the rows for the view ``frames`` or ``contacts``.

    Raises:
        DatasetError: If a file is outside of the folder (through a link), is not a regular file, or cannot be read.
    """
    paths = sorted((folder / _GLOBS[view]).glob("chunk-*/file-*.parquet"))
    root = folder.resolve()
    for path in paths:
        if not path.resolve().is_relative_to(root):
            raise DatasetError(
                f"{path} leads out of the dataset's folder through a link. Replace the link by a copy of the file."
            )
        if not path.is_file():
            raise DatasetError(f"{path} is not a regular file, and reading it could block forever. Restore the file.")
        _read_schema(path)
    return paths


def format_view_sql(files: Mapping[str, Sequence[Path]], parquet: Callable[[Sequence[Path]], str]) -> str:
    """Return the SQL of a view over the Parquet files of several batches (dataset folders).

    Args:
        files: the files of each batch, by name of the batch.
        parquet: function that returns the SQL call that reads some files as one table.
    """
    parts = [_format_batch_sql(batch, paths, parquet(paths)) for batch, paths in files.items() if paths]
    return "\nUNION ALL BY NAME\n".join(parts) or _NONE


def _format_batch_sql(batch: str, paths: Sequence[Path], rows: str) -> str:
    columns = ", ".join(_format_column_sql(field) for field in _select_columns(_read_schema(paths[0])))
    return f"""SELECT p.episode_id, p.batch, {columns} FROM {rows} f
        JOIN places p ON p.episode_index = f.episode_index AND p.batch = {quote_literal(batch)}"""  # noqa: S608 - quoted


def _read_schema(path: Path) -> pa.Schema:
    """Return the schema of a Parquet file.

    Raises:
        DatasetError: If the file is damaged or missing.
    """
    try:
        about = path.stat()
        return _read_cached_schema(path, about.st_size, about.st_mtime_ns)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{path} is damaged or missing ({error}). Run `twinloop fsck`.") from error


@functools.lru_cache(maxsize=4096)
def _read_cached_schema(path: Path, _size: int, _mtime_ns: int) -> pa.Schema:
    """Return the schema of a Parquet file; cached until the file's size or modification time changes."""
    return pq.read_schema(path)


def _select_columns(schema: pa.Schema) -> list[pa.Field]:
    """Return the columns of a file that the view shows.

    Columns with images and columns named as the catalog's own (``episode_id``, ``batch``) are left out. If several
    names are equal when case is ignored, the first column is used.
    """
    first: dict[str, pa.Field] = {}
    for field in schema:
        if _is_displayable(field.type):
            first.setdefault(field.name.lower(), field)
    return [field for name, field in first.items() if name not in ("", "episode_id", "batch") and "\0" not in name]


def _is_displayable(kind: pa.DataType) -> bool:
    """Return whether views show columns of this type: numbers, texts and lists of both, but no bytes and no images."""
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind):
        return _is_displayable(kind.value_type)
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _format_column_sql(field: pa.Field) -> str:
    """Return the SQL expression of a column; vectors become lists.

    Lists may have different lengths, so that batches of robots with different numbers of joints form one table.
    """
    name = '"' + field.name.replace('"', '""') + '"'
    if not pa.types.is_fixed_size_list(field.type):
        return f"f.{name}"
    return f"f.{name}::{_SQL.get(field.type.value_type, 'DOUBLE')}[] AS {name}"


_SQL = {pa.float32(): "FLOAT", pa.int64(): "BIGINT", pa.int32(): "INTEGER", pa.bool_(): "BOOLEAN"}


MOST_IN_MEMORY = 4_000_000  # rows of scores in memory, some 150 bytes each; more are read from disk each time
_HELD = {"episodes", "places"}
_TRIES = 3
_LOGGER = logging.getLogger(__name__)


class CatalogQueries:
    """SQL access to the catalog of a workspace.

    Args:
        parts: the catalog's Parquet files.
        folder_of: function that returns the folder of a batch, or raises a `DatasetError` if it is not available.
        limits: limits of time and memory for each statement.
    """

    def __init__(self, parts: PartStore, folder_of: Callable[[str], Path], limits: QueryLimits) -> None:
        self._parts, self._folder_of, self._limits = parts, folder_of, limits
        self._cache = ViewTableCache(CacheFolder(parts.folder))
        self._engine: QueryEngine | None = None
        self._at: tuple[int, int] = (-1, -1)

    def run(self, sql: str, parameters: Parameters = (), *, max_rows: int | None = None) -> pa.Table:
        """Run one read-only SQL statement and return its rows; see `Workspace.query`."""
        wanted = (find_required_views(sql) or set(NAMES)) - {*FRAME_VIEWS}
        tries = 0
        while True:
            try:
                return convert_decimals(self._prepare_engine(wanted).query(sql, parameters, max_rows=max_rows))
            except UnknownNameError as error:
                # `frames` is also a column of episodes: only a failed table lookup shows that the view is meant.
                name = error.name.lower()
                if name not in FRAME_VIEWS or name in wanted:
                    raise
                wanted |= {name, "places"}
            except DatasetError:
                # Another process may have joined parts in the meantime and removed the old ones.
                tries += 1
                if tries > _TRIES or self._read_counters() == self._at:
                    raise

    def close(self) -> None:
        """Close the in-memory database and release its memory."""
        if self._engine is not None:
            self._engine.close()
        self._engine, self._at = None, (-1, -1)

    def _read_counters(self) -> tuple[int, int]:
        state = self._parts.state
        return state.counter("parts"), state.counter("state")

    def _prepare_engine(self, wanted: set[str]) -> QueryEngine:
        """Return a database with the current content of the catalog and at least the required views."""
        with self._parts.state.snapshot():
            moment = self._read_counters()
            if moment != self._at or self._engine is None or not self._engine.usable:
                self.close()
            frames = {name: self._list_frame_files(name) for name in FRAME_VIEWS if name in wanted}
            for name in FRAME_VIEWS:  # folders come and go without a commit
                if self._engine is not None:
                    self._engine.drop_view(name)
            engine = self._engine or QueryEngine(self._limits)
            self._engine = engine
            self._at = moment
            for name in sorted(wanted - engine.views, key=_view_sort_key):
                self._create_view(engine, name, frames)
        return engine

    def _create_view(self, engine: QueryEngine, name: str, frames: Mapping[str, Mapping[str, Sequence[Path]]]) -> None:
        if name in _HELD:
            for view, table in self._read_episode_tables().items():
                engine.register_table(view, table)
        elif name == LISTS:
            engine.register_table(name, read_all_lists(self._parts.folder.parent, self._parts.state))
        elif name in STATE_TABLES:
            held = self._cache.read_state_table(self._parts.state, name)
            engine.register_table(name, _redact_runs(held) if name == RUNS.name else held)
        elif name in frames:
            engine.create_sql_view(name, format_view_sql(frames[name], engine.format_parquet_sql))
        elif name in PART_VIEWS:
            self._create_parts_view(engine, name)
        elif name == "scores" and self._scores_fit_in_memory():
            self._read_scores()
            engine.register_table(name, self._cache.derive_table("scores", SCORES.name, select_newest_rows))
        elif name in LATEST:
            self._create_latest_view(engine, name)
        elif name in DERIVED:
            engine.create_sql_view(name, DERIVED[name])

    def _create_latest_view(self, engine: QueryEngine, name: str) -> None:
        table, key = LATEST[name]
        paths = [self._parts.path(table, part.part) for part in self._parts.list_parts(table)]
        if paths:
            engine.create_sql_view(name, latest_sql(engine.format_parquet_sql(paths), key))
        else:
            engine.register_table(name, TABLES[table].schema.empty_table())

    def _create_parts_view(self, engine: QueryEngine, name: str) -> None:
        table = PART_VIEWS[name]
        listed = self._parts.list_parts(table)
        if table == SCORES.name and self._scores_fit_in_memory():
            engine.register_table(name, self._read_scores())
        elif listed:
            engine.create_file_view(name, [self._parts.path(table, part.part) for part in listed])
        else:
            engine.register_table(name, self._cache.read(self._parts, table, ()))

    def _read_episode_tables(self) -> dict[str, pa.Table]:
        """Return the tables of the views ``places`` and ``episodes``.

        ``places`` has all copies of all episodes. ``episodes`` has one row per episode, for its first copy; excluded
        episodes are left out.
        """
        places = self._cache.read(self._parts, EPISODES.name, self._parts.list_parts(EPISODES.name))
        buried = frozenset(row["episode_id"] for row in self._parts.state.rows("SELECT episode_id FROM tombstones"))
        return {
            "places": places,
            "episodes": self._cache.derive_table("episodes", EPISODES.name, select_first_copies, buried),
        }

    def _read_scores(self) -> pa.Table:
        return self._cache.read(self._parts, SCORES.name, self._parts.list_parts(SCORES.name))

    def _scores_fit_in_memory(self) -> bool:
        return sum(part.rows for part in self._parts.list_parts(SCORES.name)) <= MOST_IN_MEMORY

    def _list_frame_files(self, view: str) -> dict[str, list[Path]]:
        """Return the Parquet files for the view ``frames`` or ``contacts``, by name of the batch.

        A batch whose folder is missing, rewritten or damaged is left out with a warning.

        Raises:
            DatasetError: If all batches are missing, rewritten or damaged.
        """
        found: dict[str, list[Path]] = {}
        problems = list[DatasetError]()
        for row in self._parts.state.rows("SELECT batch FROM batches ORDER BY added, batch"):
            try:
                found[row["batch"]] = list_data_files(view, self._folder_of(row["batch"]))
            except DatasetError as error:
                problems.append(error)
        if problems and not found:
            raise problems[0]
        for problem in problems:
            _LOGGER.warning("Left out of the view %s: %s", view, problem)
        return found


def _redact_runs(runs: pa.Table) -> pa.Table:
    """Return the table ``runs`` with credentials removed.

    Earlier versions of twinloop stored runs with credentials; `catalog.fsck_state` finds and removes them in the file.
    """
    rows = [redact_run(row) for row in runs.to_pylist()]
    return pa.Table.from_pylist(rows, schema=runs.schema)


def _view_sort_key(name: str) -> tuple[int, str]:
    """Return a sort key for names of SQL views of the catalog: each view follows the views from which it is made."""
    derived = list(DERIVED)
    return (derived.index(name) + 1 if name in derived else len(derived) + 1 if name in FRAME_VIEWS else 0, name)
