"""Tables brought to a declared schema: exactly its columns, in its order and types, or a sentence that says why not."""

# pyright: standard
# pyarrow has no stubs, and everything that touches a table would be of unknown type.
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from twinloop.core.errors import InputError, UnknownNameError


def conforming(
    rows: pa.Table,
    schema: pa.Schema,
    what: str,
    *,
    given: Mapping[str, Any] | None = None,
    meanings: Mapping[str, str] | None = None,
) -> pa.Table:
    """Rows with the columns of a schema; those that may be null may be missing.

    Args:
        rows: as they come.
        schema: names, types, and which columns may be null.
        what: the rows, for messages: "the table scores".
        given: columns that are one value throughout, where ``rows`` lacks them.
        meanings: what columns mean, for messages.

    Raises:
        UnknownNameError: a column that the schema does not have.
        InputError: a column is missing, of another type, or empty where it must not be.
    """
    for name in rows.column_names:
        if name not in schema.names:
            raise UnknownNameError("column", name, schema.names, where=what)
    filled = [_column(rows, field, what, given or {}, meanings or {}) for field in schema]
    return pa.Table.from_arrays(filled, schema=schema)


def _column(
    rows: pa.Table, field: pa.Field, what: str, given: Mapping[str, Any], meanings: Mapping[str, str]
) -> pa.ChunkedArray | pa.Array:
    told = f"{field.name} ({meanings[field.name]})" if field.name in meanings else field.name
    if field.name not in rows.column_names:
        value = given.get(field.name)
        if value is None and not field.nullable:
            raise InputError(f"Rows of {what} need a column {told}; these have {', '.join(rows.column_names)}.")
        return pa.repeat(pa.scalar(value, field.type), len(rows))
    values = rows[field.name]
    if values.null_count and not field.nullable:
        raise InputError(f"{values.null_count} of {len(rows)} rows of {what} have no {told}.")
    try:
        return values.cast(field.type)
    except pa.ArrowException as error:
        raise InputError(f"{field.name} of {what} is {field.type}, and {values.type} came: {error}.") from error
