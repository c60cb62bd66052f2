"""The side table ``simulation`` of an imported dataset: models and states that came with its log, as they were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from twinloop.core.records import Episode, StoredSimulation
from twinloop.dataset.reader import DatasetReader

TABLE = "simulation"
_ASSETS = pa.list_(pa.struct([("name", pa.string()), ("content", pa.binary())]))


def simulation_table(numbers: Sequence[int], logs: Sequence[Episode]) -> pa.Table:
    """What the simulators of some episodes kept, one row each; none of those without."""
    rows = [(number, log.simulation) for number, log in zip(numbers, logs, strict=True) if log.simulation is not None]
    kept = [simulation for _, simulation in rows]
    controls = [None if item.controls is None else item.controls.ravel() for item in kept]
    return pa.table(
        {
            "number": pa.array([number for number, _ in rows], pa.int64()),
            "model": pa.array([item.model for item in kept], pa.string()),
            "spec": pa.array([item.spec for item in kept], pa.int64()),
            "width": pa.array([item.states.shape[1] for item in kept], pa.int64()),
            "states": pa.array([item.states.ravel() for item in kept], pa.list_(pa.float64())),
            "controls_shape": pa.array(
                [None if item.controls is None else item.controls.shape for item in kept], pa.list_(pa.int64())
            ),
            "controls": pa.array(controls, pa.list_(pa.float64())),
            "notes": pa.array([list(item.notes) for item in kept], pa.list_(pa.string())),
            "assets": pa.array(
                [[{"name": name, "content": data} for name, data in item.assets.items()] for item in kept], _ASSETS
            ),
        }
    )


def stored_simulation(reader: DatasetReader, index: int) -> StoredSimulation | None:
    """What an imported episode's simulator kept, or None."""
    if TABLE not in reader.side_tables:
        return None
    for row in reader.side_rows(TABLE, index).to_pylist():
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
