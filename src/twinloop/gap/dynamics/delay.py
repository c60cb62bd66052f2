"""Separate the delay of a twin from its amplitude error: shares of delay, of gain and offset, and of the rest.

For every lag on a grid, measured(t) is regressed on simulated(t − lag) with one gain and one offset per channel. The
lag with the smallest residual is the delay, for any gain. The reduction of the squared error by the shift is the
share of the delay, the further reduction by gain and offset is the share of amplitude, the remainder is the share of
shape. A window begins at the measured state, where a delay has no effect yet; therefore its first part is left out, and
at its end as much as the longest shift. All lags are compared on the same frames. Commands are held between frames, and
the motion is assumed to be smooth, so that a delay is accurate to a twentieth of a frame.
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
LONGEST = 0.25  # s, to either side
SETTLING = 0.5  # s after which a servo's initial state has no effect: several of its time constants
_LAGS = 30  # to either side, at most
_FINEST = 0.25  # of a frame: the resolution of a servo's delay
_LEAST_LAGS, _LEAST_FRAMES = 3, 3
_FLAT = 1e-12  # of a channel's mean square: with less variance it counts as constant


@dataclass(frozen=True, kw_only=True)
class DelayResult(JsonRecord):
    """Delay of the real motion behind the twin, and its share of the squared error, by channel.

    Attributes:
        delay: s, positive if the measured motion is later than the simulated one.
        gain: ratio of measured to simulated amplitude after the delay is removed.
        offset: measured − gain · simulated at the channel's mean, in its unit.
        shares: of the squared error, ``(3, nchannel)``: delay, amplitude, shape; they sum to 1.
        longest: s, the longest lag on the grid: a delay of this size may be longer in reality.
        frames: number of compared frames.
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
    """Sums of simulated and measured motion at every lag, one row per episode or window.

    ``fixed`` ``(3, nrow, nchannel)`` has the number of frames, Σy and Σy² of the measured y. ``moved``
    ``(3, nrow, nlag, nchannel)`` has Σx, Σx² and Σxy of the simulated x at each of the ``lags`` in s. Both x and y are
    relative to ``centre`` ``(nchannel,)``.
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
        """Return the sums of one portion.

        Args:
            logs: the windows.
            simulated: readings of one world, ``(nwindow, nframe, nchannel)``.
            rows: the row of the sums, of ``nrow``, to which each window is added.
            nrow: number of rows.
            centre: a value of each channel near its mean.
            length: length of a window in s; of the longest one if episodes are whole.
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
        """Add the sums of another portion with the same rows."""
        return replace(self, fixed=self.fixed + other.fixed, moved=self.moved + other.moved)

    def estimate_delays(self, resampling: Resampling) -> DelayResult | None:
        """Return every metric with its interval; None if windows are too short to be shifted or nothing moves."""
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
    """Interpolate a motion ``(nwindow, nframe, nchannel)`` in time, in frames; linear interpolation would smooth it.

    After the end of a window the last value is held.
    """
    last = np.take_along_axis(motion, ends[:, None, None] - 1, axis=1)
    past = np.arange(motion.shape[1]) >= ends[:, None]
    return CubicSpline(np.arange(motion.shape[1]), np.where(past[..., None], last, motion), axis=1)


def _sum_by_row(values: Array, rows: NDArray[np.intp], nrow: int) -> Array:
    """Sum ``(3, nwindow, nframe, nchannel)`` over the frames of each row's windows, ``(3, nrow, nchannel)``."""
    sums = np.zeros((len(values), nrow, values.shape[-1]))
    np.add.at(sums.swapaxes(0, 1), rows, values.sum(axis=2).swapaxes(0, 1))
    return sums


def _compute_metrics(lags: Array, fixed: Sequence[Array], moved: Sequence[Array]) -> Array:
    """Return delay, gain, offset and the three shares, ``(k, 6, nchannel)``; NaN in channels that do not move.

    Args:
        lags: ``(nlag,)``.
        fixed: frames, Σy, Σy² of k resamples, ``(k, nchannel)``.
        moved: Σx, Σx², Σxy of k resamples, ``(k, nlag, nchannel)``.
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
        shape = np.take_along_axis(left, best, axis=1)[:, 0] / zero
        late = np.maximum(0.0, 1.0 - np.take_along_axis(square, best, axis=1)[:, 0] / zero)
        delay = np.take(lags, best[:, 0]) + _refine_minimum(left, best) * (lags[1] - lags[0])
    figures = np.stack([delay, gain, offset, late, 1.0 - late - shape, shape], axis=1)
    return np.where(np.all(still, axis=1)[:, None], np.nan, figures)


def _refine_minimum(values: Array, best: NDArray[np.intp]) -> Array:
    """Return the minimum of the parabola through the least value and its neighbours, ``(k, nchannel)``, in steps."""
    last = values.shape[1] - 1
    left, middle, right = (np.take_along_axis(values, np.clip(best + d, 0, last), axis=1)[:, 0] for d in (-1, 0, 1))
    bend = left - 2 * middle + right
    inner = (best[:, 0] > 0) & (best[:, 0] < last) & (bend > 0)
    return np.where(inner, 0.5 * (left - right) / np.where(inner, bend, 1.0), 0.0)
