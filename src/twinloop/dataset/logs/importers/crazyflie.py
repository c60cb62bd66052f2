"""Import logs that a Crazyflie writes to its µSD card (format version 2).

The file format, all values little-endian: byte 0xBC, uint16 version, uint16 number of event types. Then for
each event type: a uint16 id, its zero-terminated name, a uint16 number of variables, and each variable as
zero-terminated text ``name(t)``, where t is a letter of Python's `struct`. Then the records: uint16 id, uint64
time in µs, and the variables without padding. The last 4 bytes are a CRC-32 of everything before.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.core.records import LoggedSignal
from twinloop.core.units import UnitMap
from twinloop.dataset.logs.importers.protocol import Importer, LogOptions, RawEpisode
from twinloop.dataset.logs.importers.tables import require_readable_size

SITE = "imu"
_START, _VERSION, _CRC_BYTES = 0xBC, 2, 4
_GRAVITY = 9.80665  # m/s² per g, by definition (BIPM, SI brochure, 3rd CGPM 1901)
_PWM = 65535  # full throttle of motor.m1…m4 (uint16 in the firmware)
_MOST_BYTES = 1 << 30
_TYPES = {"b": "i1", "B": "u1", "h": "<i2", "H": "<u2", "i": "<i4", "I": "<u4", "l": "<i4", "L": "<u4"} | {
    "q": "<i8",
    "Q": "<u8",
    "e": "<f2",
    "f": "<f4",
    "d": "<f8",
}
_MOTORS = ("m1", "m2", "m3", "m4")
_AXES = ("x", "y", "z")


@dataclass(frozen=True, kw_only=True)
class EventTable:
    """All records of one event type.

    Attributes:
        name: Name of the event type.
        time: Times of n records in s on the drone's clock, shape ``(n,)``.
        columns: Values of each variable in the log's unit, shape ``(n,)``, by name.
    """

    name: str
    time: NDArray[np.float64]
    columns: dict[str, NDArray[np.float64]]


def recognizes(path: Path) -> bool:
    """Return whether a file begins with the start byte and version of a Crazyflie's µSD log."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(3) == struct.pack("<BH", _START, _VERSION)


def read(path: Path, options: LogOptions) -> list[RawEpisode]:
    """Return a log from a Crazyflie's µSD card as one episode without joints.

    Its signals are the IMU (rad/s, m/s²) and the throttles of the motors (0 to 1). Times count from the first record.

    Raises:
        LogError: If the file is damaged, or has neither IMU nor motor variables.
    """
    tables = read_events(path)
    signals: dict[str, LoggedSignal] = {}
    start = min((float(table.time[0]) for table in tables if len(table.time)), default=0.0)
    for table in tables:
        for name, kind in _find_signals(table.columns).items():
            columns, scale, unit, labels = kind
            values = np.stack([table.columns[column] for column in columns], axis=1) * scale
            signals[name] = LoggedSignal(time=table.time - start, values=values, columns=labels, unit=unit)
    if not signals:
        held = ", ".join(f"{table.name}: {', '.join(table.columns)}" for table in tables)
        raise LogError(f"{path} holds neither gyro.x, y, z nor acc.x, y, z nor motor.m1 to m4. It has {held}.")
    time = max(signals.values(), key=len).time
    nothing = np.empty((len(time), 0))
    return [
        RawEpisode(
            index=0,
            time=time,
            action=nothing,
            state=nothing,
            units=UnitMap(joints=(), source="a body without joints"),
            task=options.task,
            origin=options.origin or str(path),
            robot_type=options.robot_type or "crazyflie",
            command="none",
            signals=signals,
        )
    ]


