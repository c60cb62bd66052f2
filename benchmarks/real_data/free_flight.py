"""What the recorded tosses and drops share: speeds that are half a frame old, and errors over whole flights.

Both sets give as velocity the last frame's backward difference of the positions, which is the velocity half a frame
before: in the falls of 367 tosses and 60 drops the coming step is off it by just one frame's fall (64 and 38 mm/s),
the last step by a tenth of that at most. The spin of a fall is constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.records import Episode, LoggedSignal
from twinloop.identify.assembly import limit_physics_rate
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions, prepare_replay
from twinloop.twin import Twin

Array = NDArray[np.float64]
GRAVITY = 9.81  # m/s²
_LOST = 1e3  # m or rad: what a flight that diverges is off by


def with_speeds_at_frames(episode: Episode, signal: str, column: str) -> Episode:
    """The episode with the fall of half a frame added to a signal's upward speed."""
    told = episode.signals[signal]
    values = told.values.copy()
    values[:, told.columns.index(column)] -= GRAVITY * 0.5 * float(np.median(np.diff(episode.time)))
    made = LoggedSignal(time=told.time, values=values, columns=told.columns, unit=told.unit)
    return replace(episode, signals={**episode.signals, signal: made})


def flight_readings(
    twin: Twin,
    episodes: Sequence[Episode],
    options: ReplayOptions,
    values: Mapping[str, ArrayLike],
    backend: Backend,
    *,
    physics_hz: float,
    local: Array | None = None,
) -> tuple[ReplayLogs, Array]:
    """Whole flights as logs, and as the twin replays them, ``(nworld, nepisode, nframe, nchannel)``.

    ``values`` are one value per world; ``local`` corrects the first states, see `replay`. A flight that diverges is off
    by a kilometre or a thousand radians from there.
    """
    logs = limit_physics_rate(prepare_replay(twin, episodes, options), physics_hz)
    nworld = max((np.size(column) for column in values.values()), default=1)
    readings = replay(backend, logs, logs.twin.table(nworld, values), local)
    return logs, np.where(np.isinf(readings) & ~np.isnan(logs.measured), logs.measured + _LOST, readings)


def flight_errors(
    twin: Twin,
    episodes: Sequence[Episode],
    options: ReplayOptions,
    values: Mapping[str, float],
    backend: Backend,
    *,
    physics_hz: float,
    sizes: Callable[[Array], Array] = np.abs,
) -> Array:
    """Mean over each whole flight of how far replay and recording are apart, ``(nepisode, k)``.

    ``sizes`` makes the k figures of a frame of its residuals ``(…, nchannel)``.
    """
    logs, readings = flight_readings(twin, episodes, options, values, backend, physics_hz=physics_hz)
    return np.nanmean(sizes(readings[0] - logs.measured), axis=1)
