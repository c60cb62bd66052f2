"""Extract the longest part of an episode without gaps on a uniform time grid, for checks over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import LoggedSignal
from twinloop.dataset.logs.checks.finding import LogRecord
from twinloop.dataset.logs.resampling import GAP_FACTOR, full_turns, unwrap_columns

_FEWEST = 16  # least number of frames
_PARTS = 8  # least number of strides in a series
_MOVEMENT_S = 0.05  # s; movements are computed over this time: longer than a 30 Hz frame, shorter than servo latency


@dataclass(frozen=True, kw_only=True)
class UnbrokenSeries:
    """Longest part of an episode without time gaps, resampled to N frames of equal duration.

    Attributes:
        time: Times in s, shape ``(N,)``.
        dt: Time between frames in s.
        state: Measurements of n joints, shape ``(N, n)``, unwrapped, in the log's units; NaN is replaced by
            interpolation.
        action: Commands, shape ``(N, n)``, like ``state``; None if the log has no commands.
    """

    time: NDArray[np.float64]
    dt: float
    state: NDArray[np.float64]
    action: NDArray[np.float64] | None

    @property
    def stride(self) -> int:
        """Number of frames over which movements are computed: about 0.05 s, at least 1."""
        return max(1, min(round(_MOVEMENT_S / self.dt), len(self.time) // _PARTS))

    def movement(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the change of each column over the next `stride` frames.

        Args:
            values: Columns at the frames of the series, shape ``(N, …)``.

        Returns:
            Changes by their first frame, shape ``(N − stride, …)``.
        """
        return values[self.stride :] - values[: -self.stride]

    def moving_mean(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of each column over the next `stride` frames (about 0.05 s), by the trapezoidal rule.

        The mean of a velocity times ``stride * dt`` corresponds to the change of the position over the same frames.

        Args:
            values: Columns at the frames of the series, shape ``(N, …)``.

        Returns:
            Means by their first frame, shape ``(N − stride, …)``.
        """
        sums = np.cumsum((values[1:] + values[:-1]) / 2, axis=0)
        sums = np.concatenate([np.zeros_like(sums[:1]), sums])
        return (sums[self.stride :] - sums[: -self.stride]) / self.stride

    def sample_signal(self, signal: LoggedSignal) -> NDArray[np.float64] | None:
        """Interpolate a signal of k columns linearly at the times of this series.

        Returns:
            Values, shape ``(N, k)``; None if the signal does not cover the whole series.
        """
        time, rows = select_increasing(signal.time)
        if len(time) < _FEWEST or time[0] > self.time[0] + self.dt or time[-1] < self.time[-1] - self.dt:
            return None
        return _interpolate_finite(time, signal.values[rows], self.time)


def prepare_series(record: LogRecord, *, whole: bool = False) -> UnbrokenSeries | None:
    """Return the longest part of an episode without gaps and with the motors on; None if it is too short (16 frames).

    Args:
        record: Episode with all its defects.
        whole: Include the time with the motors off.
    """
    usable = np.isfinite(record.time) & (_enabled_mask(record) | whole)
    first, stop = _longest_stretch(record.time, usable)
    if stop - first < _FEWEST:
        return None
    time, rows = select_increasing(record.time[first:stop])
    dt = float(np.median(np.diff(time))) if len(time) > 1 else 0.0
    if dt <= 0:
        return None
    at = np.arange(time[0], time[-1] + dt / 2, dt)
    if len(at) < _FEWEST:
        return None
    turns = full_turns(record.units)
    state = _interpolate_finite(time, record.state[first:stop][rows], at, turns)
    return UnbrokenSeries(time=at, dt=dt, state=state, action=_sample_action(record, slice(first, stop), at, turns))


def select_increasing(time: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return the finite times that are later than all times before them, and their row indices."""
    finite = np.flatnonzero(np.isfinite(time))
    latest = np.maximum.accumulate(time[finite]) if len(finite) else time[finite]
    keep = finite[np.diff(latest, prepend=-np.inf) > 0] if len(finite) else finite
    return time[keep], keep


def _enabled_mask(record: LogRecord) -> NDArray[np.bool_]:
    signal = record.signals.get("enabled")
    if signal is None or not len(signal.time):
        return np.ones(len(record.time), dtype=np.bool_)
    row = np.searchsorted(signal.time, np.nan_to_num(record.time), side="right") - 1
    return signal.values[np.maximum(row, 0), 0] > 0


def _longest_stretch(time: NDArray[np.float64], usable: NDArray[np.bool_]) -> tuple[int, int]:
    """Return first row and stop row of the longest run of usable rows without a time gap or a jump back in time."""
    steps = np.diff(np.where(usable, time, np.nan))
    forward = steps[steps > 0]
    if not len(forward):
        return 0, 0
    broken = ~((steps >= 0) & (steps <= GAP_FACTOR * np.median(forward)))
    cuts = [0, *(np.flatnonzero(broken) + 1), len(time)]
    best = int(np.argmax(np.diff(cuts)))
    return int(cuts[best]), int(cuts[best + 1])


def _sample_action(
    record: LogRecord, stretch: slice, at: NDArray[np.float64], turns: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """Interpolate the commands of an episode at given times; None if there are no commands.

    Args:
        record: Episode with n joints.
        stretch: Rows of the uninterrupted part. Commands with their own times are taken from the whole episode.
        at: Times in s, shape ``(N,)``.
        turns: Full turn in the unit of each joint, shape ``(n,)``, for unwrapping; infinite for no unwrapping.
    """
    if record.command == "none" or not record.action.size:
        return None
    own = getattr(record, "action_time", None)
    own, action = (record.time[stretch], record.action[stretch]) if own is None else (own, record.action)
    time, rows = select_increasing(own)
    if not len(time):
        return None
    return _interpolate_finite(time, action[rows], at, turns if record.command == "position" else None)


def _interpolate_finite(
    time: NDArray[np.float64],
    values: NDArray[np.float64],
    at: NDArray[np.float64],
    turns: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Interpolate columns linearly at given times, ignoring values that are not finite.

    Args:
        time: Times of the rows in s, shape ``(T,)``.
        values: Columns, shape ``(T, k)``; a column without a finite value becomes 0.
        at: Requested times in s, shape ``(N,)``.
        turns: Full turn in the unit of each column, shape ``(k,)``, for unwrapping before interpolation.
    """
    made = np.zeros((len(at), values.shape[1]))
    for column in range(values.shape[1]):
        good = np.isfinite(values[:, column])
        if good.any():
            known = values[good, column]
            if turns is not None and np.isfinite(turns[column]):
                known = unwrap_columns(known[:, None], turns[column : column + 1])[:, 0]
            made[:, column] = np.interp(at, time[good], known)
    return made
