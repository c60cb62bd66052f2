"""Convert tables with LeRobot's columns to episodes, for LeRobot folders and Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from twinloop.core.errors import LogError
from twinloop.core.records import Source
from twinloop.core.units import UnitMap
from twinloop.dataset.lerobot.parquet import column_to_floats, require_columns
from twinloop.dataset.logs.importers.protocol import LogOptions, RawEpisode, frame_times, name_columns, resolve_units
from twinloop.dataset.spec import INDEX_FEATURES


class EpisodeBuilder:
    """Converter of tables with LeRobot's columns to the episodes of one log, all with the same joints and units.

    Args:
        where: Name of the log, for messages and as the origin of the episodes.
        options: Metadata that the caller gives.
        action_names: Column names of the action in the log, if any.
        state_names: Column names of the state in the log, if any.
        fps: Declared frame rate of the log in Hz, if any.
        units: Unit map of the log, if any. The caller's units replace it.
        robot_type: Robot type of the log.
        present: All columns of the log; a note of each episode lists the columns that are not read.
    """

    def __init__(
        self,
        where: str,
        options: LogOptions,
        *,
        action_names: Sequence[str] = (),
        state_names: Sequence[str] = (),
        fps: float | None = None,
        units: UnitMap | None = None,
        robot_type: str = "",
        present: Iterable[str] = (),
    ) -> None:
        self._where, self._options, self._fps = where, options, fps
        self._names = {"action": list(action_names), "state": list(state_names)}
        self._units = units if options.units is None else None
        self._robot_type = options.robot_type or robot_type
        left = [name for name in present if name not in (*self.columns, *INDEX_FEATURES)]
        self._notes = (f"features not read: {', '.join(left)}",) if left else ()

    @property
    def columns(self) -> list[str]:
        """Names of the required columns: action, state and timestamp."""
        return [self._options.action_key, self._options.state_key, "timestamp"]

    def build(self, index: int, table: pa.Table, *, task: str = "", source: Source = "real") -> RawEpisode:
        """Convert the rows of one episode.

        Args:
            index: Number of the episode.
            table: Rows of the episode with the required `columns`.
            task: Task of the episode, unless the caller gives one.
            source: Origin of the motion.

        Raises:
            LogError: If a column or joint is missing, or there is no row.
            UnitsError: If the units are unknown.
        """
        where = f"Episode {index} of {self._where}"
        require_columns(self.columns, table.column_names, where=where)
        if not table.num_rows:
            raise LogError(f"{where} is empty. Leave it out or record it again.")
        action = self._matrix(table, self._options.action_key, where)
        state = self._matrix(table, self._options.state_key, where)
        joints, action_columns = name_columns(self._names["action"], action.shape[1], self._options, where=where)
        shared = replace(self._options, joints=joints)  # the state may have further columns
        _, state_columns = name_columns(self._names["state"], state.shape[1], shared, where=where)
        if self._units is None:
            sample = state[:, state_columns]
            self._units = resolve_units(joints, self._options, where=self._where, sample=sample)
        time = column_to_floats(table["timestamp"], where=f"{where}: timestamp").reshape(-1)
        return RawEpisode(
            index=index,
            time=frame_times(time, self._fps),
            action=action[:, action_columns],
            state=state[:, state_columns],
            units=_select(self._units, joints),
            task=self._options.task or task,
            source=source,
            origin=self._options.origin or self._where,
            robot_type=self._robot_type,
            notes=self._notes,
        )

    def _matrix(self, table: pa.Table, key: str, where: str) -> np.ndarray:
        values = column_to_floats(table[key], where=f"{where}: {key}")
        return values[:, None] if values.ndim == 1 else values


def _select(units: UnitMap, joints: Sequence[str]) -> UnitMap:
    if units.names == tuple(joints):
        return units
    by_name = {unit.joint: unit for unit in units.joints}
    return UnitMap(joints=tuple(by_name[joint] for joint in joints), source=units.source)
