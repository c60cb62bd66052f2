"""Answers as programs take them: whole numbers as whole numbers, and every value in a form that JSON has."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa


def numbers(answer: pa.Table) -> pa.Table:
    """An answer with DuckDB's decimals as numbers that everything reads.

    Sums of integers, 128 bits wide there, become int64 where all of them fit and stay exact decimals where not; decimal
    fractions such as ``1.5`` become float64.
    """
    for place, field in enumerate(answer.schema):
        if pa.types.is_decimal(field.type):
            try:
                column = answer.column(place).cast(pa.float64() if field.type.scale else pa.int64())
            except pa.ArrowInvalid:
                continue
            answer = answer.set_column(place, pa.field(field.name, column.type), column)
    return answer


def plain(value: Any) -> Any:
    """A value of an answer as JSON has it: times as ISO 8601, bytes in hex, whole decimals as integers."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
