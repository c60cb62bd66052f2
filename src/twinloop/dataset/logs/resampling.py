"""Resample episodes with irregular times to a uniform rate. Commands are held, measurements interpolated, gaps kept.

The signals are not low-pass filtered, so frequencies above half of the new rate are aliased. Choose a rate near
that of the log.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.units import UnitMap

GAP_FACTOR = 4.0  # a step longer than this many median steps is a gap: three frames in a row are missing (our choice)
_TURN = 2 * math.pi
HELD = ("motor", "enabled")  # signals that are commands or switches: values are held until the next one


def split_gaps(episode: Episode, *, longest_s: float | None = None) -> list[Episode]:
    """Split an episode at its time gaps. Each part keeps the episode's number and its times.

    The samples of a signal go to the part during which they were measured. A held signal (``motor``, ``enabled``)
    also keeps the value that is valid at the beginning of a part. Parts of a single frame are removed.

    Args:
        episode: Episode with increasing times.
        longest_s: Longest step in s that is not a gap; by default `GAP_FACTOR` (4) times the median step.
    """
    steps = np.diff(episode.time)
    if not len(steps):
        return []
    limit = GAP_FACTOR * float(np.median(steps)) if longest_s is None else longest_s
    cuts = [0, *(np.flatnonzero(steps > limit) + 1), len(episode)]
    return [_slice_episode(episode, int(a), int(b)) for a, b in itertools.pairwise(cuts) if b - a >= 2]


def resample(episode: Episode, rate_hz: float, *, longest_gap_s: float | None = None) -> list[Episode]:
    """Resample an episode to uniform time grids, one grid per part between time gaps.

    Commands are held. Joint angles are unwrapped (also those of a log that wraps at ±180°) and interpolated
    linearly, orientations spherically, and other signals linearly. The signals ``motor`` and ``enabled`` are held.
    A signal is sampled at the new frames from its first to its last sample only; a held signal continues after its
    last sample.

    Args:
        episode: Episode with increasing times.
        rate_hz: Frames per second; each grid begins at the first time of its part.
        longest_gap_s: Longest step in s that is not a gap; by default `GAP_FACTOR` (4) times the median step.

    Raises:
        InputError: If the rate is not positive.
    """
    if not rate_hz > 0:
        raise InputError(f"The rate {rate_hz:g} Hz is not above 0. Give frames per second, such as 100.")
    return [_resample_piece(piece, rate_hz) for piece in split_gaps(episode, longest_s=longest_gap_s)]


def hold(time: ArrayLike, values: ArrayLike, at: ArrayLike) -> NDArray[np.float64]:
    """Return the last sample at or before each time (zero-order hold); the first sample if there is none before.

    Args:
        time: Times of the samples, increasing, shape ``(T,)``.
        values: Samples of k columns, shape ``(T, k)``.
        at: Requested times, shape ``(m,)``.

    Returns:
        Held values, shape ``(m, k)``.
    """
    moments = np.asarray(time, dtype=np.float64)
    # Tolerance for rounding errors between grid points and frame times.
    slack = 1e-9 * max(1.0, float(np.abs(moments).max(initial=0.0)))
    row = np.searchsorted(moments, np.asarray(at, dtype=np.float64) + slack, side="right") - 1
    return np.asarray(values, dtype=np.float64)[np.maximum(row, 0)]


def interpolate(time: ArrayLike, values: ArrayLike, at: ArrayLike) -> NDArray[np.float64]:
    """Interpolate columns linearly; before the first and after the last sample, that sample is returned.

    Args:
        time: Times of the samples, increasing, shape ``(T,)``.
        values: Samples of k columns, shape ``(T, k)``.
        at: Requested times, shape ``(m,)``.

    Returns:
        Interpolated values, shape ``(m, k)``.
    """
    columns = np.asarray(values, dtype=np.float64)
    made = [np.interp(at, time, column) for column in columns.T]  # pyright: ignore[reportArgumentType,reportCallIssue]
    return np.stack(made, axis=1) if made else np.empty((np.size(at), 0))


def interpolate_rotation(time: ArrayLike, wxyz: ArrayLike, at: ArrayLike) -> NDArray[np.float64]:
    """Interpolate quaternions spherically (slerp); before the first and after the last sample, that sample is returned.

    Args:
        time: Times of the samples, increasing, shape ``(T,)``.
        wxyz: Quaternions, shape ``(T, 4)``.
        at: Requested times, shape ``(m,)``.

    Returns:
        Unit quaternions wxyz, shape ``(m, 4)``, without sign changes from one to the next.
    """
    from scipy.spatial.transform import Rotation, Slerp  # loading it takes half a second

    quaternions = np.asarray(wxyz, dtype=np.float64)
    rotations = Rotation.from_quat(quaternions, scalar_first=True)
    moments = np.clip(np.asarray(at, dtype=np.float64), np.min(time), np.max(time))
    if len(quaternions) < 2:
        return np.repeat(quaternions, len(moments), axis=0)
    return _align_signs(Slerp(np.asarray(time, dtype=np.float64), rotations)(moments).as_quat(scalar_first=True))


def full_turns(units: UnitMap) -> NDArray[np.float64]:
    """Return the size of a full turn in the unit of each joint, shape ``(n,)`` for n joints.

    It is infinite for slide joints and for joints with an unknown unit.
    """
    angular = [unit.scale is not None and unit.unit not in ("m", "cm", "mm") for unit in units.joints]
    pairs = zip(units.joints, angular, strict=True)
    return np.array([_TURN / abs(unit.scale) if turns and unit.scale else math.inf for unit, turns in pairs])


def unwrap_columns(values: ArrayLike, turns: ArrayLike) -> NDArray[np.float64]:
    """Unwrap angles: remove the jumps by full turns between successive rows.

    Args:
        values: Angles of n joints, shape ``(T, n)``.
        turns: Full turn in the unit of each column, shape ``(n,)``; an infinite turn leaves the column unchanged.
    """
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
    from_start = at[at >= signal.time[0] - slack]
    inside = from_start[from_start <= signal.time[-1] + slack]
    if name in HELD:
        return replace(signal, time=from_start, values=hold(signal.time, signal.values, from_start))
    if name.startswith("pose/"):
        place = interpolate(signal.time, signal.values[:, :3], inside)
        values = np.hstack([place, interpolate_rotation(signal.time, signal.values[:, 3:], inside)])
    else:
        values = interpolate(signal.time, signal.values, inside)
    return replace(signal, time=inside, values=values)


def _align_signs(quaternions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the same rotations with signs such that each quaternion is near to the previous one."""
    flips = np.sum(quaternions[1:] * quaternions[:-1], axis=1) < 0
    sign = np.cumprod(np.where(flips, -1.0, 1.0))
    return np.concatenate([quaternions[:1], quaternions[1:] * sign[:, None]])
