"""Compute when a sensor takes and delivers its samples, and interpolate between recorded states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ROUND_OFF = 1e-9  # of a sampling period


def find_newest_sample(
    time: ArrayLike, *, rate: ArrayLike, phase: ArrayLike, delay: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the newest sample of a sensor that has been delivered at each requested time.

    A sensor samples by its own clock, at the times (phase + k) / rate for k = 0, 1, 2, … A sample is delivered
    ``delay`` after it was taken. If the rate is 0, a sample is taken ``delay`` before each request instead. Before
    the first sample the sensor reports its reading at time 0, because the world was at rest until then.

    Args:
        time: times of the requests in s, shape ``(nworld, nstep)``.
        rate: sampling rate in Hz, ``(nworld,)`` or a number.
        phase: time of the first sample in sampling periods, ``(nworld,)`` or a number.
        delay: time from sampling to delivery in s, ``(nworld,)`` or a number.

    Returns:
        Sampling times in s, between 0 and ``time - delay``, and sample numbers; each of shape ``(nworld, nstep)``.
        The number is 0 for the reading at time 0 and k + 1 for sample k. If the rate is 0, the numbers are 1, 2, 3,
        …
    """
    requested = np.asarray(time, dtype=np.float64)
    rate, phase, delay = (np.asarray(value, dtype=np.float64).reshape(-1, 1) for value in (rate, phase, delay))
    has_clock = np.broadcast_to(rate > 0.0, requested.shape)
    period = 1.0 / np.where(rate > 0.0, rate, 1.0)
    count = np.floor((requested - delay) / period - phase + _ROUND_OFF)
    clock_time = np.where(count >= 0.0, (phase + count) * period, 0.0)
    taken = np.maximum(np.minimum(np.where(has_clock, clock_time, requested - delay), requested - delay), 0.0)
    number = np.where(has_clock, np.maximum(count + 1.0, 0.0), np.arange(1.0, requested.shape[1] + 1.0))
    return taken, number.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class SampleClock:
    """Times of all n samples that a sensor takes in an episode of T frames.

    Attributes:
        number: sample numbers as in `find_newest_sample`, shape ``(n,)``.
        sample_times: sampling times in s, shape ``(n,)``.
        delivered: delivery times in s, shape ``(n,)``.
        frame: index of the newest delivered sample at each frame, shape ``(T,)``.
        first: 1 if sample 0 is the reading at time 0, which is used until the first regular sample arrives; otherwise
            0.
        period: time between samples, in s.
    """

    number: NDArray[np.int64]
    sample_times: NDArray[np.float64]
    delivered: NDArray[np.float64]
    frame: NDArray[np.int64]
    first: int
    period: float


def make_sample_clock(
    time: ArrayLike, *, end: float, rate: float, phase: float, delay: float, period: float
) -> SampleClock:
    """Return the times of all samples that a sensor takes from time 0 to ``end``, and the newest sample at each frame.

    Args:
        time: times of the frames in s, shape ``(T,)``.
        end: end of the episode, in s.
        rate: sampling rate in Hz; 0 takes one sample per frame.
        phase: time of the first sample, in sampling periods.
        delay: time from sampling to delivery, in s.
        period: time between frames in s; used as the sampling period if the rate is 0.
    """
    frame_times = np.asarray(time, dtype=np.float64)
    _, newest = find_newest_sample(frame_times[None], rate=rate, phase=phase, delay=delay)
    if rate <= 0.0:
        index = np.arange(len(frame_times))
        taken = np.maximum(frame_times - delay, 0.0)
        return SampleClock(
            number=newest[0], sample_times=taken, delivered=frame_times, frame=index, first=0, period=period
        )
    count = int(np.floor(end * rate - phase + _ROUND_OFF)) + 1
    number = np.arange(max(count, 0) + 1)
    clock_times = np.asarray((phase + number - 1.0) / rate, dtype=np.float64)
    taken = np.clip(clock_times, 0.0, end)
    return SampleClock(
        number=number, sample_times=taken, delivered=clock_times + delay, frame=newest[0], first=1, period=1.0 / rate
    )


def interpolate_hermite(
    time: NDArray[np.float64], value: NDArray[np.float64], slope: NDArray[np.float64], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Interpolate recorded values by cubic Hermite splines, which use the recorded derivatives.

    For records with the spacing h the error is at most h⁴/384 times the largest fourth derivative. If only the
    second derivative is bounded (because a torque jumps between two records), the error is at most h²/16 times the
    second derivative, for example 0.7 mrad for 10 rad/s² and h = 1/30 s. At the recorded times it is 0.

    Args:
        time: times of the records in s, increasing, shape ``(nworld, nrecord)``.
        value: recorded values, shape ``(nworld, nrecord, n)``.
        slope: recorded time derivatives of the values, shape ``(nworld, nrecord, n)``.
        at: times between the first and the last record in s, shape ``(nworld, k)``.

    Returns:
        Interpolated values, shape ``(nworld, k, n)``.
    """
    world = np.arange(len(time))
    result = np.empty((*at.shape, value.shape[-1]))
    for column in range(at.shape[1]):
        query = at[:, column]
        last = np.maximum((time <= query[:, None]).sum(axis=1) - 1, 0)
        following = np.minimum(last + 1, time.shape[1] - 1)
        width = time[world, following] - time[world, last]
        fraction = np.divide(query - time[world, last], width, out=np.zeros_like(query), where=width > 0.0)[:, None]
        width = width[:, None]
        square, cube = fraction * fraction, fraction * fraction * fraction
        result[:, column] = (
            (2.0 * cube - 3.0 * square + 1.0) * value[world, last]
            + (cube - 2.0 * square + fraction) * width * slope[world, last]
            + (3.0 * square - 2.0 * cube) * value[world, following]
            + (cube - square) * width * slope[world, following]
        )
    return result
