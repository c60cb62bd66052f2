"""Read numeric columns of text tables, and convert tables with a known column layout to episodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from twinloop.core.documents import require_regular
from twinloop.core.errors import LogError, UnknownNameError
from twinloop.core.records import POSE_COLUMNS, LoggedSignal
from twinloop.core.units import COMMANDED, CommandKind, UnitMap, parse_unit
from twinloop.dataset.logs.importers.protocol import LogOptions, RawEpisode

_MOST_BYTES = 1 << 31  # a text log of half a day at 1 kHz; more does not fit in memory as numbers


def require_readable_size(path: Path, most: int = _MOST_BYTES) -> Path:
    """Check that a file is small enough to be read at once, and return its path.

    Args:
        path: File.
        most: Largest size in bytes.

    Raises:
        InputError: If the file is missing or not a regular file.
        LogError: If the file is too large.
    """
    require_regular(path)
    size = path.stat().st_size
    if size > most:
        raise LogError(f"{path} has {size:,} bytes, more than the {most:,} that are read at once. Split the log.")
    return path


def read_columns(path: Path, required: Sequence[str] = ()) -> dict[str, NDArray[np.float64]]:
    """Read the numeric columns of a CSV file, by name. Empty cells are NaN, and text columns are left out.

    Args:
        path: CSV file.
        required: Columns that must exist and be numeric.

    Raises:
        LogError: If the table is not rectangular, or a required column is missing or text.
    """
    try:
        table = pyarrow.csv.read_csv(require_readable_size(path))
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
    """Return whether a column of this type can be converted to float64; an entirely empty column can."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)


