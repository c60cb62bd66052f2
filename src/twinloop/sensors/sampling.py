"""Compute sampling and delivery times of readings, and interpolate between recorded states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ROUND_OFF = 1e-9  # of a sampling period


def find_newest_sample(
    time: ArrayLike, *, rate: ArrayLike, phase: ArrayLike, delay: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the newest sample that has been taken and delivered at ``time``, ``(nworld, nstep)`` in s.

    A sensor samples on its own clock, at (phase + k) / rate for k = 0, 1, 2, …; a sample is delivered ``delay`` later.
    With a rate of 0 it samples at every request, ``delay`` ago. Before the first sample it reports its reading at time
    0, because the world was at rest until then.

    Args:
        rate: sampling rate in Hz, ``(nworld,)`` or a number; ``phase`` in periods, ``delay`` in s, of the same shape.

    Returns:
        Time of each sample, never later than ``time - delay`` and never before 0; and its number, which is 0 for the
        reading at time 0, k + 1 for sample k, and 1, 2, 3, … with a rate of 0. Both ``(nworld, nstep)``.
    """
    asked = np.asarray(time, dtype=np.float64)
    rate, phase, delay = (np.asarray(value, dtype=np.float64).reshape(-1, 1) for value in (rate, phase, delay))
    clocked = np.broadcast_to(rate > 0.0, asked.shape)
    period = 1.0 / np.where(rate > 0.0, rate, 1.0)
    count = np.floor((asked - delay) / period - phase + _ROUND_OFF)
    own = np.where(count >= 0.0, (phase + count) * period, 0.0)
    taken = np.maximum(np.minimum(np.where(clocked, own, asked - delay), asked - delay), 0.0)
    number = np.where(clocked, np.maximum(count + 1.0, 0.0), np.arange(1.0, asked.shape[1] + 1.0))
    return taken, number.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class SampleClock:
    """Samples of one sensor in one episode.

    ``number`` ``(n,)`` are their numbers (`find_newest_sample`), ``taken`` and ``delivered`` ``(n,)`` their times, in
    s, ``period`` the time between them, ``frame`` ``(T,)`` the index of the newest one at each frame. Samples before
    ``first`` are not of the clock: they are the reading at time 0.
    """

    number: NDArray[np.int64]
    taken: NDArray[np.float64]
    delivered: NDArray[np.float64]
    frame: NDArray[np.int64]
    first: int
    period: float


def make_sample_clock(
    time: ArrayLike, *, end: float, rate: float, phase: float, delay: float, period: float
) -> SampleClock:
    """Return all samples that a sensor takes from time 0 to ``end``, and the newest one at each frame.

    Args:
        time: times of the frames, ``(T,)`` in s.
        end: end of the episode, in s.
        rate, phase, delay: see `find_newest_sample`.
        period: time between frames in s, also between the samples of a sensor without a clock.
    """
    asked = np.asarray(time, dtype=np.float64)
    _, newest = find_newest_sample(asked[None], rate=rate, phase=phase, delay=delay)
    if rate <= 0.0:
        index = np.arange(len(asked))
        taken = np.maximum(asked - delay, 0.0)
        return SampleClock(number=newest[0], taken=taken, delivered=asked, frame=index, first=0, period=period)
    count = int(np.floor(end * rate - phase + _ROUND_OFF)) + 1
    number = np.arange(max(count, 0) + 1)
    own = np.asarray((phase + number - 1.0) / rate, dtype=np.float64)
    taken = np.clip(own, 0.0, end)
    return SampleClock(number=number, taken=taken, delivered=own + delay, frame=newest[0], first=1, period=1.0 / rate)


def interpolate_hermite(
    time: NDArray[np.float64], value: NDArray[np.float64], slope: NDArray[np.float64], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return values between recorded ones by the cubic with the records' values and slopes at both ends.

    The error over an interval h is at most h⁴/384 times the largest fourth derivative and, where only the second is
    bounded (a torque that jumps between two records), h²/16 times that: 0.7 mrad for 10 rad/s² and 1/30 s. At a
    recorded time it is exactly 0.

    Args:
        time: times of the records, increasing, ``(nworld, nrecord)``.
        value, slope: values and slopes of the records, ``(nworld, nrecord, n)``.
        at: times between the first and the last record, ``(nworld, k)``.

    Returns:
        Values ``(nworld, k, n)``.
    """
    world = np.arange(len(time))
    result = np.empty((*at.shape, value.shape[-1]))
    for column in range(at.shape[1]):
        asked = at[:, column]
        last = np.maximum((time <= asked[:, None]).sum(axis=1) - 1, 0)
        following = np.minimum(last + 1, time.shape[1] - 1)
        width = time[world, following] - time[world, last]
        part = np.divide(asked - time[world, last], width, out=np.zeros_like(asked), where=width > 0.0)[:, None]
        width = width[:, None]
        square, cube = part * part, part * part * part
        result[:, column] = (
            (2.0 * cube - 3.0 * square + 1.0) * value[world, last]
            + (cube - 2.0 * square + part) * width * slope[world, last]
            + (3.0 * square - 2.0 * cube) * value[world, following]
            + (cube - square) * width * slope[world, following]
        )
    return result
