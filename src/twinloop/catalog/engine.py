"""DuckDB, in memory and for queries only: views over what is committed, and statements that can do nothing else.

An engine is one moment of the catalog. It is locked before a user's statement runs: no files but those of its views,
no settings, no extensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from twinloop.catalog.schema import TABLES

Tables = Mapping[str, Callable[[], pa.Table]]


class Engine:
    """A DuckDB database with some views.

    Args:
        tables: Arrow tables by name.
        files: Parquet files by the name of their view, and the SQL that reads them, ``{files}`` in it.
        views: SQL of further views, in the order in which they are made.
        memory: the most that a statement may take, as DuckDB writes it (``"4GB"``); None leaves 80 % of the machine's.
        threads: the most that it may run on; None takes every core.
    """

    def __init__(
        self,
        *,
        tables: Mapping[str, pa.Table],
        files: Mapping[str, Sequence[Path]],
        views: Mapping[str, str],
        memory: str | None = None,
        threads: int | None = None,
    ) -> None:
        import duckdb

        settings: dict[str, Any] = {"python_enable_replacements": False, "temp_directory": ""}
        if memory is not None:
            settings["memory_limit"] = memory
        if threads is not None:
            settings["threads"] = threads
        self._duckdb = duckdb
        self._connection = duckdb.connect(":memory:", config=settings)
        allowed = [str(path) for paths in files.values() for path in paths]
        self._connection.execute(f"SET allowed_paths = [{', '.join(_quoted(path) for path in allowed)}]")
        for name, table in tables.items():
            self._connection.register(name, table)
        for name, paths in files.items():
            self._over_files(name, paths)
        for name, sql in views.items():
            self._connection.execute(f'CREATE VIEW "{name}" AS {sql}')
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> pa.Table:
        """Run one statement that reads."""
        relation = self._connection.sql(sql, params=parameters or None)
        return relation.to_arrow_table()

    def close(self) -> None:
        """Let go of everything."""
        self._connection.close()

    def _over_files(self, name: str, paths: Sequence[Path]) -> None:
        if not paths:
            table = TABLES["scores" if name == "score_history" else name]
            self._connection.register(name, table.schema.empty_table())
            return
        listed = ", ".join(_quoted(str(path)) for path in paths)
        self._connection.execute(f'CREATE VIEW "{name}" AS SELECT * FROM read_parquet([{listed}])')  # noqa: S608


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
