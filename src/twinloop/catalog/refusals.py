"""What DuckDB refuses, said in our words: the name that is wrong, the nearest that exists, the next step."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from twinloop.catalog.views import NAMES
from twinloop.core.errors import DatasetError, InputError, UnknownNameError

_TABLE = re.compile(r"Table with name \"?(?P<name>.+?)\"? does not exist")
_COLUMN = re.compile(
    r"Referenced column \"(?P<name>.+?)\" (?:was )?not found|does not have a column named \"(?P<of>.+?)\""
)
_FUNCTION = re.compile(r"(?:Function with name|function) \"?(?P<name>\w+)\"? does not exist")
_MISSING = re.compile(r"Values were not provided for the following parameters: (?P<names>.+)")
_EXCESS = re.compile(r"identifiers of the excess parameters: (?P<names>.+)")
_BLOCKED = ("file system operations are disabled", "disabled by configuration", "has been locked")
_TOO_LARGE = ("Out of Memory", "MemoryError", "bad_alloc", "bad allocation", "failed to allocate", "failed to realloc")


@contextlib.contextmanager
def explained(
    columns: Callable[[], Mapping[str, list[str]]] | Sequence[str], reworded: Callable[[str], str] = str
) -> Iterator[None]:
    """Turn DuckDB's errors into ours.

    Args:
        columns: those of every view, for the nearest name.
        reworded: changes DuckDB's text first.
    """
    import duckdb

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
        text = reworded(str(error)) or type(error).__name__
        known = columns() if callable(columns) and _COLUMN.search(text) else {}
        raise _ours(text, known) from error


def _ours(text: str, columns: Mapping[str, list[str]]) -> Exception:
    table, column, function = _TABLE.search(text), _COLUMN.search(text), _FUNCTION.search(text)
    if table:
        return UnknownNameError("table", table["name"], NAMES, where="the catalog")
    if column:
        name = column["name"] or column["of"]
        existing = {item for names in columns.values() for item in names}
        return UnknownNameError("column", name, existing, where="the tables of this statement")
    first = text.splitlines()[0]
    if function:
        return InputError(f"There is no function {function['name']} in DuckDB's SQL. {_hint(text)}".strip())
    missing, excess = _MISSING.search(first), _EXCESS.search(first)
    if missing:
        return InputError(_without_value(missing["names"].split(", ")))
    if excess:
        return InputError(f"The statement has no parameter {excess['names']}. A value goes where it says $NAME or ?.")
    if any(sign in text for sign in _BLOCKED):
        return InputError(
            f"A statement reads the catalog's views and nothing else, no files and no settings ({first}). "
            "`twinloop query --help` names the views."
        )
    if any(sign in text for sign in _TOO_LARGE):
        return InputError(
            f"The statement takes more memory than it may ({first}). Select fewer columns or rows, or raise "
            "query: {memory: …} in twinloop.yaml."
        )
    if ".parquet" in text:
        return DatasetError(f"A file that the statement reads is damaged or gone ({first}). Run `twinloop fsck`.")
    return InputError(f"{first} {_line(text)}".strip())


def _without_value(names: Sequence[str]) -> str:
    if names[0].isdigit():
        return (
            f"There are no values for {len(names)} question marks of the statement. Give as many parameters; to "
            "`twinloop query` write $NAME in their place and --params NAME=VALUE."
        )
    wanted, given = ", ".join(f"${name}" for name in names), " ".join(f"{name}=VALUE" for name in names)
    return f"There is no value for {wanted} of the statement. Give it as a parameter: --params {given}."


def _hint(text: str) -> str:
    """What DuckDB proposes instead."""
    found = re.search(r"^Did you mean .+$", text, re.MULTILINE)
    return found[0] if found else ""


def _line(text: str) -> str:
    """The line of the statement that DuckDB points at."""
    found = re.search(r"^LINE \d+: (.+)$", text, re.MULTILINE)
    return f"Near: {found[1].strip()}" if found else ""
