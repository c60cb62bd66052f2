"""Delay told apart from amplitude: what of a twin's error is lateness, what is gain and offset, what is neither.

For every lag on a grid, measured(t) is regressed on simulated(t − lag) with one gain and one offset per channel. The
lag with the smallest residual is the delay, whatever the gain; what the squared error loses by shifting is the delay's
share, what it then loses by gain and offset is amplitude's, and the residual is of the shape. A window begins at the
measured state, where a late twin is not late yet, so its first part is left out, and so is as much at its end as it is
shifted; all lags are compared on the same frames. Between frames commands are held and the motion is taken for smooth,
so that a delay is good to a twentieth of a frame.
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
from twinloop.gap.dynamics.intervals import Resampling, weighted
from twinloop.simulate.channels import MeasuredChannel
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import Interval

Array = NDArray[np.float64]
LONGEST = 0.25  # s, to either side
SETTLING = 0.5  # s after which a servo has forgotten its first state: several of its time constants
_LAGS = 30  # to either side, at most
_FINEST = 0.25  # of a frame: as fine as a servo's delay can be told
_LEAST_LAGS, _LEAST_FRAMES = 3, 3
_FLAT = 1e-12  # of a channel's variance, below which a regression on it says nothing


@dataclass(frozen=True, kw_only=True)
class DelayResult(JsonRecord):
    """How late reality is behind the twin, and how much of the squared error that is, by channel.

    Attributes:
        delay: s, positive where the measured motion comes later than the simulated.
        gain: measured over simulated amplitude, once the delay is removed.
        offset: measured − gain · simulated at the channel's mean, in its unit.
        shares: of the squared error, ``(3, nchannel)``: delay, amplitude, shape; they add up to 1.
        longest: s, the longest lag that was tried: a delay that reaches it may be longer.
        frames: how many were compared.
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
        """A plain form for files."""
        shares = {"of": ["delay", "amplitude", "shape"], **self.shares.to_json()}
        return super().to_json() | {"shares": shares}


@dataclass(frozen=True, kw_only=True)
class LagSums:
    """Sums of simulated and measured motion at every lag, row by row (of an episode or a window).

    ``fixed`` ``(3, nrow, nchannel)`` are frames, Σy and Σy² of the measured y, ``moved`` ``(3, nrow, nlag, nchannel)``
    Σx, Σx² and Σxy of the simulated x at each of the ``lags`` in s; both about ``centre`` ``(nchannel,)``.
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
        """The sums of one portion.

        Args:
            logs: the windows.
            simulated: one world's readings, ``(nwindow, nframe, nchannel)``.
            rows: the row of the sums that each window adds to, of ``nrow``.
            nrow: how many rows there are.
            centre: a value of each channel near its mean.
            length: of a window in s; of the longest where episodes are whole.
        """
        hz = logs.twin.control_hz
        longest, first = min(LONGEST, length / 4) * hz, math.ceil(min(SETTLING, length / 2) * hz)
        count = min(_LAGS, int(longest / _FINEST)) if longest >= 1.0 else 0
        lags = np.linspace(-longest, longest, 2 * count + 1)
        y, motion = logs.measured[:, first:] - centre, _between(simulated - centre, logs.ends)
        inside = first + np.arange(y.shape[1]) + longest < logs.ends[:, None] - 1
        present = ~np.isnan(y) & inside[..., None]
        y, moved = np.where(present, y, 0.0), []
        for lag in lags:
            at = np.clip(np.arange(first, first + y.shape[1]) - lag, 0.0, simulated.shape[1] - 1.0)
            shifted = np.where(present, motion(at), 0.0)
            moved.append(_by_row(np.stack([shifted, shifted**2, shifted * y]), rows, nrow))
        return cls(
            channels=logs.channels,
            centre=centre,
            lags=lags / hz,
            fixed=_by_row(np.stack([present.astype(np.float64), y, y * y]), rows, nrow),
            moved=np.stack(moved, axis=2),
        )

    def added(self, other: LagSums) -> LagSums:
        """The sums of two portions whose rows are the same."""
        return replace(self, fixed=self.fixed + other.fixed, moved=self.moved + other.moved)

    def delays(self, resampling: Resampling) -> DelayResult | None:
        """Every figure with its interval; None where windows are too short to be shifted, or nothing moves."""
        frames = self.fixed[0].sum(axis=0)
        if len(self.lags) < _LEAST_LAGS or frames.max(initial=0.0) < _LEAST_FRAMES:
            return None

        found = resampling.interval(
            lambda weights: _figures(
                self.lags,
                [weighted(weights, values) for values in self.fixed],
                [weighted(weights, values) for values in self.moved],
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


def _between(motion: Array, ends: NDArray[np.int64]) -> CubicSpline:
    """A motion ``(nwindow, nframe, nchannel)`` at any time in frames; lines in between would smooth it, lag by lag.

    Past its end a window stands still.
    """
    last = np.take_along_axis(motion, ends[:, None, None] - 1, axis=1)
    past = np.arange(motion.shape[1]) >= ends[:, None]
    return CubicSpline(np.arange(motion.shape[1]), np.where(past[..., None], last, motion), axis=1)


def _by_row(values: Array, rows: NDArray[np.intp], nrow: int) -> Array:
    """Sums of ``(3, nwindow, nframe, nchannel)`` over the frames of each row's windows, ``(3, nrow, nchannel)``."""
    sums = np.zeros((len(values), nrow, values.shape[-1]))
    np.add.at(sums.swapaxes(0, 1), rows, values.sum(axis=2).swapaxes(0, 1))
    return sums


def _figures(lags: Array, fixed: Sequence[Array], moved: Sequence[Array]) -> Array:
    """Delay, gain, offset and the three shares, ``(k, 6, nchannel)``; NaN in channels that do not move.

    Args:
        lags: ``(nlag,)``.
        fixed: frames, Σy, Σy² ``(k, nchannel)``.
        moved: Σx, Σx², Σxy ``(k, nlag, nchannel)``.
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
        delay = np.take(lags, best[:, 0]) + _beside(left, best) * (lags[1] - lags[0])
    figures = np.stack([delay, gain, offset, late, 1.0 - late - shape, shape], axis=1)
    return np.where(np.all(still, axis=1)[:, None], np.nan, figures)


def _beside(values: Array, best: NDArray[np.intp]) -> Array:
    """Where the parabola through the least value and its neighbours is lowest, in steps from it, ``(k, nchannel)``."""
    last = values.shape[1] - 1
    left, middle, right = (np.take_along_axis(values, np.clip(best + d, 0, last), axis=1)[:, 0] for d in (-1, 0, 1))
    bend = left - 2 * middle + right
    inner = (best[:, 0] > 0) & (best[:, 0] < last) & (bend > 0)
    return np.where(inner, 0.5 * (left - right) / np.where(inner, bend, 1.0), 0.0)
