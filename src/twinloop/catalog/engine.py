"""DuckDB, in memory and for queries only: views over what is committed, and statements that can do nothing else.

Two layers keep a statement from writing, and each suffices: `catalog.statements` refuses what does not only read; and
the database has no local files, no folder for temporary ones and no network, so that there is nowhere to write to. Its
views are made of tables in memory and of files that it reads through `catalog.readable_files`, which cannot write.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twinloop.catalog.limits import QueryLimits, StatementTimeoutError
from twinloop.catalog.statements import explained, require_reading
from twinloop.core.errors import DatasetError, InputError

if TYPE_CHECKING:
    import duckdb

    from twinloop.catalog.readable_files import ReadableFiles

Parameters = Sequence[Any] | Mapping[str, Any]
_DEEPEST = 32  # levels of a parameter
_MOST_COLUMNS = 4096  # of an answer
_BATCH_ROWS = 1 << 16  # of the answer: after each batch its size is compared with the limit
# All files but those of `ReadableFiles`, whose names begin like this, are out of reach. Order matters: the last setting
# makes all of them final.
_LOCKED = (
    "SET allowed_directories = ['twinloop://files/']",
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


class QueryEngine:
    """A DuckDB database that holds nothing and can write nothing.

    Args:
        limits: of each statement.
    """

    def __init__(self, limits: QueryLimits) -> None:
        import duckdb

        self.limits = limits
        self.views: set[str] = set()
        self.usable = True  # until a statement could not be stopped, or broke the database
        self._lock = threading.Lock()
        self._files: ReadableFiles | None = None
        # Without a folder for temporary files: DuckDB allows statements to write to it.
        settings = {"python_enable_replacements": False, "temp_directory": "", **limits.settings()}
        with explained(()):
            self._connection: duckdb.DuckDBPyConnection = duckdb.connect(":memory:", config=settings)
            for setting in _LOCKED:
                self._connection.execute(setting)

    def show(self, name: str, table: pa.Table) -> None:
        """A view of a table in memory, instead of an earlier one of that name."""
        import duckdb

        try:
            self._connection.register(name, table)
        except duckdb.Error as error:  # DuckDB makes one of its own of Ctrl-C
            if KeyboardInterrupt.__name__ not in str(error):
                raise
            self.usable = False
            raise KeyboardInterrupt from error
        self.views.add(name)

    def show_sql(self, name: str, sql: str) -> None:
        """A view that is a statement of our own over other views."""
        with self._explained():
            self._connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS {sql}')
        self.views.add(name)

    def show_files(self, name: str, files: Sequence[Path]) -> None:
        """A view of Parquet files."""
        self.show_sql(name, f"SELECT * FROM {self.parquet(files)}")  # noqa: S608 - our own

    def hide(self, name: str) -> None:
        """Take a view of `show_sql` or `show_files` away, if there is one."""
        if name in self.views:
            self._connection.execute(f'DROP VIEW "{name}"')
            self.views.discard(name)

    def parquet(self, files: Sequence[Path]) -> str:
        """Return the SQL that reads Parquet files as one table, by the names of their columns.

        Raises:
            DatasetError: one is gone; names it.
        """
        gone = [path for path in files if not path.is_file()]
        if gone:
            raise DatasetError(f"{gone[0]} is gone, and {len(gone) - 1} more. Run `twinloop fsck`.")
        if self._files is None:
            from twinloop.catalog.readable_files import ReadableFiles

            self._files = ReadableFiles()
            self._connection.register_filesystem(self._files)
        names = ", ".join(quoted(name) for name in self._files.names(files))
        return f"read_parquet([{names}], union_by_name = true)"

    def query(self, sql: str, parameters: Parameters = (), *, most_rows: int | None = None) -> pa.Table:
        """Run one statement that reads; a name that several columns have is counted on, as ``episode_id_2``.

        Args:
            sql: the statement.
            parameters: values for it.
            most_rows: of the answer, where the caller turns it into objects that take more memory than rows.

        Raises:
            UnknownNameError: no such view or column.
            InputError: not one statement, not one that reads, one that DuckDB refuses, or one that takes more time or
                memory than it may.
            DatasetError: a file that a view is made of cannot be read.
        """
        return self._run(lambda: self._checked(sql, parameters, most_rows))

    def query_unchecked(self, sql: str, parameters: Parameters = ()) -> pa.Table | None:
        """Run a statement without the first layer: for tests of the second."""
        return self._run(lambda: self._answer(sql, parameters))

    def columns(self) -> Mapping[str, list[str]]:
        """The columns of every view."""
        found = self._connection.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal")
        columns: dict[str, list[str]] = {}
        for table, column in found.fetchall():
            columns.setdefault(table, []).append(column)
        return columns

    def close(self) -> None:
        """Let go of everything."""
        if self.usable:
            self._connection.close()

    def _run(self, work: Callable[[], pa.Table]) -> pa.Table:
        import duckdb

        with self._lock, self._explained():
            try:
                return self.limits.run(work, self._connection.interrupt)
            except StatementTimeoutError as error:
                self.usable = not error.abandoned
                raise
            except (duckdb.FatalException, duckdb.InternalException, KeyboardInterrupt):
                self.usable = False
                raise

    def _checked(self, sql: str, parameters: Parameters, most_rows: int | None) -> pa.Table:
        _require_flat(parameters)
        require_reading(self._connection, sql)
        return self._answer(sql, parameters, most_rows)

    def _answer(self, sql: str, parameters: Parameters, most_rows: int | None = None) -> pa.Table:
        """Run a statement, and return what it gives."""
        connection = self._connection
        connection.execute("BEGIN TRANSACTION READ ONLY")
        try:
            relation = connection.sql(sql, params=parameters or None)
            # DuckDB gives nothing back for what is no query.
            return pa.table({}) if relation is None else _told_apart(self._collected(relation, most_rows))
        finally:
            with contextlib.suppress(Exception):  # a statement that failed has ended it already
                connection.rollback()

    def _collected(self, relation: duckdb.DuckDBPyRelation, most_rows: int | None) -> pa.Table:
        """Return the rows of an answer.

        Raises:
            InputError: there are more rows or columns than there may be, or they take more memory.
        """
        held, rows, batches = 0, 0, list[pa.RecordBatch]()
        with contextlib.closing(relation.to_arrow_reader(_BATCH_ROWS)) as reader:
            if len(reader.schema) > _MOST_COLUMNS:
                raise InputError(
                    f"The answer has {len(reader.schema):,} columns; at most {_MOST_COLUMNS:,} are given. Select fewer."
                )
            for batch in reader:
                batches.append(batch)
                held, rows = held + batch.nbytes, rows + len(batch)
                if most_rows is not None and rows > most_rows:
                    raise InputError(f"The answer has more than {most_rows:,} rows. Select fewer.")
                if held > self.limits.memory:
                    raise InputError(
                        f"The answer takes more than {self.limits.memory / 1e6:,.0f} MB of memory. Select fewer "
                        "columns or rows, or raise query: {memory: …} in twinloop.yaml."
                    )
            return pa.Table.from_batches(batches, reader.schema)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn DuckDB's errors into ours, which name files by their paths."""
        with explained(self.columns, self._files.with_paths if self._files else str):
            yield


def _require_flat(parameters: Parameters) -> None:
    """Refuse parameters that DuckDB would follow without an end."""
    level: list[Any] = [parameters]
    for _ in range(_DEEPEST):
        inner = (item.values() if isinstance(item, Mapping) else item for item in level)
        level = list({id(one): one for some in inner for one in some if isinstance(one, list | tuple | dict)}.values())
        if not level:
            return
    raise InputError(
        f"A parameter of the statement is nested more than {_DEEPEST} deep, or holds itself. Give it flat."
    )


def _told_apart(answer: pa.Table) -> pa.Table:
    """Give every column a name of its own: rows as dictionaries, JSON and Parquet would lose all but one."""
    names, counts, taken = list[str](), dict[str, int](), set(answer.column_names)
    for name in answer.column_names:
        own, count = name, counts.get(name, 0) + 1
        while count > 1 and (own := f"{name}_{count}") in taken:
            count += 1
        counts[name] = count
        taken.add(own)
        names.append(own)
    return answer if names == answer.column_names else answer.rename_columns(names)


def quoted(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"