def read_events(path: Path) -> list[EventTable]:
    """Return the records of all event types of a log, with the variables in the log's units.

    Raises:
        LogError: If the file has another format or version, an unknown variable type or a wrong checksum, or is
            truncated.
    """
    data = require_readable_size(path, _MOST_BYTES).read_bytes()
    if len(data) < 5 + _CRC_BYTES or data[:3] != struct.pack("<BH", _START, _VERSION):
        raise LogError(f"{path} is not a µSD log of a Crazyflie (format version {_VERSION}).")
    body, (written,) = data[:-_CRC_BYTES], struct.unpack("<I", data[-_CRC_BYTES:])
    if zlib.crc32(body) != written:
        raise LogError(f"{path} is damaged or was cut off: its checksum differs. Copy it from the card again.")
    try:
        types, position = _read_header(body)
        return _read_records(body, types, position)
    except (struct.error, ValueError, KeyError, IndexError) as error:
        raise LogError(f"{path} is damaged ({type(error).__name__}: {error}).") from error


def _read_header(body: bytes) -> tuple[dict[int, tuple[str, np.dtype]], int]:
    """Return name and record type of each event type by its id, and the byte offset of the first record."""
    (count,), position = struct.unpack_from("<H", body, 3), 5
    types: dict[int, tuple[str, np.dtype]] = {}
    for _ in range(count):
        (number,) = struct.unpack_from("<H", body, position)
        name, position = _read_text(body, position + 2)
        (variables,) = struct.unpack_from("<H", body, position)
        position += 2
        fields = [("id", "<u2"), ("time", "<u8")]
        for _ in range(variables):
            text, position = _read_text(body, position)
            match = re.fullmatch(r"(.+)\((.)\)", text)
            if match is None or match[2] not in _TYPES:
                raise ValueError(f"event {name} has a variable {text!r} of no known type")
            fields.append((match[1], _TYPES[match[2]]))
        types[number] = (name, np.dtype(fields))
    return types, position


def _read_text(body: bytes, position: int) -> tuple[str, int]:
    end = body.index(b"\0", position)
    return body[position:end].decode("ascii"), end + 1


def _read_records(body: bytes, types: dict[int, tuple[str, np.dtype]], position: int) -> list[EventTable]:
    """Return the records of each event type.

    Args:
        body: Content of the file excluding the checksum.
        types: Name and record type of each event type, by id.
        position: Byte offset of the first record.
    """
    if len(types) == 1:
        ((number, (name, dtype)),) = types.items()
        count, rest = divmod(len(body) - position, dtype.itemsize)
        rows = np.frombuffer(body, dtype, count, position)
        if rest or (rows["id"] != number).any():
            raise ValueError("the records do not fill the file")
        return [_event_table(name, rows)]
    starts: dict[int, list[int]] = {number: [] for number in types}
    while position < len(body):
        (number,) = struct.unpack_from("<H", body, position)
        starts[number].append(position)
        position += types[number][1].itemsize
    return [
        _event_table(types[number][0], _gather_records(body, types[number][1], at)) for number, at in starts.items()
    ]


def _gather_records(body: bytes, dtype: np.dtype, starts: Iterable[int]) -> NDArray:
    return np.frombuffer(b"".join(body[at : at + dtype.itemsize] for at in starts), dtype)


def _event_table(name: str, rows: NDArray) -> EventTable:
    names = [field for field in rows.dtype.names or () if field not in ("id", "time")]
    columns = {field: rows[field].astype(np.float64) for field in names}
    return EventTable(name=name, time=rows["time"].astype(np.float64) * 1e-6, columns=columns)


def _find_signals(columns: dict[str, NDArray[np.float64]]) -> dict[str, tuple[list[str], float, str, tuple[str, ...]]]:
    """Return the signals of an event type by name: their variables, factor to SI, unit and column labels.

    Args:
        columns: Values of all variables of the event type, by name.
    """
    known = {
        f"angular_velocity/{SITE}": ("gyro", _AXES, math.pi / 180, "rad/s"),
        f"acceleration/{SITE}": ("acc", _AXES, _GRAVITY, "m/s²"),
        "motor": ("motor", _MOTORS, 1 / _PWM, "1"),
    }
    return {
        name: ([f"{group}.{part}" for part in parts], scale, unit, parts)
        for name, (group, parts, scale, unit) in known.items()
        if all(f"{group}.{part}" in columns for part in parts)
    }


IMPORTER = Importer(name="crazyflie", recognizes=recognizes, read=read)
