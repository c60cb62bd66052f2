"""Check that an SQL text is one statement that only reads views of the catalog, and rephrase DuckDB's errors.

This check is the first of two independent protections. The second is the database, which cannot write: see
`catalog.engine`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twinloop.catalog.views import NAMES
from twinloop.core.errors import DatasetError, InputError, UnknownNameError

if TYPE_CHECKING:
    import duckdb


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
def translate_errors(
    columns: Callable[[], Mapping[str, list[str]]] | Sequence[str], rewrite_message: Callable[[str], str] = str
) -> Iterator[None]:
    """Return a context manager that replaces DuckDB's errors by errors of twinloop.

    Args:
        columns: column names of every view, or a function that returns them; used to propose the nearest name.
        rewrite_message: function that is first applied to DuckDB's message.
    """
    import duckdb

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
        text = rewrite_message(str(error)) or type(error).__name__
        known = columns() if callable(columns) and _COLUMN.search(text) else {}
        raise _convert_error(text, known) from error


def _convert_error(text: str, columns: Mapping[str, list[str]]) -> Exception:
    table, column, function = _TABLE.search(text), _COLUMN.search(text), _FUNCTION.search(text)
    if table:
        return UnknownNameError("table", table["name"], NAMES, where="the catalog")
    if column:
        name = column["name"] or column["of"]
        existing = {item for names in columns.values() for item in names}
        return UnknownNameError("column", name, existing, where="the tables of this statement")
    first = text.splitlines()[0]
    if function:
        return InputError(f"There is no function {function['name']} in DuckDB's SQL. {_find_hint(text)}".strip())
    missing, excess = _MISSING.search(first), _EXCESS.search(first)
    if missing:
        return InputError(_explain_missing_value(missing["names"].split(", ")))
    if excess:
        return InputError(f"The statement has no parameter {excess['names']}. Parameters are written $NAME or ?.")
    if any(sign in text for sign in _BLOCKED):
        return _make_forbidden_read_error(first)
    if any(sign in text for sign in _TOO_LARGE):
        return InputError(
            f"The statement takes more memory than allowed ({first}). Select fewer columns or rows, or raise "
            "query: {memory: …} in twinloop.yaml."
        )
    if ".parquet" in text:
        return DatasetError(f"A file that the statement reads is damaged or missing ({first}). Run `twinloop fsck`.")
    return InputError(f"{first} {_find_line(text)}".strip())


def _explain_missing_value(names: Sequence[str]) -> str:
    if names[0].isdigit():
        return (
            f"There are no values for {len(names)} question marks of the statement. Give one value for each; for "
            "`twinloop query` write $NAME in their place and give --params NAME=VALUE."
        )
    wanted, given = ", ".join(f"${name}" for name in names), " ".join(f"{name}=VALUE" for name in names)
    return f"There is no value for {wanted} of the statement. Give it as a parameter: --params {given}."


def _find_hint(text: str) -> str:
    """Return DuckDB's "Did you mean" line from an error message, or an empty text."""
    found = re.search(r"^Did you mean .+$", text, re.MULTILINE)
    return found[0] if found else ""


def _find_line(text: str) -> str:
    """Return the faulty line of the statement from an error message of DuckDB, or an empty text."""
    found = re.search(r"^LINE \d+: (.+)$", text, re.MULTILINE)
    return f"Near: {found[1].strip()}" if found else ""


# Most characters of a statement. Nested statements of twice this length overflow the stack of DuckDB's parser, which
# ends the process. Lists of ids are flat and do not count; hexadecimal ids cannot contain SQL.
MAX_CHARACTERS, MAX_CHARACTERS_WITH_IDS = 100_000, 32_000_000
_ID = "'[0-9a-f]{16,64}'"
_IDS = re.compile(rf"\bIN\s*\(\s*{_ID}(?:\s*,\s*{_ID})*\s*\)", re.IGNORECASE)

