"""Run read-only SQL in an in-memory DuckDB database with views of the catalog.

Two independent mechanisms prevent writing. First, `catalog.statements` refuses statements that do more than read.
Second, the database cannot write: it has no local files, no temporary folder and no network. Its views are made of
tables in memory and of files read through `catalog.readable_files`, which cannot write.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twinloop.catalog.limits import QueryLimits, StatementTimeoutError
from twinloop.catalog.statements import require_read_only, translate_errors
from twinloop.core.errors import DatasetError, InputError

if TYPE_CHECKING:
    import duckdb

    from twinloop.catalog.readable_files import ReadableFiles

Parameters = Sequence[Any] | Mapping[str, Any]
_DEEPEST = 32  # maximum levels of nesting of a parameter
_MOST_COLUMNS = 4096  # maximum number of columns of a result
_BATCH_ROWS = 1 << 16  # rows of a result that are read before its size is compared with the limit
# DuckDB can open only the files of `ReadableFiles`, whose names begin with this prefix. The order matters: the last
# setting makes all of them final.
_LOCKED = (
    "SET allowed_directories = ['twinloop://files/']",
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


class QueryEngine:
    """In-memory DuckDB database that has only views and that cannot write to any file.

    Args:
        limits: limits of time and memory for each statement.

    Attributes:
        views: names of the views that were created.
        usable: false after a statement could not be stopped or broke the database; then a new engine is needed.
    """

    def __init__(self, limits: QueryLimits) -> None:
        import duckdb

        self.limits = limits
        self.views: set[str] = set()
        self.usable = True  # False after a statement could not be stopped, or broke the database
        self._lock = threading.Lock()
        self._files: ReadableFiles | None = None
        # No folder for temporary files, because DuckDB would allow statements to write to it.
        settings = {"python_enable_replacements": False, "temp_directory": "", **limits.settings()}
        with translate_errors(()):
            self._connection: duckdb.DuckDBPyConnection = duckdb.connect(":memory:", config=settings)
            for setting in _LOCKED:
                self._connection.execute(setting)

    def register_table(self, name: str, table: pa.Table) -> None:
        """Create a view of an Arrow table in memory; an earlier view of that name is replaced."""
        import duckdb

        try:
            self._connection.register(name, table)
        except duckdb.Error as error:  # DuckDB converts Ctrl-C to its own error
            if KeyboardInterrupt.__name__ not in str(error):
                raise
            self.usable = False
            raise KeyboardInterrupt from error
        self.views.add(name)

    def create_sql_view(self, name: str, sql: str) -> None:
        """Create a view from an SQL statement over other views; an earlier view of that name is replaced."""
        with self._translate_errors():
            self._connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS {sql}')
        self.views.add(name)

    def create_file_view(self, name: str, files: Sequence[Path]) -> None:
        """Create a view of all rows of some Parquet files; an earlier view of that name is replaced."""
        self.create_sql_view(name, f"SELECT * FROM {self.format_parquet_sql(files)}")  # noqa: S608 - our own

    def drop_view(self, name: str) -> None:
        """Remove a view that `create_sql_view` or `create_file_view` created, if it exists."""
        if name in self.views:
            self._connection.execute(f'DROP VIEW "{name}"')
            self.views.discard(name)

    def format_parquet_sql(self, files: Sequence[Path]) -> str:
        """Return the SQL function call that reads Parquet files as one table, with columns matched by name.

        Raises:
            DatasetError: If a file is missing.
        """
        gone = [path for path in files if not path.is_file()]
        if gone:
            raise DatasetError(f"{gone[0]} is missing, and {len(gone) - 1} more files. Run `twinloop fsck`.")
        if self._files is None:
            from twinloop.catalog.readable_files import ReadableFiles

            self._files = ReadableFiles()
            self._connection.register_filesystem(self._files)
        names = ", ".join(quote_literal(name) for name in self._files.assign_names(files))
        return f"read_parquet([{names}], union_by_name = true)"

    def query(self, sql: str, parameters: Parameters = (), *, max_rows: int | None = None) -> pa.Table:
        """Run one read-only SQL statement and return its rows.

        If column names repeat, the later columns get a number, such as ``episode_id_2``.

        Args:
            sql: the statement.
            parameters: values of its parameters: a sequence for ``?``, a mapping for ``$name``.
            max_rows: maximum number of rows of the result, for callers that convert each row to a Python object; None
                for no maximum.

        Raises:
            UnknownNameError: If a view or a column does not exist.
            InputError: If the text is not one read-only statement, DuckDB refuses it, or it exceeds a limit.
            DatasetError: If a file of a view cannot be read.
        """
        return self._run(lambda: self._run_checked(sql, parameters, max_rows))

    def query_unchecked(self, sql: str, parameters: Parameters = ()) -> pa.Table | None:
        """Run a statement without the check that it only reads, so that tests reach the database's own protection."""
        return self._run(lambda: self._execute(sql, parameters))

    def columns(self) -> Mapping[str, list[str]]:
        """Return the column names of each view, by name of the view."""
        found = self._connection.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal")
        columns: dict[str, list[str]] = {}
        for table, column in found.fetchall():
            columns.setdefault(table, []).append(column)
        return columns

    def close(self) -> None:
        """Close the database and release its memory."""
        if self.usable:
            self._connection.close()

    def _run(self, work: Callable[[], pa.Table]) -> pa.Table:
        import duckdb

        with self._lock, self._translate_errors():
            try:
                return self.limits.run(work, self._connection.interrupt)
            except StatementTimeoutError as error:
                self.usable = not error.abandoned
                raise
            except (duckdb.FatalException, duckdb.InternalException, KeyboardInterrupt):
                self.usable = False
                raise

    def _run_checked(self, sql: str, parameters: Parameters, max_rows: int | None) -> pa.Table:
        _require_flat(parameters)
        require_read_only(self._connection, sql)
        return self._execute(sql, parameters, max_rows)

    def _execute(self, sql: str, parameters: Parameters, max_rows: int | None = None) -> pa.Table:
        """Run a statement in a read-only transaction and return its rows, an empty table if it has no result."""
        connection = self._connection
        connection.execute("BEGIN TRANSACTION READ ONLY")
        try:
            relation = connection.sql(sql, params=parameters or None)
            # DuckDB returns nothing for a statement that is not a query.
            return pa.table({}) if relation is None else _make_names_unique(self._collect_rows(relation, max_rows))
        finally:
            with contextlib.suppress(Exception):  # a statement that failed has ended it already
                connection.rollback()

    def _collect_rows(self, relation: duckdb.DuckDBPyRelation, max_rows: int | None) -> pa.Table:
        """Read the rows of a result in batches, so that a result that is too large is refused early.

        Raises:
            InputError: If the result has too many rows or columns, or needs too much memory.
        """
        held, rows, batches = 0, 0, list[pa.RecordBatch]()
        with contextlib.closing(relation.to_arrow_reader(_BATCH_ROWS)) as reader:
            if len(reader.schema) > _MOST_COLUMNS:
                raise InputError(
                    f"The answer has {len(reader.schema):,} columns; at most {_MOST_COLUMNS:,} are shown. Select fewer."
                )
            for batch in reader:
                batches.append(batch)
                held, rows = held + batch.nbytes, rows + len(batch)
                if max_rows is not None and rows > max_rows:
                    raise InputError(f"The answer has more than {max_rows:,} rows. Select fewer.")
                if held > self.limits.memory:
                    raise InputError(
                        f"The answer takes more than {self.limits.memory / 1e6:,.0f} MB of memory. Select fewer "
                        "columns or rows, or raise query: {memory: …} in twinloop.yaml."
                    )
            return pa.Table.from_batches(batches, reader.schema)

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Return a context manager that replaces DuckDB's errors by twinloop's errors.

        DuckDB reads files under the names of a virtual file system; the messages show the real paths instead.
        """
        with translate_errors(self.columns, self._files.restore_paths if self._files else str):
            yield


def _require_flat(parameters: Parameters) -> None:
    """Refuse parameters that are nested more than 32 levels deep or that contain themselves.

    DuckDB would convert such parameters without end.

    Raises:
        InputError: If the parameters are nested too deeply.
    """
    level: list[Any] = [parameters]
    for _ in range(_DEEPEST):
        inner = (item.values() if isinstance(item, Mapping) else item for item in level)
        level = list({id(one): one for some in inner for one in some if isinstance(one, list | tuple | dict)}.values())
        if not level:
            return
    raise InputError(
        f"A parameter of the statement is nested more than {_DEEPEST} deep, or contains itself. Give a flat one."
    )


def _make_names_unique(answer: pa.Table) -> pa.Table:
    """Append numbers to repeated column names; otherwise JSON and Parquet would keep one column per name."""
    names, counts, taken = list[str](), dict[str, int](), set(answer.column_names)
    for name in answer.column_names:
        own, count = name, counts.get(name, 0) + 1
        while count > 1 and (own := f"{name}_{count}") in taken:
            count += 1
        counts[name] = count
        taken.add(own)
        names.append(own)
    return answer if names == answer.column_names else answer.rename_columns(names)


def quote_literal(text: str) -> str:
    """Return a text as an SQL string literal in single quotes."""
    return "'" + text.replace("'", "''") + "'"
