"""The side table ``signals`` of a recorded dataset: every signal of its log as it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from twinloop.core.records import Episode, Signal
from twinloop.core.units import UnitMap
from twinloop.dataset.reader import DatasetReader
from twinloop.dataset.simulation_table import stored_simulation

TABLE = "signals"


def signals_table(numbers: Sequence[int], logs: Sequence[Episode]) -> pa.Table:
    """Every signal of some episodes as it was measured, one row each."""
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


def stored_signals(reader: DatasetReader, index: int) -> dict[str, Signal]:
    """An episode's signals with their own times and numbers; none where the dataset keeps none."""
    if TABLE not in reader.side_tables:
        return {}
    found: dict[str, Signal] = {}
    for row in reader.side_rows(TABLE, index).to_pylist():
        columns = tuple(row["columns"])
        values = np.array(row["values"], dtype=np.float64).reshape(-1, len(columns))
        time = np.array(row["time"], dtype=np.float64)
        found[row["signal"]] = Signal(time=time, values=values, columns=columns, unit=row["unit"])
    return found


def restored(reader: DatasetReader, index: int, *, units: UnitMap | None = None) -> Episode:
    """A recorded episode as it was before it became a dataset: signals, conditions, kind of command and simulation."""
    extra = reader.provenance(index).extra
    return replace(
        reader.log_episode(index, units=units),
        command=extra.get("command", "position"),
        conditions=extra.get("conditions", {}),
        signals=stored_signals(reader, index),
        simulation=stored_simulation(reader, index),
    )
