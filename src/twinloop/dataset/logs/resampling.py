"""Resample episodes with irregular times to a uniform rate: commands are held, measurements interpolated, gaps kept.

Nothing is filtered: frequencies above half of the new rate are aliased, so choose a rate near that of the log.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation, Slerp

from twinloop.core.errors import InputError
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.units import UnitMap

GAP_FACTOR = 4.0  # a step longer than this many median steps is a gap: three frames in a row are missing (our choice)
_TURN = 2 * math.pi
HELD = ("motor", "enabled")  # signals that are commands or switches: values are held until the next one


def split_gaps(episode: Episode, *, longest_s: float | None = None) -> list[Episode]:
    """Return the parts of an episode between its gaps, each with the episode's number and its own times.

    Signals belong to the part during which they were measured, held values also to the later parts. Parts of one frame
    are removed.

    Args:
        episode: with increasing times.
        longest_s: a longer step is a gap; by default `GAP_FACTOR` median steps.
    """
    steps = np.diff(episode.time)
    if not len(steps):
        return []
    limit = GAP_FACTOR * float(np.median(steps)) if longest_s is None else longest_s
    cuts = [0, *(np.flatnonzero(steps > limit) + 1), len(episode)]
    return [_slice_episode(episode, int(a), int(b)) for a, b in itertools.pairwise(cuts) if b - a >= 2]


def resample(episode: Episode, rate_hz: float, *, longest_gap_s: float | None = None) -> list[Episode]:
    """Resample an episode to uniform grids of ``rate_hz``, one per part between gaps.

    Commands are held. Joint angles are interpolated linearly after unwrapping (a log that wraps at ±180° becomes
    unwrapped), orientations spherically, other signals linearly; ``motor`` and ``enabled`` are held. Signals get the
    times of the frames, without those for which nothing was measured.

    Args:
        episode: with increasing times.
        rate_hz: frames per second; each grid begins at the first time of its part.
        longest_gap_s: a longer step is a gap; by default `GAP_FACTOR` median steps.

    Raises:
        InputError: the rate is not positive.
    """
    if not rate_hz > 0:
        raise InputError(f"A rate of {rate_hz:g} Hz is no grid. Give frames per second, such as 100.")
    return [_resample_piece(piece, rate_hz) for piece in split_gaps(episode, longest_s=longest_gap_s)]


def hold(time: ArrayLike, values: ArrayLike, at: ArrayLike) -> NDArray[np.float64]:
    """Return the last of ``values`` ``(T, k)`` at or before each time (zero-order hold); the first value before all."""
    moments = np.asarray(time, dtype=np.float64)
    # Tolerance for rounding errors between grid points and frame times.
    slack = 1e-9 * max(1.0, float(np.abs(moments).max(initial=0.0)))
    row = np.searchsorted(moments, np.asarray(at, dtype=np.float64) + slack, side="right") - 1
    return np.asarray(values, dtype=np.float64)[np.maximum(row, 0)]


def interpolate(time: ArrayLike, values: ArrayLike, at: ArrayLike) -> NDArray[np.float64]:
    """Interpolate columns of ``values`` ``(T, k)`` linearly; beyond the ends the end values are held."""
    columns = np.asarray(values, dtype=np.float64)
    made = [np.interp(at, time, column) for column in columns.T]  # pyright: ignore[reportArgumentType,reportCallIssue]
    return np.stack(made, axis=1) if made else np.empty((np.size(at), 0))


def interpolate_rotation(time: ArrayLike, wxyz: ArrayLike, at: ArrayLike) -> NDArray[np.float64]:
    """Interpolate wxyz quaternions ``(T, 4)`` spherically, with continuous signs; beyond the ends values are held."""
    quaternions = np.asarray(wxyz, dtype=np.float64)
    rotations = Rotation.from_quat(quaternions, scalar_first=True)
    moments = np.clip(np.asarray(at, dtype=np.float64), np.min(time), np.max(time))
    if len(quaternions) < 2:
        return np.repeat(quaternions, len(moments), axis=0)
    return _align_signs(Slerp(np.asarray(time, dtype=np.float64), rotations)(moments).as_quat(scalar_first=True))


def full_turns(units: UnitMap) -> NDArray[np.float64]:
    """Return a full turn in each joint's units, ``(n,)``; infinite for a slide joint or an unknown unit."""
    angular = [unit.scale is not None and unit.unit not in ("m", "cm", "mm") for unit in units.joints]
    pairs = zip(units.joints, angular, strict=True)
    return np.array([_TURN / abs(unit.scale) if turns and unit.scale else math.inf for unit, turns in pairs])


def unwrap_columns(values: ArrayLike, turns: ArrayLike) -> NDArray[np.float64]:
    """Unwrap columns ``(T, n)`` with full turns ``(n,)``; a column with an infinite turn is unchanged."""
    columns = np.array(values, dtype=np.float64)
    for column, turn in enumerate(np.asarray(turns, dtype=np.float64)):
        if np.isfinite(turn):
            columns[:, column] = np.unwrap(columns[:, column], period=turn)
    return columns


def _slice_episode(episode: Episode, first: int, stop: int) -> Episode:
    begin, end = episode.time[first], episode.time[stop - 1]
    signals = {}
    for name, signal in episode.signals.items():
        within = (signal.time >= begin) & (signal.time <= end)
        before = np.flatnonzero(signal.time <= begin)
        if name in HELD and len(before):
            within[before[-1]] = True  # the value that is held at the beginning of the part
        signals[name] = replace(signal, time=np.maximum(signal.time[within], begin), values=signal.values[within])
    rows = slice(first, stop)
    return replace(
        episode, time=episode.time[rows], action=episode.action[rows], state=episode.state[rows], signals=signals
    )


def _resample_piece(piece: Episode, rate_hz: float) -> Episode:
    span = float(piece.time[-1] - piece.time[0])
    at = piece.time[0] + np.arange(math.floor(span * rate_hz * (1 + 1e-12) + 1e-6) + 1) / rate_hz
    state = interpolate(piece.time, unwrap_columns(piece.state, full_turns(piece.units)), at)
    signals = {name: _resample_signal(name, signal, at) for name, signal in piece.signals.items()}
    return replace(piece, time=at, action=hold(piece.time, piece.action, at), state=state, signals=signals)


def _resample_signal(name: str, signal: LoggedSignal, at: NDArray[np.float64]) -> LoggedSignal:
    if not len(signal):
        return signal
    slack = 1e-9 * max(1.0, abs(float(signal.time[-1])))
    begun = at[at >= signal.time[0] - slack]
    inside = begun[begun <= signal.time[-1] + slack]
    if name in HELD:
        return replace(signal, time=begun, values=hold(signal.time, signal.values, begun))
    if name.startswith("pose/"):
        place = interpolate(signal.time, signal.values[:, :3], inside)
        values = np.hstack([place, interpolate_rotation(signal.time, signal.values[:, 3:], inside)])
    else:
        values = interpolate(signal.time, signal.values, inside)
    return replace(signal, time=inside, values=values)


def _align_signs(quaternions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the same rotations with the sign of each quaternion nearest to the previous one."""
    flips = np.sum(quaternions[1:] * quaternions[:-1], axis=1) < 0
    sign = np.cumprod(np.where(flips, -1.0, 1.0))
    return np.concatenate([quaternions[:1], quaternions[1:] * sign[:, None]])
