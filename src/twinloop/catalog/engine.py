"""DuckDB, in memory and for queries only: views over what is committed, and statements that can do nothing else.

An engine is locked before a user's statement runs: no files but those that its views are made of, no settings, no
extensions. Views may be added later, of tables in memory and of those files.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twinloop.catalog.refusals import explained, require_reading
from twinloop.core.errors import DatasetError

if TYPE_CHECKING:
    import duckdb

Parameters = Sequence[Any] | Mapping[str, Any]


class Engine:
    """A DuckDB database that holds nothing and may read the given files only.

    Args:
        files: what its views may read.
        spill: a folder for what does not fit into memory; made when needed, and removed.
        settings: DuckDB's ``memory_limit`` and ``threads``, where they are not to be DuckDB's own choice: 80 % of the
            machine's memory and all of its cores.
    """

    def __init__(self, files: Sequence[Path], *, spill: Path, settings: Mapping[str, Any]) -> None:
        import duckdb

        self._lock = threading.Lock()
        given = {"python_enable_replacements": False, "temp_directory": str(spill), **settings}
        with explained(()):
            self._connection: duckdb.DuckDBPyConnection = duckdb.connect(":memory:", config=given)
        self.files = frozenset(files)
        self.views: set[str] = set()
        self._connection.execute(f"SET allowed_paths = {_listed(files)}")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def show(self, name: str, table: pa.Table) -> None:
        """A view of a table in memory, instead of an earlier one of that name."""
        self._connection.register(name, table)
        self.views.add(name)

    def show_sql(self, name: str, sql: str) -> None:
        """A view that is a statement of our own over other views."""
        with explained(self.columns):
            self._connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS {sql}')
        self.views.add(name)

    def show_files(self, name: str, files: Sequence[Path]) -> None:
        """A view of Parquet files."""
        self.show_sql(name, f"SELECT * FROM {parquet(files)}")  # noqa: S608 - our own

    def hide(self, name: str) -> None:
        """Take a view of `show_sql` or `show_files` away, if there is one."""
        if name in self.views:
            self._connection.execute(f'DROP VIEW "{name}"')
            self.views.discard(name)

    def query(self, sql: str, parameters: Parameters = ()) -> pa.Table:
        """Run one statement that reads; a name that several columns have is counted on, as ``episode_id_2``.

        Raises:
            UnknownNameError: no such view or column.
            InputError: not one statement, not one that reads, or one that DuckDB refuses.
            DatasetError: a file that a view is made of cannot be read.
        """
        with self._lock, explained(self.columns):
            require_reading(self._connection.extract_statements(sql))
            return _told_apart(self._connection.sql(sql, params=parameters or None).to_arrow_table())

    def columns(self) -> Mapping[str, list[str]]:
        """The columns of every view."""
        found = self._connection.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal")
        columns: dict[str, list[str]] = {}
        for table, column in found.fetchall():
            columns.setdefault(table, []).append(column)
        return columns

    def close(self) -> None:
        """Let go of everything."""
        self._connection.close()


def _told_apart(answer: pa.Table) -> pa.Table:
    """Give every column a name of its own: rows as dictionaries, JSON and Parquet would lose all but one."""
    names = list[str]()
    taken = set(answer.column_names)
    for name in answer.column_names:
        own, count = name, 1
        while own in names or (count > 1 and own in taken):
            count += 1
            own = f"{name}_{count}"
        names.append(own)
    return answer if names == answer.column_names else answer.rename_columns(names)


def parquet(files: Sequence[Path]) -> str:
    """The SQL that reads Parquet files as one table, by the names of their columns.

    Raises:
        DatasetError: one is gone; names it.
    """
    gone = [path for path in files if not path.is_file()]
    if gone:
        raise DatasetError(f"{gone[0]} is gone, and {len(gone) - 1} more. Run `twinloop fsck`.")
    return f"read_parquet({_listed(files)}, union_by_name = true)"


def quoted(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def _listed(files: Sequence[Path]) -> str:
    return f"[{', '.join(quoted(str(path)) for path in files)}]"
