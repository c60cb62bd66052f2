"""Model effects of sensors on time series: filter, hysteresis, clipping, quantization and drift."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

_EVEN = 1e-9  # relative round-off of equal time steps


def low_pass(
    time: ArrayLike, values: ArrayLike, bandwidth: ArrayLike, *, left_limits: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return a signal after a first-order low-pass filter, computed exactly for any spacing of the samples.

    The filter is T dy/dt = u − y for the input u and the output y, with T = 1/(2π · bandwidth). The input is linear
    between its samples and constant before the first one.

    Args:
        time: times of the samples in s, not decreasing, shape ``(…, n)``; the leading axes ``…`` are worlds.
        values: signal of k components at each time, shape ``(…, n, k)``.
        bandwidth: half-power frequency in Hz, a number or one per world, shape ``(…)``; 0 disables the filter.
        left_limits: left limits of the signal at each sample, shape ``(…, n, k)``, for a signal that jumps there to
            ``values``. By default the signal has no jumps.

    Returns:
        Filtered values, shape ``(…, n, k)``. In a world whose filter is disabled they equal ``left_limits`` (or
        ``values``).
    """
    times, signal = np.asarray(time, dtype=np.float64), np.asarray(values, dtype=np.float64)
    left_limits = signal if left_limits is None else np.asarray(left_limits, dtype=np.float64)
    cutoff = np.broadcast_to(np.asarray(bandwidth, dtype=np.float64), times.shape[:-1])
    if not np.any(cutoff > 0.0):
        return left_limits.copy()
    lag = 1.0 / (2.0 * math.pi * np.where(cutoff > 0.0, cutoff, np.inf))
    lag = np.where(cutoff > 0.0, lag, 0.0)[..., None]
    step = np.diff(times, axis=-1)
    ratio = np.divide(step, lag, out=np.full(step.shape, np.inf), where=lag > 0.0)
    decay = np.exp(-ratio)
    # Weight of the step's end in the input: 1 − T/h (1 − exp(−h/T)), whose limit for short steps is h/2T.
    short = ratio < 1e-6
    long_weight = 1.0 - np.divide(1.0 - decay, ratio, out=np.zeros_like(ratio), where=~short)
    end_weight = np.where(short, 0.5 * ratio, long_weight)
    start_weight = (1.0 - decay) - end_weight
    result = np.empty_like(signal)
    for world in np.ndindex(times.shape[:-1]):
        inputs = start_weight[world][:, None] * signal[world][:-1] + end_weight[world][:, None] * left_limits[world][1:]
        result[world] = _run_recursion(left_limits[world][:1], inputs, decay[world])
    return result


