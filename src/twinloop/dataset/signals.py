"""Store the sensor signals of an episode, and the simulation of an imported log, in a dataset, and read them back.

A signal that all episodes have becomes the feature ``observation.NAME`` (``observation.pose.cube``), sampled at
the frames. Orientations are interpolated spherically, switches and throttles are held, and all other signals
are interpolated linearly; outside the signal's times, its first or last value is used. The side table
``signals`` keeps every signal with its original times (`signals_table`).

The samples of a simulated sensor are in the side table ``readings/NAME``; the feature ``observation.KIND.NAME``
has the sensor's kind in its name. An IMU gives ``angular_velocity/NAME`` and ``acceleration/NAME``, a
force/torque sensor ``wrench/NAME``, and servos give ``joint_velocity``, ``joint_current``, ``joint_load``,
``joint_voltage`` and ``joint_temperature``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.contract import ENVIRONMENT
from twinloop.core.records import Episode, LoggedSignal, StoredSimulation
from twinloop.core.units import UnitMap
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.resampling import HELD, hold, interpolate, interpolate_rotation
from twinloop.dataset.spec import ReadingSpec

_TRACKER = ENVIRONMENT.removeprefix("observation.")
_POSE_UNITS = ("m", "m", "m", "1", "1", "1", "1")
_MIXED = {"pose": _POSE_UNITS, "twist": ("m/s",) * 3 + ("rad/s",) * 3, "wrench": ("N",) * 3 + ("N·m",) * 3}


def find_shared_signals(episodes: Sequence[Episode]) -> dict[str, ReadingSpec]:
    """Return a feature for each signal that all episodes have with the same columns and unit, by signal name."""
    first = episodes[0].signals
    same = [
        name
        for name, signal in first.items()
        if all(
            name in e.signals and _have_same_columns(e.signals[name], signal) and len(e.signals[name]) for e in episodes
        )
    ]
    return {
        name: ReadingSpec(
            name=name.replace("/", "."), columns=first[name].columns, units=column_units(name, first[name])
        )
        for name in same
    }


def sample_at_frames(name: str, signal: LoggedSignal, time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Resample a signal at the frames of an episode.

    Args:
        name: Name of the signal, which determines whether values are held or interpolated.
        signal: Signal with k columns.
        time: Times of the T frames in s, shape ``(T,)``.

    Returns:
        Values at the frames, shape ``(T, k)``.
    """
    if name in HELD:
        return hold(signal.time, signal.values, time)
    if not name.startswith("pose/"):
        return interpolate(signal.time, signal.values, time)
    position = interpolate(signal.time, signal.values[:, :3], time)
    return np.concatenate([position, interpolate_rotation(signal.time, signal.values[:, 3:], time)], axis=1)


def compute_readings(log: Episode, specs: Mapping[str, ReadingSpec]) -> dict[str, NDArray[np.float64]]:
    """Return the signals of one episode, sampled at its frames, by feature key.

    Args:
        log: Episode with T frames.
        specs: Dataset features by signal name.

    Returns:
        Values of shape ``(T, k)`` for a signal with k columns.
    """
    return {spec.key: sample_at_frames(name, log.signals[name], log.time) for name, spec in specs.items()}


def _have_same_columns(one: LoggedSignal, other: LoggedSignal) -> bool:
    return (one.columns, one.unit) == (other.columns, other.unit)


def tracked_unit(name: str) -> str:
    """Return the unit of a tracked value: m for positions, 1 for cosine and sine of headings, "" if unknown."""
    return {"x": "m", "y": "m", "z": "m", "cos": "1", "sin": "1"}.get(name.rpartition(".")[2], "")


def column_units(name: str, signal: LoggedSignal) -> tuple[str, ...]:
    """Return the unit of each column of a signal; "" if unknown.

    The units of poses, twists and wrenches, which have no common unit, follow from the name of the signal.
    """
    if signal.unit:
        return (signal.unit,) * len(signal.columns)
    if name == _TRACKER:
        return tuple(map(tracked_unit, signal.columns))
    units = _MIXED.get(name.partition("/")[0], ())
    return units if len(units) == len(signal.columns) else ("",) * len(signal.columns)


_SAMPLES = "readings/"
_TRIADS = {"gyro": "angular_velocity", "accel": "acceleration"}


def read_generated_signals(reader: DatasetReader, index: int) -> dict[str, LoggedSignal]:
    """Return the sensor signals of a simulated episode at their sampling times, by signal name.

    The result is empty if the dataset stores no sensor samples.
    """
    tables = set(reader.side_tables)
    found: dict[str, LoggedSignal] = {}
    for spec in reader.spec.readings:
        kind, _, name = spec.name.partition(".")
        if _SAMPLES + name not in tables:
            continue
        rows = reader.side_rows(_SAMPLES + name, index, ["time", "values"])
        time = rows["time"].to_numpy()
        values = np.array(rows["values"].to_pylist(), dtype=np.float64).reshape(-1, len(spec.columns))
        for signal, columns in _split_sensor(kind, name, spec):
            units = {spec.units[column] for column in columns}
            found[signal] = LoggedSignal(
                time=time,
                values=values[:, columns],
                columns=tuple(_short_name(kind, spec.columns[column]) for column in columns),
                unit=units.pop() if len(units) == 1 else "",
            )
    return found