# The types of nodes of a statement that reads. Queries, tables and modifiers have a type; expressions also a class.
_NODES = {
    *("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"),
    *("BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "EMPTY_FROM"),
    *("PIVOT", "SHOW_REF"),
    *("ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER"),
    *("ORDER_DEFAULT", "ASCENDING", "DESCENDING"),
    # Descriptions of the type of a cast or of a value.
    *("GENERIC_TYPE_INFO", "DECIMAL_TYPE_INFO", "STRING_TYPE_INFO", "LIST_TYPE_INFO", "STRUCT_TYPE_INFO"),
    *("ENUM_TYPE_INFO", "ARRAY_TYPE_INFO", "ANY_TYPE_INFO", "INTEGER_LITERAL_TYPE_INFO", "USER_TYPE_INFO"),
}
_EXPRESSIONS = {
    *("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "DEFAULT"),
    *("FUNCTION", "LAMBDA", "LAMBDA_REF", "OPERATOR", "PARAMETER", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "TYPE"),
    "WINDOW",
}
# Functions that return tables, and read no file, no setting and no table named in a text.
TABLE_FUNCTIONS = {
    *("unnest", "range", "generate_series", "repeat", "repeat_row", "json_each", "json_tree"),
    *("duckdb_columns", "duckdb_functions", "duckdb_keywords", "duckdb_tables", "duckdb_types", "duckdb_views"),
}
# Functions that change something, wait, run a text as SQL, or return data on settings, the process or other statements.
REFUSED_FUNCTIONS = {
    *("current_setting", "getenv", "getvariable", "current_query", "in_search_path", "set_config", "pg_conf_load_time"),
    *("nextval", "currval", "setval", "setseed", "write_log", "sleep_ms", "pg_sleep", "get_block_size"),
    *("json_execute_serialized_sql", "query", "query_table", "parse_duckdb_log_message", "hive_partition_component"),
    *("stats", "vector_type", "txid_current", "current_connection_id", "current_query_id", "current_transaction_id"),
}
_CATALOGS = {"", "memory", "system", "temp"}
_SCHEMAS = {"", "main", "memory", "temp"}
_INFORMATION = {"tables", "columns", "schemata", "views"}  # of information_schema
_SHOWN = {"tables", "__show_tables_expanded"}
_PLAIN = re.compile(r"[\w -]+")  # a name that cannot be the name of a file


def require_read_only(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise an error unless an SQL text is one statement that only reads views of the catalog.

    Raises:
        InputError: If the text is not one statement, or the statement does more than read views.
        UnknownNameError: If a table is neither a view nor defined in the statement.
    """
    _require_valid_text(sql)
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise InputError(f"One statement is run at a time; this text has {len(statements)}. Give one SELECT.")
    kind = statements[0].type.name
    if kind != "SELECT":
        raise _make_not_read_only_error(kind)
    nodes = list(_iterate_nodes(_parse_tree(connection, sql)))
    own = {name for node in nodes for name in _iterate_defined_names(node)}
    for node in nodes:
        _check_node(node, own)


def _require_valid_text(sql: str) -> None:
    if "\0" in sql or (not sql.isascii() and any("\ud800" <= letter <= "\udfff" for letter in sql)):
        raise InputError("The statement has invalid characters (NUL, or an unpaired UTF-16 surrogate). Remove them.")
    if len(sql) > MAX_CHARACTERS_WITH_IDS or (len(sql) > MAX_CHARACTERS and len(_IDS.sub("", sql)) > MAX_CHARACTERS):
        raise InputError(
            f"The statement has {len(sql):,} characters; at most {MAX_CHARACTERS:,} are read, without lists of ids. "
            "Give long lists as parameters: WHERE episode_id IN (SELECT unnest($ids))."
        )


def _parse_tree(connection: duckdb.DuckDBPyConnection, sql: str) -> Mapping[str, Any]:
    """Return the syntax tree of a statement, as DuckDB's function ``json_serialize_sql`` gives it.

    Raises:
        InputError: If the statement is nested too deeply or is not a ``SELECT``.
    """
    [[text]] = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    try:
        tree = json.loads(text)
    except RecursionError:
        raise InputError("The statement is nested too deeply to be checked. Simplify it.") from None
    if tree.get("error") is not False or len(tree.get("statements", ())) != 1:
        raise InputError(f"The statement cannot be checked ({tree.get('error_message')}). Give one SELECT.")
    return tree


def _iterate_nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all dictionaries within a tree of dictionaries and lists."""
    left = [tree]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            yield item
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)


def _iterate_defined_names(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lower-case names of the tables that a node of the syntax tree defines with ``WITH``."""
    common = node.get("cte_map")
    entries = common.get("map", ()) if isinstance(common, dict) else ()
    for name in (*(entry.get("key") for entry in entries), node.get("cte_name"), node.get("ctename")):
        if isinstance(name, str) and _PLAIN.fullmatch(name):
            yield name.lower()


def _check_node(node: Mapping[str, Any], own: set[str]) -> None:
    """Raise an error if a node of the syntax tree is not allowed, or names a forbidden table or function.

    Args:
        node: the node.
        own: names of the tables that the statement defines with ``WITH``.
    """
    kind, expression = node.get("type"), node.get("class")
    if any(key.endswith("info_type") for key in node):
        raise _make_not_read_only_error(str(next(node[key] for key in node if key.endswith("info_type"))))
    if isinstance(expression, str):
        if expression not in _EXPRESSIONS:
            raise _make_not_read_only_error(expression)
        if expression in ("FUNCTION", "WINDOW") and "function_name" in node:
            _check_function(str(node["function_name"]))
    elif isinstance(kind, str):
        if kind not in _NODES:
            raise _make_not_read_only_error(kind)
        if kind == "BASE_TABLE":
            _check_table(node, own)
        elif kind == "TABLE_FUNCTION":
            _check_table_function(node)
        elif kind == "SHOW_REF":
            _check_show(node, own)


def _check_table(node: Mapping[str, Any], own: set[str]) -> None:
    catalog, schema, name = (str(node.get(key) or "") for key in ("catalog_name", "schema_name", "table_name"))
    known = {*NAMES, *TABLE_FUNCTIONS} if schema.lower() in _SCHEMAS else set[str]()
    if schema.lower() == "information_schema":
        known = _INFORMATION
    if catalog.lower() not in _CATALOGS or name.lower() not in (known if schema else known | own):
        raise UnknownNameError("table", ".".join(filter(None, (catalog, schema, name))), NAMES, where="the catalog")


def _check_table_function(node: Mapping[str, Any]) -> None:
    function = node.get("function")
    name = str(function.get("function_name", "")) if isinstance(function, dict) else ""
    if name.lower() not in TABLE_FUNCTIONS:
        raise _make_forbidden_read_error(f"{name}() is refused")


def _check_function(name: str) -> None:
    if name.lower() in REFUSED_FUNCTIONS or name.startswith("__internal"):
        raise _make_forbidden_read_error(f"{name}() is refused")


def _check_show(node: Mapping[str, Any], own: set[str]) -> None:
    """Check the name in ``DESCRIBE`` and ``SHOW``.

    DuckDB would also accept the name of one of its settings, and show its value.

    Args:
        node: node of the syntax tree.
        own: names of the tables that the statement defines with ``WITH``.

    Raises:
        UnknownNameError: If the name is not a view or a table of the statement.
    """
    name = str(node.get("table_name") or "").strip('"').lower()
    if name and name not in {*NAMES, *own, *_SHOWN}:
        raise UnknownNameError("table", name, NAMES, where="the catalog")


def _make_not_read_only_error(kind: str) -> InputError:
    word = kind.removesuffix("_QUERY_NODE").removesuffix("_INFO").replace("_", " ")
    return InputError(
        f"{word} is not allowed: statements only read, and only twinloop's commands change the catalog. Give one "
        "SELECT; write a PIVOT within it."
    )


def _make_forbidden_read_error(what: str) -> InputError:
    return InputError(
        f"A statement can read only the catalog's views, no files and no settings ({what}). "
        "`twinloop query --help` lists the views."
    )
