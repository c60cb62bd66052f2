"""Replay the commands of an episode in the workspace's twin, to be shown beside what was measured."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ACTION, STATE
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.gap.dynamics.film_strips import measured_qpos
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay, replay_motion
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.studio.data import StudioData
from twinloop.twin import Twin, load_twin


@dataclass(frozen=True, kw_only=True)
class TwinReplay:
    """Motion of an episode as measured, and as the twin moves with the same commands from the same first frame.

    Attributes:
        logs: the episode in the form of a replay, as one window.
        predicted: channels of the twin in the channels' units, ``(nframe, nchannel)``.
        measured_qpos: generalized positions as measured, ``(nframe, nq)``; what was not measured is the twin's.
        twin_qpos: generalized positions of the twin, ``(nframe, nq)``.
    """

    logs: ReplayLogs
    predicted: NDArray[np.float64]
    measured_qpos: NDArray[np.float64]
    twin_qpos: NDArray[np.float64]

    def to_json(self) -> dict[str, Any]:
        """Return the channels with measured and predicted values, and the root mean square of their difference."""
        channels = []
        for number, channel in enumerate(self.logs.channels):
            measured, predicted = self.logs.measured[0, :, number], self.predicted[:, number]
            channels.append(
                {
                    "name": channel.name,
                    "unit": channel.unit,
                    "measured": _round(measured),
                    "predicted": _round(predicted),
                    "rmse": float(np.sqrt(np.nanmean((predicted - measured) ** 2))),
                }
            )
        return {"twin": self.logs.twin.name, "units": self.logs.units.source, "channels": channels}


def replay_in_twin(data: StudioData, episode_id: str) -> TwinReplay:
    """Replay an episode in the twin that the workspace names.

    If the log does not state how its joint units convert to radians, the twin's joint ranges are assumed, see
    `simulate.replay_logs.prepare_replay`.

    Raises:
        InputError: If the workspace names no twin, or the dataset states no joint units.
        LogError: If the episode lacks a joint of the twin.
    """
    name = _find_twin(data)
    reader, index = data.open_episode(episode_id)
    return _replay(reader, index, name, data.workspace.root)


def open_workspace_twin(data: StudioData) -> Twin:
    """Return the twin that the workspace names.

    Raises:
        InputError: If it names none.
    """
    return _open_twin(_find_twin(data), data.workspace.root)


def _find_twin(data: StudioData) -> str:
    name = data.workspace.config.get("twin")
    if not name:
        raise InputError("The workspace names no twin. Add `twin: NAME` to twinloop.yaml.")
    return str(name)


@functools.lru_cache(maxsize=4)
def _open_twin(name: str, root: Path) -> Twin:
    """Return the twin that a workspace names, by its name or by its path in the workspace."""
    return load_twin(str(root / name) if (root / name).is_file() else name)


@functools.lru_cache(maxsize=8)
def _replay(reader: DatasetReader, index: int, name: str, root: Path) -> TwinReplay:
    logs = prepare_replay(_open_twin(name, root), [_read_log(reader, index)])
    backend, params = open_backend("threads", nthread=1), logs.twin.table(1)
    twin_qpos = replay_motion(backend, logs, params).qpos[0]
    return TwinReplay(
        logs=logs,
        predicted=replay(backend, logs, params)[0, 0],
        measured_qpos=measured_qpos(logs, {}, twin_qpos),
        twin_qpos=twin_qpos,
    )


def _read_log(reader: DatasetReader, index: int) -> Episode:
    """Return an episode with its unrounded log if that is stored, else with the values of the dataset."""
    if reader.has_log(index):
        return reader.log_episode(index)
    units = reader.units
    if units is None:
        raise InputError(f"{reader.path} does not state the units of its joints. Import it with --units.")
    state = reader.array(index, STATE)
    return Episode(
        index=index,
        time=np.arange(len(state)) / reader.fps,
        action=reader.array(index, ACTION),
        state=state,
        units=units,
        origin=str(reader.path),
    )


def _round(values: NDArray[np.float64]) -> list[float | None]:
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in values]