def _run_recursion(
    first: NDArray[np.float64], fresh: NDArray[np.float64], decay: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the sequence y[i + 1] = decay[i] · y[i] + fresh[i], which starts with y[0] = first.

    Args:
        first: initial value, shape ``(1, k)``.
        fresh: inputs, shape ``(n, k)``.
        decay: factors, shape ``(n,)``.

    Returns:
        Sequence including ``first``, shape ``(n + 1, k)``.
    """
    if len(decay) and np.ptp(decay) <= _EVEN * decay[0]:  # steps that differ by round-off alone
        from scipy.signal import lfilter  # takes longer to load than everything else in a worker

        rest, _ = lfilter([1.0], [1.0, -decay[0]], fresh, axis=0, zi=decay[0] * first)
        return np.concatenate([first, rest])
    result = np.concatenate([first, fresh])
    for i in range(len(decay)):
        result[i + 1] += decay[i] * result[i]
    return result


def low_pass_noise(normals: ArrayLike, period: ArrayLike, bandwidth: ArrayLike) -> NDArray[np.float64]:
    """Return white noise after a first-order low-pass filter in discrete time.

    The recursion is y = a y + (1 − a) n with a = exp(−2π · bandwidth · period). The filter keeps the noise density
    at low frequencies, so the standard deviation decreases with the bandwidth. It starts in its steady state.

    Args:
        normals: independent standard normal numbers n, shape ``(…, n, k)`` for n samples of k components in each
            world.
        period: time between samples in s, a number or shape ``(…)``.
        bandwidth: half-power frequency in Hz, a number or shape ``(…)``; 0 returns ``normals`` unchanged.
    """
    white = np.asarray(normals, dtype=np.float64)
    shape = white.shape[:-2]
    cutoff, spacing = (np.broadcast_to(np.asarray(x, dtype=np.float64), shape) for x in (bandwidth, period))
    if not np.any(cutoff > 0.0):
        return white.copy()
    decay = np.where(cutoff > 0.0, np.exp(-2.0 * math.pi * cutoff * spacing), 0.0)
    fresh = (1.0 - decay)[..., None, None] * white
    fresh[..., 0, :] = np.sqrt((1.0 - decay) / (1.0 + decay))[..., None] * white[..., 0, :]
    return decaying_sum(fresh, decay)


def decaying_sum(values: NDArray[np.float64], decay: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the recursion y = decay · y + u along the sample axis, starting from y = 0.

    Args:
        values: inputs u, shape ``(…, n, k)`` for n samples of k components in each world.
        decay: factor of each world, shape ``(…)``.
    """
    from scipy.signal import lfilter  # as above

    result = np.empty_like(values)
    for world in np.ndindex(decay.shape):
        result[world] = lfilter([1.0], [1.0, -decay[world]], values[world], axis=0)
    return result


def apply_play(values: ArrayLike, width: ArrayLike) -> NDArray[np.float64]:
    """Return a signal with hysteresis: Prandtl's play operator with a total play of ``width``.

    The output starts at the first value, in the middle of the play. It stays constant until the input has moved by
    half of the width, and then moves with the input. After a reversal of the input the output is constant for
    ``width``.

    Args:
        values: signal, shape ``(…, n, k)`` for n samples of k components in each world.
        width: total play in the signal's unit; broadcasts with ``(…, k)``.
    """
    signal = np.asarray(values, dtype=np.float64)
    half = np.asarray(width, dtype=np.float64) / 2.0
    if not np.any(half > 0.0):
        return signal.copy()
    result = np.empty_like(signal)
    output = result[..., 0, :] = signal[..., 0, :]
    for i in range(1, signal.shape[-2]):
        output = np.clip(output, signal[..., i, :] - half, signal[..., i, :] + half)
        result[..., i, :] = output
    return result


def digitize(values: ArrayLike, limit: ArrayLike, step: ArrayLike) -> NDArray[np.float64]:
    """Return a signal clipped to ± ``limit`` and then rounded to multiples of ``step``.

    The three arguments broadcast with each other. A limit of 0 disables clipping, a step of 0 disables rounding.
    """
    signal, most, size = (np.asarray(x, dtype=np.float64) for x in (values, limit, step))
    bound = np.where(most > 0.0, most, np.inf)
    clipped = np.clip(signal, -bound, bound)
    counted = np.round(clipped / np.where(size > 0.0, size, 1.0)) * size
    return np.where(size > 0.0, counted, clipped) + 0.0  # no negative zeros


# Correlation times of the processes that make up flicker noise, in s. One per decade gives a power density that stays
# within 7 % of 1/f, and an Allan deviation within 4 % of flat, from 0.02 s to 500 s, as
# tests/sensors/test_sensors_imu.py shows.
FLICKER_TIMES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
# Ratio of the minimum of an Allan deviation to IEEE 952's bias instability B: √(2 ln 2/π).
ALLAN_FLOOR = math.sqrt(2.0 * math.log(2.0) / math.pi)


def random_walk(normals: ArrayLike, period: ArrayLike, coefficient: ArrayLike) -> NDArray[np.float64]:
    """Return a random walk from 0 whose variance grows by coefficient² each second, shape ``(…, n, k)``.

    Args:
        normals: independent standard normal numbers, shape ``(…, n, k)`` for n samples of k components in each
            world; the first sample has no effect.
        period: time between samples in s, a number or one per world, shape ``(…)``.
        coefficient: strength in the signal's unit per √s, a number or one per world, shape ``(…)``.
    """
    steps = np.array(normals, dtype=np.float64)
    scale = np.asarray(coefficient, dtype=np.float64) * np.sqrt(np.asarray(period, dtype=np.float64))
    steps[..., 0, :] = 0.0
    return np.cumsum(steps * np.broadcast_to(scale, steps.shape[:-2])[..., None, None], axis=-2)


def flicker_noise(normals: ArrayLike, period: ArrayLike, instability: ArrayLike) -> NDArray[np.float64]:
    """Return flicker (1/f) noise with the bias instability B of IEEE 952.

    Its power density at the frequency f is B²/(2πf), and its Allan deviation is flat at 0.664 B. It is approximated by
    a sum of independent first-order Gauss–Markov processes with the correlation times τ in `FLICKER_TIMES` (8 values
    from 1 ms to 10000 s). Their constant ratio is r = 10, and each process has the variance σ² = B² ln r/π. The sum of
    their densities 2σ²τ/(1 + (2πfτ)²) is close to B²/(2πf). The processes start in their steady state.

    Args:
        normals: independent standard normal numbers, shape ``(…, n, k, len(FLICKER_TIMES))`` for n samples of k
            components in each world, one number for each of the processes.
        period: time between samples in s, a number or one per world, shape ``(…)``.
        instability: B in the signal's unit, a number or one per world, shape ``(…)``.

    Returns:
        Noise in the signal's unit, shape ``(…, n, k)``.
    """
    numbers = np.asarray(normals, dtype=np.float64)
    shape = numbers.shape[:-3]
    level = np.broadcast_to(np.asarray(instability, dtype=np.float64), shape)
    if not np.any(level > 0.0):
        return np.zeros(numbers.shape[:-1])
    spacing = np.broadcast_to(np.asarray(period, dtype=np.float64), shape)
    ratio = FLICKER_TIMES[1] / FLICKER_TIMES[0]
    deviation = level * math.sqrt(math.log(ratio) / math.pi)
    result = np.zeros(numbers.shape[:-1])
    for i, time in enumerate(FLICKER_TIMES):
        decay = np.exp(-spacing / time)
        fresh = np.sqrt(1.0 - decay * decay)[..., None, None] * numbers[..., i]
        fresh[..., 0, :] = numbers[..., 0, :, i]
        result += decaying_sum(fresh, decay)
    return result * deviation[..., None, None]
