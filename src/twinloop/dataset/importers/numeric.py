"""Tables of numbers in text: a header row of names, then rows of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from twinloop.core.documents import require_regular
from twinloop.core.errors import LogError
from twinloop.core.records import Signal
from twinloop.core.units import UnitMap
from twinloop.dataset.importers.options import stated_unit

_MOST_BYTES = 1 << 31  # a text log of half a day at 1 kHz; more does not fit in memory as numbers


def bounded(path: Path, most: int = _MOST_BYTES) -> Path:
    """The path of a file of a size that can be read at once.

    Raises:
        InputError: it is missing, or no regular file.
        LogError: it is larger than ``most`` bytes.
    """
    require_regular(path)
    size = path.stat().st_size
    if size > most:
        raise LogError(f"{path} has {size:,} bytes, more than the {most:,} that are read at once. Split the log.")
    return path


def read_columns(path: Path, required: Sequence[str] = ()) -> dict[str, NDArray[np.float64]]:
    """The numeric columns of a CSV file by name; an empty cell is NaN, columns of text are left out.

    Raises:
        LogError: no rectangular table, a required column is missing or is text; names it.
    """
    try:
        table = pyarrow.csv.read_csv(bounded(path))
    except pa.ArrowInvalid as error:
        raise LogError(f"{path} is not a rectangular table of values ({error}).") from error
    columns = {name: table[name] for name in table.column_names}
    for name in required:
        if name not in columns:
            raise LogError(f"{path} has no column {name}. It has: {', '.join(columns)}.")
        if not is_numeric(columns[name].type):
            raise LogError(f"{path}: column {name} holds {columns[name].type} values where numbers should be.")
    return {name: as_floats(column) for name, column in columns.items() if is_numeric(column.type)}


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a column's type can be read as float64; a column without any value can."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)


def as_floats(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """A column as float64; an empty cell is NaN."""
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def stack(columns: dict[str, NDArray[np.float64]], names: Iterable[str]) -> NDArray[np.float64]:
    """Some columns side by side, ``(T, k)``."""
    return np.stack([columns[name] for name in names], axis=1)


def unit_map(units: dict[str, str], *, source: str) -> UnitMap:
    """The unit map of joints whose units, by name, are known."""
    return UnitMap(joints=tuple(stated_unit(joint, unit) for joint, unit in units.items()), source=source)


def signal(time: NDArray[np.float64], values: NDArray[np.float64], columns: Iterable[str], unit: str) -> Signal:
    """A signal; values ``(T,)`` are one column."""
    return Signal(time=time, values=values[:, None] if values.ndim == 1 else values, columns=tuple(columns), unit=unit)
