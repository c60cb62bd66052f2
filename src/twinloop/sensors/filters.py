"""Model sensor effects on a signal over time: lag, stiction, clipping, counts, random walks and bias instability."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

_EVEN = 1e-9  # relative round-off of equal time steps


def low_pass(
    time: ArrayLike, values: ArrayLike, bandwidth: ArrayLike, *, ends: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return a signal, linear between its points, after a first-order low-pass filter; exact at any spacing.

    T dy/dt = u − y with T = 1/(2π · bandwidth). Before its first point the signal is constant.

    Args:
        time: ``(…, n)`` in s, not decreasing.
        values: ``(…, n, k)``.
        bandwidth: frequency in Hz at which half of the power remains, of the shape before ``n`` or a number; 0: no
            filter.
        ends: the signal just before each point, if it jumps there to ``values``, ``(…, n, k)``; before the first point
            it is constant.

    Returns:
        Values ``(…, n, k)``; without a filter, ``ends``.
    """
    at, signal = np.asarray(time, dtype=np.float64), np.asarray(values, dtype=np.float64)
    arrived = signal if ends is None else np.asarray(ends, dtype=np.float64)
    cutoff = np.broadcast_to(np.asarray(bandwidth, dtype=np.float64), at.shape[:-1])
    if not np.any(cutoff > 0.0):
        return arrived.copy()
    lag = 1.0 / (2.0 * math.pi * np.where(cutoff > 0.0, cutoff, np.inf))
    lag = np.where(cutoff > 0.0, lag, 0.0)[..., None]
    step = np.diff(at, axis=-1)
    part = np.divide(step, lag, out=np.full(step.shape, np.inf), where=lag > 0.0)
    decay = np.exp(-part)
    # Weight of the step's end in the input: 1 − T/h (1 − exp(−h/T)), whose limit for short steps is h/2T.
    short = part < 1e-6
    share = np.where(short, 0.5 * part, 1.0 - np.divide(1.0 - decay, part, out=np.zeros_like(part), where=~short))
    early = (1.0 - decay) - share
    result = np.empty_like(signal)
    for world in np.ndindex(at.shape[:-1]):
        fresh = early[world][:, None] * signal[world][:-1] + share[world][:, None] * arrived[world][1:]
        result[world] = _run_recursion(arrived[world][:1], fresh, decay[world])
    return result


def _run_recursion(
    first: NDArray[np.float64], fresh: NDArray[np.float64], decay: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the steps y₁ = decay · y₀ + u along ``fresh`` ``(n, k)``, from ``first`` ``(1, k)``."""
    if len(decay) and np.ptp(decay) <= _EVEN * decay[0]:  # steps that differ by round-off alone
        from scipy.signal import lfilter  # takes longer to load than everything else in a worker

        rest, _ = lfilter([1.0], [1.0, -decay[0]], fresh, axis=0, zi=decay[0] * first)
        return np.concatenate([first, rest])
    result = np.concatenate([first, fresh])
    for i in range(len(decay)):
        result[i + 1] += decay[i] * result[i]
    return result


def low_pass_noise(normals: ArrayLike, period: ArrayLike, bandwidth: ArrayLike) -> NDArray[np.float64]:
    """Return standard normal numbers after the same low-pass, sampled: y = a y + (1 − a) n, a = exp(−2π B Δt).

    Slow noise keeps its density, and the deviation falls with the bandwidth. The filter begins in its steady state.

    Args:
        normals: ``(…, n, k)``.
        period: Δt between samples in s, and ``bandwidth`` B in Hz, of the shape before ``n`` or numbers; 0: no filter.
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
    """Return sums y = decay · y + u over ``n``, from 0: ``values`` u ``(…, n, k)``, ``decay`` ``(…)``."""
    from scipy.signal import lfilter  # as above

    result = np.empty_like(values)
    for world in np.ndindex(decay.shape):
        result[world] = lfilter([1.0], [1.0, -decay[world]], values[world], axis=0)
    return result


def apply_play(values: ArrayLike, width: ArrayLike) -> NDArray[np.float64]:
    """Return a signal after a play of ``width`` from flank to flank (Prandtl's play operator), for hysteresis.

    It begins in the middle of the play and follows only when a flank is reached: a signal that reverses shows ``width``
    of hysteresis.

    Args:
        values: ``(…, n, k)``.
        width: broadcasts with ``(…, k)``, in the signal's unit.
    """
    signal = np.asarray(values, dtype=np.float64)
    half = np.asarray(width, dtype=np.float64) / 2.0
    if not np.any(half > 0.0):
        return signal.copy()
    result = np.empty_like(signal)
    held = result[..., 0, :] = signal[..., 0, :]
    for i in range(1, signal.shape[-2]):
        held = np.clip(held, signal[..., i, :] - half, signal[..., i, :] + half)
        result[..., i, :] = held
    return result


def digitize(values: ArrayLike, limit: ArrayLike, step: ArrayLike) -> NDArray[np.float64]:
    """Return a signal clipped at ± ``limit`` and then rounded to multiples of ``step``; 0 omits either.

    All three broadcast with each other.
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
    """Return a random walk from 0 whose variance grows by coefficient² each second, ``(…, n, k)``.

    Args:
        normals: independent standard normal numbers ``(…, n, k)``; the first of them has no effect.
        period: time between samples in s, and ``coefficient`` in units/√s, of the shape before ``n`` or numbers.
    """
    steps = np.array(normals, dtype=np.float64)
    scale = np.asarray(coefficient, dtype=np.float64) * np.sqrt(np.asarray(period, dtype=np.float64))
    steps[..., 0, :] = 0.0
    return np.cumsum(steps * np.broadcast_to(scale, steps.shape[:-2])[..., None, None], axis=-2)


def flicker_noise(normals: ArrayLike, period: ArrayLike, instability: ArrayLike) -> NDArray[np.float64]:
    """Return flicker noise of bias instability B (IEEE 952): power density B²/2πf, Allan deviation 0.664 B, flat.

    It is a sum of independent first-order Gauss–Markov processes with correlation times in ratios r and equal variances
    B² ln r/π: their densities 2σ²τ/(1 + (2πfτ)²) then add up to B²/2πf. They begin in their steady state.

    Args:
        normals: independent standard normal numbers ``(…, n, k, len(FLICKER_TIMES))``.
        period: time between samples in s, and ``instability`` B in the signal's unit, each of the shape before ``n``,
            or numbers.

    Returns:
        Noise ``(…, n, k)``.
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
