"""Correct the velocities of recorded tosses and drops, and compute errors over whole flights.

Both data sets give as velocity the backward difference of positions, which is the velocity half a frame earlier. In the
falls of 367 tosses and 60 drops, the next position step differs from it by exactly the fall of one frame (64 and 38
mm/s), and the last step by at most a tenth of that. Angular velocity is constant during a fall.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.records import Episode, LoggedSignal
from twinloop.identify.physics_rate import limit_physics_rate
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions, prepare_replay
from twinloop.twin import Twin

Array = NDArray[np.float64]
GRAVITY = 9.81  # m/s²
_DIVERGED_ERROR = 1e3  # error of a diverged flight, m or rad


def with_speeds_at_frames(episode: Episode, signal: str, column: str) -> Episode:
    """Correct the upward velocity ``column`` of a signal for the fall during half a frame."""
    logged = episode.signals[signal]
    values = logged.values.copy()
    values[:, logged.columns.index(column)] -= GRAVITY * 0.5 * float(np.median(np.diff(episode.time)))
    made = LoggedSignal(time=logged.time, values=values, columns=logged.columns, unit=logged.unit)
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
    """Replay whole flights: return the logs, and readings ``(nworld, nepisode, nframe, nchannel)``.

    ``values`` have one value per world; ``local`` corrects the first states, see `replay`. After a flight diverges, its
    error is 1000 m or 1000 rad.
    """
    logs = limit_physics_rate(prepare_replay(twin, episodes, options), physics_hz)
    nworld = max((np.size(column) for column in values.values()), default=1)
    readings = replay(backend, logs, logs.twin.table(nworld, values), local)
    return logs, np.where(np.isinf(readings) & ~np.isnan(logs.measured), logs.measured + _DIVERGED_ERROR, readings)


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
    """Return the mean error of replay against recording over each whole flight, ``(nepisode, k)``.

    ``sizes`` maps residuals ``(…, nchannel)`` of a frame to its k error metrics.
    """
    logs, readings = flight_readings(twin, episodes, options, values, backend, physics_hz=physics_hz)
    return np.nanmean(sizes(readings[0] - logs.measured), axis=1)