def as_floats(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Convert a column to float64; empty cells become NaN."""
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def stack_columns(columns: dict[str, NDArray[np.float64]], names: Iterable[str]) -> NDArray[np.float64]:
    """Return the named columns, each of shape ``(T,)``, as one matrix ``(T, k)``."""
    return np.stack([columns[name] for name in names], axis=1)


def make_unit_map(units: dict[str, str], *, source: str) -> UnitMap:
    """Return the unit map of joints.

    Args:
        units: Unit name of each joint.
        source: Origin of the units, for messages.
    """
    return UnitMap(joints=tuple(parse_unit(joint, unit) for joint, unit in units.items()), source=source)


def make_signal(
    time: NDArray[np.float64], values: NDArray[np.float64], columns: Iterable[str], unit: str
) -> LoggedSignal:
    """Return a signal.

    Args:
        time: Times of T samples in s, shape ``(T,)``.
        values: Samples, shape ``(T, k)``, or ``(T,)`` for a single column.
        columns: Names of the columns.
        unit: Unit of all columns; "" if the columns have different units.
    """
    return LoggedSignal(
        time=time, values=values[:, None] if values.ndim == 1 else values, columns=tuple(columns), unit=unit
    )


Array = NDArray[np.float64]
Command = CommandKind | Literal["none"]
COMMANDS: tuple[Command, ...] = (*COMMANDED, "none")

# Units of measured columns: (SI unit, factor to it).
UNITS: dict[str, tuple[str, float]] = {
    "rad": ("rad", 1.0),
    "deg": ("rad", math.pi / 180),
    "rev": ("rad", 2 * math.pi),
    "m": ("m", 1.0),
    "cm": ("m", 1e-2),
    "mm": ("m", 1e-3),
    "rad/s": ("rad/s", 1.0),
    "deg/s": ("rad/s", math.pi / 180),
    "rpm": ("rad/s", 2 * math.pi / 60),
    "m/s": ("m/s", 1.0),
    "mm/s": ("m/s", 1e-3),
    "m/s^2": ("m/s²", 1.0),
    "m/s²": ("m/s²", 1.0),
    "g": ("m/s²", 9.80665),  # by definition (3rd CGPM, 1901)
    "N": ("N", 1.0),
    "Nm": ("N·m", 1.0),
    "N·m": ("N·m", 1.0),
    "mNm": ("N·m", 1e-3),
    "V": ("V", 1.0),
    "A": ("A", 1.0),
    "mA": ("A", 1e-3),
    "°C": ("°C", 1.0),
    "1": ("1", 1.0),
    "%": ("1", 1e-2),
    "s": ("s", 1.0),
    "ms": ("s", 1e-3),
    "us": ("s", 1e-6),
    "ns": ("s", 1e-9),
}

_XYZ = ("x", "y", "z")
# Signals whose columns have a fixed meaning: labels in order, unit of all ("" where they differ).
KNOWN: dict[str, tuple[tuple[str, ...], str]] = {
    "joint": (("position",), ""),
    "pose": (POSE_COLUMNS, ""),
    "twist": (("vx", "vy", "vz", "wx", "wy", "wz"), ""),
    "place": (_XYZ, "m"),
    "view": (("u", "v"), "1"),
    "acceleration": (_XYZ, "m/s²"),
    "angular_velocity": (_XYZ, "rad/s"),
    "wrench": (("fx", "fy", "fz", "tx", "ty", "tz"), ""),
}
_JOINTS = {"joint_velocity": ("rad/s", "m/s"), "joint_torque": ("N·m", "N")}
_OTHERS = {"enabled": ("1",), "motor": ("1",)}


@dataclass(frozen=True, kw_only=True)
class SignalColumns:
    """Columns of a table that form one signal.

    Attributes:
        columns: Names of the columns in the table, in order.
        labels: Names of the columns in the signal.
        factors: Factor of each column to SI units.
        unit: SI unit of all columns; "" if the columns have different units.
    """

    columns: tuple[str, ...]
    labels: tuple[str, ...]
    factors: tuple[float, ...]
    unit: str


@dataclass(frozen=True, kw_only=True)
class ColumnLayout:
    """Meaning of the columns of a table.

    Attributes:
        time: Column of the times.
        time_scale: Factor of the times to seconds.
        episode: Column of the episode numbers, if there is one.
        units: Units of the joints, in order.
        state: Column of each joint's position.
        action: Column of each joint's command; empty if there are no commands.
        command: Type of the commands.
        action_scale: Factor of each torque command to N·m or N, or of each velocity command to the joint's unit per
            second; empty for no conversion.
        signals: Columns of each signal, by its name.
        conditions: Values of experimental conditions in SI units, by name.
        task: Task of all episodes.
        robot_type: LeRobot's name of the robot.
    """

    time: str
    time_scale: float
    episode: str | None
    units: UnitMap
    state: tuple[str, ...]
    action: tuple[str, ...]
    command: Command
    action_scale: tuple[float, ...] = ()
    signals: Mapping[str, SignalColumns] = field(default_factory=dict[str, SignalColumns])
    conditions: Mapping[str, float] = field(default_factory=dict[str, float])
    task: str = ""
    robot_type: str = ""


def unit_factor(unit: str, *, where: str) -> tuple[str, float]:
    """Return the SI unit of a quantity given in ``unit``, and the factor from ``unit`` to it.

    Args:
        unit: Name of the unit, for example ``deg/s``.
        where: Beginning of the error message.

    Raises:
        UnknownNameError: If there is no such unit.
    """
    if unit not in UNITS:
        raise UnknownNameError("unit", unit, UNITS, where=where)
    return UNITS[unit]


def check_signal(name: str, labels: Sequence[str], units: Sequence[str], *, where: str) -> None:
    """Check that a signal has the columns and SI units that its name requires.

    Args:
        name: Name of the signal, for example ``pose/cube``.
        labels: Names of its columns.
        units: SI unit of each column.
        where: File, for messages.

    Raises:
        LogError: If the columns or units differ from the required ones.
    """
    kind, _, site = name.partition("/")
    if kind in KNOWN:
        wanted, unit = KNOWN[kind]
        if not site or tuple(labels) != wanted:
            raise LogError(f"{where}: {name} has the columns {', '.join(labels)}; {kind}/NAME has {', '.join(wanted)}.")
        if unit and set(units) != {unit}:
            raise LogError(f"{where}: {name} is in {', '.join(sorted(set(units)))}, which cannot become {unit}.")
    allowed = _JOINTS.get(name) or _OTHERS.get(name)
    if allowed and not set(units) <= set(allowed):
        raise LogError(f"{where}: {name} is in {', '.join(sorted(set(units)))}, which cannot become {allowed[0]}.")


def build_episodes(path: Path, table: pa.Table, layout: ColumnLayout, options: LogOptions) -> list[RawEpisode]:
    """Return the episodes of a table, in order of appearance.

    A row in which all columns of a signal are empty is not a sample of that signal. So each signal has its own
    times.

    Args:
        path: File, for messages and as the origin of the episodes.
        table: Cells of the table.
        layout: Meaning of the columns.
        options: Metadata that the caller gives.

    Raises:
        LogError: If a column is missing or text, or an episode number is not a whole number from 0.
    """
    time = column_numbers(path, table, layout.time) * layout.time_scale
    state = _stack_numbers(path, table, layout.state)
    action = _stack_numbers(path, table, layout.action) if layout.action else np.zeros_like(state)
    if layout.action_scale:
        action = action * layout.action_scale
    signals = {name: _stack_numbers(path, table, s.columns) * s.factors for name, s in layout.signals.items()}
    owner = _episode_of_rows(path, table, layout.episode)
    notes = _note_unread_columns(table, layout)
    return [
        RawEpisode(
            index=int(number),
            time=time[rows],
            action=action[rows],
            state=state[rows],
            units=layout.units,
            task=options.task or layout.task,
            origin=options.origin or str(path),
            robot_type=options.robot_type or layout.robot_type,
            command=layout.command,
            signals=_measured_signals(layout, signals, time, rows),
            conditions=layout.conditions,
            notes=notes,
        )
        for number in dict.fromkeys(owner.tolist())
        for rows in [owner == number]
    ]


def _note_unread_columns(table: pa.Table, layout: ColumnLayout) -> tuple[str, ...]:
    """Return a note that lists the columns that are not read; empty if all columns are read."""
    read = {layout.time, layout.episode, *layout.state, *layout.action}
    read.update(column for signal in layout.signals.values() for column in signal.columns)
    left = [name for name in table.column_names if name not in read]
    return (f"columns not read: {', '.join(left)}",) if left else ()


def _measured_signals(
    layout: ColumnLayout, values: Mapping[str, Array], time: Array, rows: NDArray[np.bool_]
) -> dict[str, LoggedSignal]:
    found: dict[str, LoggedSignal] = {}
    for name, columns in layout.signals.items():
        measured = rows & ~np.isnan(values[name]).all(axis=1)
        if measured.any():
            found[name] = LoggedSignal(
                time=time[measured], values=values[name][measured], columns=columns.labels, unit=columns.unit
            )
    return found


def _stack_numbers(path: Path, table: pa.Table, columns: Sequence[str]) -> Array:
    if not columns:
        return np.empty((table.num_rows, 0))
    return np.stack([column_numbers(path, table, column) for column in columns], axis=1)


def _episode_of_rows(path: Path, table: pa.Table, column: str | None) -> Array:
    """Return the episode number of each row; all 0 if ``column`` is None."""
    if column is None:
        return np.zeros(table.num_rows)
    owner = column_numbers(path, table, column)
    wrong = np.flatnonzero(~((owner >= 0) & (owner == np.floor(owner)) & np.isfinite(owner)))
    if len(wrong):
        raise LogError(
            f"{path}: {column} is {owner[wrong[0]]:g} in row {wrong[0] + 1} below the header ({len(wrong)} such rows). "
            "Episodes are whole numbers from 0."
        )
    return owner


def column_numbers(path: Path, table: pa.Table, name: str) -> Array:
    """Return a numeric column as float64; empty cells become NaN.

    Raises:
        LogError: If there is no such column, or it is text.
    """
    if name not in table.column_names:
        raise LogError(f"{path} has no column {name}. It has: {', '.join(table.column_names)}.")
    column = table[name]
    if not is_numeric(column.type):
        raise LogError(f"{path}: column {name} holds {column.type} values where numbers should be.")
    return as_floats(column)
