"""Divide the error of a twin into shares of delay, amplitude (gain and offset) and shape.

For every lag on a grid, measured(t) is regressed on simulated(t − lag) with one gain and one offset per channel. The
lag with the smallest residual is the delay, for any gain. The share of the delay is the reduction of the squared error
by the shift. The share of amplitude is the further reduction by gain and offset. The remainder is the share of shape.

A window begins at the measured state. A delay has no effect there, so the first 0.5 s of a window are left out (at most
half of the window). At its end, a time as long as the longest lag is left out, so that all lags are compared on the
same frames. Commands are held between frames, and the motion is assumed to be smooth, so that a delay is accurate to a
twentieth of a frame.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

from twinloop.core.plain import JsonRecord
from twinloop.gap.dynamics.intervals import Resampling, sum_weighted
from twinloop.simulate.channels import MeasuredChannel
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import Interval

Array = NDArray[np.float64]
LONGEST = 0.25  # s, the longest lag in either direction
SETTLING = 0.5  # s after which a servo's initial state has no effect: several of its time constants
_LAGS = 30  # largest number of lags in either direction
_FINEST = 0.25  # frames, the smallest step of the grid
_LEAST_LAGS, _LEAST_FRAMES = 3, 3
_FLAT = 1e-12  # part of a channel's mean square: less variance counts as constant, a smaller error as rounding


@dataclass(frozen=True, kw_only=True)
class DelayResult(JsonRecord):
    """Delay of the measured motion behind the simulated motion, and its share of the squared error, by channel.

    Attributes:
        channels: The compared channels, n of them.
        delay: Delay in s, shape ``(n,)``; positive if the measured motion is later than the simulated one.
        gain: Ratio of measured to simulated amplitude after the delay is removed, shape ``(n,)``.
        offset: Measured − gain · simulated at the channel's mean, in its unit, shape ``(n,)``.
        shares: Shares of the squared error, shape ``(3, n)``: delay, amplitude, shape. They sum to 1.
        longest: Longest lag on the grid in s. A delay of this size may be longer in reality.
        frames: Number of compared frames.
    """

    json_names: ClassVar[Mapping[str, str | None]] = {"channels": None}

    channels: tuple[MeasuredChannel, ...]
    delay: Interval
    gain: Interval
    offset: Interval
    shares: Interval
    longest: float
    frames: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        shares = {"of": ["delay", "amplitude", "shape"], **self.shares.to_json()}
        return super().to_json() | {"shares": shares}


@dataclass(frozen=True, kw_only=True)
class LagSums:
    """Sums of simulated motion x and measured motion y at every lag, from which delays are computed.

    Both motions are relative to ``centre``. A row is an episode, a group of episodes or a window.

    Attributes:
        channels: The compared channels.
        centre: A value of each channel near its mean, shape ``(nchannel,)``.
        lags: Lags in s, shape ``(nlag,)``, from negative to positive.
        fixed: Number of frames, Σy and Σy², shape ``(3, nrow, nchannel)``.
        moved: Σx, Σx² and Σxy of the simulated motion at each lag, shape ``(3, nrow, nlag, nchannel)``.
    """

    channels: tuple[MeasuredChannel, ...]
    centre: Array
    lags: Array
    fixed: Array
    moved: Array

    @classmethod
    def of(
        cls,
        logs: ReplayLogs,
        simulated: Array,
        *,
        rows: NDArray[np.intp],
        nrow: int,
        centre: Array,
        length: float,
    ) -> LagSums:
        """Compute the sums, from which delays are estimated, of one portion of a log (some of its episodes).

        A row is the unit of resampling: an episode, a group of episodes or a window.

        Args:
            logs: Windows of the portion.
            simulated: Readings of one world, shape ``(nwindow, nframe, nchannel)``.
            rows: Row to which each window is added, shape ``(nwindow,)``.
            nrow: Number of rows of the whole log.
            centre: A value of each channel near its mean, shape ``(nchannel,)``.
            length: Length of a window in s; if windows are whole episodes, of the longest one.
        """
        hz = logs.twin.control_hz
        longest, first = min(LONGEST, length / 4) * hz, math.ceil(min(SETTLING, length / 2) * hz)
        count = min(_LAGS, int(longest / _FINEST)) if longest >= 1.0 else 0
        lags = np.linspace(-longest, longest, 2 * count + 1)
        y, motion = logs.measured[:, first:] - centre, _interpolate(simulated - centre, logs.ends)
        inside = first + np.arange(y.shape[1]) + longest < logs.ends[:, None] - 1
        present = ~np.isnan(y) & inside[..., None]
        y, moved = np.where(present, y, 0.0), []
        for lag in lags:
            at = np.clip(np.arange(first, first + y.shape[1]) - lag, 0.0, simulated.shape[1] - 1.0)
            shifted = np.where(present, motion(at), 0.0)
            moved.append(_sum_by_row(np.stack([shifted, shifted**2, shifted * y]), rows, nrow))
        return cls(
            channels=logs.channels,
            centre=centre,
            lags=lags / hz,
            fixed=_sum_by_row(np.stack([present.astype(np.float64), y, y * y]), rows, nrow),
            moved=np.stack(moved, axis=2),
        )

    def add_portion(self, other: LagSums) -> LagSums:
        """Add the sums of another portion of the log (some of its episodes), which has the same rows."""
        return replace(self, fixed=self.fixed + other.fixed, moved=self.moved + other.moved)

    def estimate_delays(self, resampling: Resampling) -> DelayResult | None:
        """Return delay, gain, offset and error shares (delay, amplitude, shape) of every channel with intervals.

        Args:
            resampling: Clusters of the rows, which are resampled for the intervals.

        Returns:
            None if windows are too short to be shifted, or if no channel moves.
        """
        frames = self.fixed[0].sum(axis=0)
        if len(self.lags) < _LEAST_LAGS or frames.max(initial=0.0) < _LEAST_FRAMES:
            return None

        found = resampling.interval(
            lambda weights: _compute_metrics(
                self.lags,
                [sum_weighted(weights, values) for values in self.fixed],
                [sum_weighted(weights, values) for values in self.moved],
            )
        )
        if np.isnan(found.estimate[0]).all():
            return None
        return DelayResult(
            channels=self.channels,
            delay=found.at(0),
            gain=found.at(1),
            offset=found.at(2),
            shares=replace(found, estimate=found.estimate[3:], low=found.low[3:], high=found.high[3:]),
            longest=float(self.lags[-1]),
            frames=int(frames.max()),
        )


def _interpolate(motion: Array, ends: NDArray[np.int64]) -> CubicSpline:
    """Interpolate a motion between frames by cubic splines, because linear interpolation would smooth it.

    Args:
        motion: Shape ``(nwindow, nframe, nchannel)``.
        ends: Number of frames of each window. After them the last value is held.

    Returns:
        Function of the frame number, which need not be an integer.
    """
    last = np.take_along_axis(motion, ends[:, None, None] - 1, axis=1)
    past = np.arange(motion.shape[1]) >= ends[:, None]
    return CubicSpline(np.arange(motion.shape[1]), np.where(past[..., None], last, motion), axis=1)


def _sum_by_row(values: Array, rows: NDArray[np.intp], nrow: int) -> Array:
    """Sum values over the frames of all windows that belong to the same row, shape ``(3, nrow, nchannel)``.

    A row is the unit of resampling: an episode, a group of episodes or a window.

    Args:
        values: Three values to sum for each frame and channel, shape ``(3, nwindow, nframe, nchannel)``.
        rows: Row of each window, shape ``(nwindow,)``.
        nrow: Number of rows.
    """
    sums = np.zeros((len(values), nrow, values.shape[-1]))
    np.add.at(sums.swapaxes(0, 1), rows, values.sum(axis=2).swapaxes(0, 1))
    return sums


def _compute_metrics(lags: Array, fixed: Sequence[Array], moved: Sequence[Array]) -> Array:
    """Return delay, gain, offset and three shares of the squared error for k resamples, shape ``(k, 6, nchannel)``.

    The shares are those of delay, amplitude (gain and offset) and shape (the remainder). A channel that does not move
    has NaN, and so do the shares of an error that is only rounding. x is the simulated motion, y the measured one.

    Args:
        lags: Lags in s, shape ``(nlag,)``.
        fixed: Number of frames, Σy and Σy², shape ``(k, nchannel)`` each.
        moved: Σx, Σx² and Σxy, shape ``(k, nlag, nchannel)`` each.
    """
    n, sy, syy = (values[:, None] for values in fixed)
    sx, sxx, sxy = moved
    with np.errstate(divide="ignore", invalid="ignore"):
        vx, vy, cxy = sxx - sx**2 / n, syy - sy**2 / n, sxy - sx * sy / n
        still = (vx <= _FLAT * sxx) | (vy <= _FLAT * syy) | (n < _LEAST_FRAMES)
        left = np.where(still, np.nan, np.maximum(vy - cxy**2 / vx, 0.0))
        best = np.argmin(np.where(np.isnan(left), np.inf, left), axis=1)[:, None]
        gain = np.take_along_axis(cxy / vx, best, axis=1)[:, 0]
        offset = (sy[:, 0] - gain * np.take_along_axis(sx, best, axis=1)[:, 0]) / n[:, 0]
        square = syy - 2 * sxy + sxx  # of measured − simulated
        zero = square[:, len(lags) // 2]
        zero = np.where(zero <= _FLAT * syy[:, 0], np.nan, zero)
        shape = np.take_along_axis(left, best, axis=1)[:, 0] / zero
        late = np.maximum(0.0, 1.0 - np.take_along_axis(square, best, axis=1)[:, 0] / zero)
        delay = np.take(lags, best[:, 0]) + _refine_minimum(left, best) * (lags[1] - lags[0])
    metrics = np.stack([delay, gain, offset, late, 1.0 - late - shape, shape], axis=1)
    return np.where(np.all(still, axis=1)[:, None], np.nan, metrics)


def _refine_minimum(values: Array, best: NDArray[np.intp]) -> Array:
    """Refine the position of the smallest value on a grid by the parabola through it and its neighbours.

    Args:
        values: Values on the grid of lags, shape ``(k, nlag, nchannel)``.
        best: Index of the smallest value along the lags, shape ``(k, 1, nchannel)``.

    Returns:
        Distance from the smallest value to the parabola's minimum in steps of the grid, shape ``(k, nchannel)``; 0 at
        the ends of the grid.
    """
    last = values.shape[1] - 1
    left, middle, right = (np.take_along_axis(values, np.clip(best + d, 0, last), axis=1)[:, 0] for d in (-1, 0, 1))
    curvature = left - 2 * middle + right
    inner = (best[:, 0] > 0) & (best[:, 0] < last) & (curvature > 0)
    return np.where(inner, 0.5 * (left - right) / np.where(inner, curvature, 1.0), 0.0)
