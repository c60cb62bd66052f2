"""Extract the longest part of an episode without gaps, on a uniform grid and unwrapped, for checks over time."""

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
    """The longest part of an episode without gaps.

    ``time`` ``(N,)`` in s is uniform with step ``dt``. ``state`` and ``action`` ``(N, n)`` are unwrapped, in the log's
    units, with NaN interpolated; ``action`` is None if the log has no commands.
    """

    time: NDArray[np.float64]
    dt: float
    state: NDArray[np.float64]
    action: NDArray[np.float64] | None

    @property
    def stride(self) -> int:
        """Number of frames over which movement is computed."""
        return max(1, min(round(_MOVEMENT_S / self.dt), len(self.time) // _PARTS))

    def movement(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the change of columns ``(N, …)`` over `stride` frames, ``(N − stride, …)``, by start frame."""
        return values[self.stride :] - values[: -self.stride]

    def moving_mean(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return columns ``(N, …)`` averaged by the trapezoid rule over `stride` frames, ``(N − stride, …)``.

        For a rate, the result times `stride` · `dt` corresponds to `moves` of the position.
        """
        sums = np.cumsum((values[1:] + values[:-1]) / 2, axis=0)
        sums = np.concatenate([np.zeros_like(sums[:1]), sums])
        return (sums[self.stride :] - sums[: -self.stride]) / self.stride

    def sample_signal(self, signal: LoggedSignal) -> NDArray[np.float64] | None:
        """Interpolate a signal linearly at the times of this series; None if it does not cover all of them."""
        time, rows = select_increasing(signal.time)
        if len(time) < _FEWEST or time[0] > self.time[0] + self.dt or time[-1] < self.time[-1] - self.dt:
            return None
        return _interpolate_finite(time, signal.values[rows], self.time)


def prepare_series(record: LogRecord, *, whole: bool = False) -> UnbrokenSeries | None:
    """Return the longest uninterrupted part of an episode with the motors on, or None if it is too short.

    Args:
        record: any episode, with all defects.
        whole: also with the motors off.
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
    """Return the finite times that are later than all earlier ones, and their row indices."""
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
    """Return start and stop row of the longest run of usable rows without a gap or a jump back in time."""
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
    """Return commands at given times: those of the segment, or of the whole episode if they have their own times."""
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
    """Interpolate columns at given times, ignoring values that are not finite; a column without a finite value is 0."""
    made = np.zeros((len(at), values.shape[1]))
    for column in range(values.shape[1]):
        good = np.isfinite(values[:, column])
        if good.any():
            kept = values[good, column]
            if turns is not None and np.isfinite(turns[column]):
                kept = unwrap_columns(kept[:, None], turns[column : column + 1])[:, 0]
            made[:, column] = np.interp(at, time[good], kept)
    return made
