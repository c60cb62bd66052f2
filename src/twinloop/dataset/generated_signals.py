"""What the sensors of a generated dataset reported, as the signals of its episodes.

A sensor's samples lie in the side table ``readings/NAME``, and its kind in the feature ``observation.KIND.NAME``. An
inertial unit becomes ``angular_velocity/NAME`` and ``acceleration/NAME``, a force/torque sensor ``wrench/NAME``, and
servos ``joint_velocity``, ``joint_current``, ``joint_load``, ``joint_voltage`` and ``joint_temperature``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from twinloop.core.records import Signal
from twinloop.dataset.reader import DatasetReader
from twinloop.dataset.spec import ReadingSpec

_SAMPLES = "readings/"
_TRIADS = {"gyro": "angular_velocity", "accel": "acceleration"}


def generated_signals(reader: DatasetReader, index: int) -> dict[str, Signal]:
    """Signals of a generated episode at the times at which the samples were taken; none where none were kept."""
    tables = set(reader.side_tables)
    found: dict[str, Signal] = {}
    for spec in reader.spec.readings:
        kind, _, name = spec.name.partition(".")
        if _SAMPLES + name not in tables:
            continue
        rows = reader.side_rows(_SAMPLES + name, index, ["time", "values"])
        time = rows["time"].to_numpy()
        values = np.array(rows["values"].to_pylist(), dtype=np.float64).reshape(-1, len(spec.columns))
        for signal, columns in _parts(kind, name, spec):
            units = {spec.units[column] for column in columns}
            found[signal] = Signal(
                time=time,
                values=values[:, columns],
                columns=tuple(_short(kind, spec.columns[column]) for column in columns),
                unit=units.pop() if len(units) == 1 else "",
            )
    return found


def _parts(kind: str, name: str, spec: ReadingSpec) -> Iterator[tuple[str, list[int]]]:
    """Each signal that a sensor gives, and its columns."""
    if kind == "force_torque":
        yield f"wrench/{name}", list(range(len(spec.columns)))
        return
    stems = dict.fromkeys(_stem(kind, column) for column in spec.columns)
    for stem in stems:
        columns = [i for i, column in enumerate(spec.columns) if _stem(kind, column) == stem]
        yield (f"{_TRIADS[stem]}/{name}" if kind == "imu" else f"joint_{stem}"), columns


def _stem(kind: str, column: str) -> str:
    """``gyro`` of ``gyro.x``; ``velocity`` of ``elbow_flex.velocity``."""
    first, _, last = column.rpartition(".")
    return first if kind == "imu" else last


def _short(kind: str, column: str) -> str:
    """``x`` of ``gyro.x``, ``elbow_flex`` of ``elbow_flex.velocity``; names of forces and torques as they are."""
    first, _, last = column.rpartition(".")
    return column if kind == "force_torque" else last if kind == "imu" else first