def _split_sensor(kind: str, name: str, spec: ReadingSpec) -> Iterator[tuple[str, list[int]]]:
    """Yield the name of each signal of a sensor and the indices of its columns.

    Args:
        kind: Kind of the sensor: ``imu``, ``force_torque`` or a kind of servo.
        name: Name of the sensor.
        spec: Dataset feature with the readings of the sensor.
    """
    if kind == "force_torque":
        yield f"wrench/{name}", list(range(len(spec.columns)))
        return
    stems = dict.fromkeys(_signal_stem(kind, column) for column in spec.columns)
    for stem in stems:
        columns = [i for i, column in enumerate(spec.columns) if _signal_stem(kind, column) == stem]
        yield (f"{_TRIADS[stem]}/{name}" if kind == "imu" else f"joint_{stem}"), columns


def _signal_stem(kind: str, column: str) -> str:
    """Return the quantity of a sensor column: ``gyro`` for ``gyro.x``, ``velocity`` for ``elbow_flex.velocity``."""
    first, _, last = column.rpartition(".")
    return first if kind == "imu" else last


def _short_name(kind: str, column: str) -> str:
    """Return the column name within its signal: ``x`` for ``gyro.x``, ``elbow_flex`` for ``elbow_flex.velocity``.

    Columns of force/torque sensors keep their names.
    """
    first, _, last = column.rpartition(".")
    return column if kind == "force_torque" else last if kind == "imu" else first


SIMULATION_TABLE = "simulation"
_ASSETS = pa.list_(pa.struct([("name", pa.string()), ("content", pa.binary())]))


def simulation_table(numbers: Sequence[int], logs: Sequence[Episode]) -> pa.Table:
    """Return a side table of stored simulations (MJCF model, states and controls), one row per episode.

    Args:
        numbers: Number of each episode in the dataset.
        logs: Episodes; those without a simulation get no row.
    """
    rows = [(number, log.simulation) for number, log in zip(numbers, logs, strict=True) if log.simulation is not None]
    simulations = [simulation for _, simulation in rows]
    controls = [None if item.controls is None else item.controls.ravel() for item in simulations]
    return pa.table(
        {
            "number": pa.array([number for number, _ in rows], pa.int64()),
            "model": pa.array([item.model for item in simulations], pa.string()),
            "spec": pa.array([item.spec for item in simulations], pa.int64()),
            "width": pa.array([item.states.shape[1] for item in simulations], pa.int64()),
            "states": pa.array([item.states.ravel() for item in simulations], pa.list_(pa.float64())),
            "controls_shape": pa.array(
                [None if item.controls is None else item.controls.shape for item in simulations], pa.list_(pa.int64())
            ),
            "controls": pa.array(controls, pa.list_(pa.float64())),
            "notes": pa.array([list(item.notes) for item in simulations], pa.list_(pa.string())),
            "assets": pa.array(
                [[{"name": name, "content": data} for name, data in item.assets.items()] for item in simulations],
                _ASSETS,
            ),
        }
    )


def read_stored_simulation(reader: DatasetReader, index: int) -> StoredSimulation | None:
    """Return the simulator states and model that the import stored with an episode; None if it stored none."""
    if SIMULATION_TABLE not in reader.side_tables:
        return None
    for row in reader.side_rows(SIMULATION_TABLE, index).to_pylist():
        controls = row["controls"]
        return StoredSimulation(
            model=row["model"],
            spec=row["spec"],
            states=np.array(row["states"], dtype=np.float64).reshape(-1, row["width"]),
            controls=None if controls is None else np.array(controls).reshape(row["controls_shape"]),
            notes=tuple(row["notes"]),
            assets={item["name"]: item["content"] for item in row["assets"]},
        )
    return None


TABLE = "signals"


def signals_table(numbers: Sequence[int], logs: Sequence[Episode]) -> pa.Table:
    """Return an additional Parquet table of all signals with their original times and values.

    It has one row per episode and signal.

    Args:
        numbers: Number of each episode in the dataset.
        logs: Episodes with their signals.
    """
    pairs = zip(numbers, logs, strict=True)
    rows = [(number, name, signal) for number, log in pairs for name, signal in log.signals.items()]
    return pa.table(
        {
            "number": pa.array([number for number, _, _ in rows], pa.int64()),
            "signal": pa.array([name for _, name, _ in rows], pa.string()),
            "unit": pa.array([signal.unit for _, _, signal in rows], pa.string()),
            "columns": pa.array([list(signal.columns) for _, _, signal in rows], pa.list_(pa.string())),
            "time": pa.array([signal.time for _, _, signal in rows], pa.list_(pa.float64())),
            "values": pa.array([signal.values.ravel() for _, _, signal in rows], pa.list_(pa.float64())),
        }
    )


def read_stored_signals(reader: DatasetReader, index: int) -> dict[str, LoggedSignal]:
    """Return the signals of an episode with their original times and values, by name; empty if none are stored."""
    if TABLE not in reader.side_tables:
        return {}
    found: dict[str, LoggedSignal] = {}
    for row in reader.side_rows(TABLE, index).to_pylist():
        columns = tuple(row["columns"])
        values = np.array(row["values"], dtype=np.float64).reshape(-1, len(columns))
        time = np.array(row["time"], dtype=np.float64)
        found[row["signal"]] = LoggedSignal(time=time, values=values, columns=columns, unit=row["unit"])
    return found


def restore_episode(reader: DatasetReader, index: int, *, units: UnitMap | None = None) -> Episode:
    """Return an episode of an imported log as it was before conversion.

    Signals, conditions, command type and stored simulation are included.

    Args:
        reader: Open dataset.
        index: ``episode_index`` of the episode.
        units: Unit map that replaces the unit map of the dataset.
    """
    extra = reader.provenance(index).extra
    return replace(
        reader.log_episode(index, units=units),
        command=extra.get("command", "position"),
        conditions=extra.get("conditions", {}),
        signals=read_stored_signals(reader, index),
        simulation=read_stored_simulation(reader, index),
    )
