"""Stretches of time long enough to count as independent, where there are too few episodes to compare.

Intervals from few long blocks with t quantiles hold their level even when blocks do not grow in number (Bester, Conley
& Hansen, "Inference with dependent data using cluster covariance estimators", Journal of Econometrics 165, 2011).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
# Sums over blocks of L frames miss a share τ / (2 L) of the variance under AR(1): 6 % at eight times τ. With much
# data blocks grow as the cube root of their number, which is the best rate (Künsch, Annals of Statistics 17, 1989).
_BLOCK = 8.0
# Shorter blocks, down to here, only to have _FEW of them; with fewer than _FEWEST there is no interval.
_SHORTEST, _FEW, _FEWEST = 4.0, 8, 4


def integrated_time(series: Sequence[ArrayLike]) -> Array:
    """Frames that count as one, τ = 1 + 2 Σ ρ_k, of clips ``(nframe, …)`` of one stationary series of mean zero.

    Autocovariances are pooled over clips and not centred in each, so that what is constant in a clip counts as
    correlated; the sum ends where pairs of lags turn negative (Geyer, Statistical Science 7, 1992).

    Returns:
        ``(…)``, at least 1; a series of zeros has 1.
    """
    clips = [np.asarray(clip, dtype=np.float64) for clip in series]
    longest = max(len(clip) for clip in clips)
    size = 2 * longest
    shape = clips[0].shape[1:]
    padded = np.stack([np.concatenate([clip, np.zeros((longest - len(clip), *shape))]) for clip in clips])
    power = np.abs(np.fft.rfft(padded, n=size, axis=1)) ** 2
    covariance = np.fft.irfft(power.sum(axis=0), n=size, axis=0)[:longest]
    rho = covariance / np.where(covariance[:1] > 0, covariance[:1], 1.0)
    pairs = rho[: 2 * (longest // 2)].reshape(longest // 2, 2, *shape).sum(axis=1)
    initial = np.logical_and.accumulate(pairs > 0, axis=0)
    falling = np.minimum.accumulate(pairs, axis=0)  # the monotone sequence, for noise at long lags
    return np.maximum(1.0, 2.0 * np.sum(np.where(initial, falling, 0.0), axis=0) - 1.0)


def block_frames(frames: float, tau: float) -> float | None:
    """How long a block is, in frames, for so many frames with correlation time ``tau``; None where they are too few."""
    independent = frames / tau
    if independent < _FEWEST * _SHORTEST:
        return None
    longest = frames / max(_FEW, independent / max(_BLOCK, independent ** (1 / 3)))
    return max(_SHORTEST * tau, longest)


def time_blocks(starts: ArrayLike, frames: int, dt: float, episodes: ArrayLike, length: float) -> NDArray[np.intp]:
    """Block of every frame of windows, numbered from 0, ``(nwindow, frames)``.

    Each episode is cut into equal stretches of about ``length``. A window shorter than two of them is not cut, because
    its frames share the error of its first state: it belongs where its middle lies.

    Args:
        starts: begin of each window in s, ``(nwindow,)``.
        frames: of a window.
        dt: between frames, s.
        episodes: number of each window's episode.
        length: wanted length, s.
    """
    begins, owner = np.asarray(starts, dtype=np.float64), np.asarray(episodes)
    times = begins[:, None] + dt * np.arange(frames)
    if frames * dt < 2 * length:
        times = np.repeat(times.mean(axis=1, keepdims=True), frames, axis=1)
    labels, number = np.zeros(times.shape, dtype=np.intp), 0
    for episode in np.unique(owner):
        rows = owner == episode
        first = begins[rows].min()
        span = begins[rows].max() + frames * dt - first
        count = max(1, int(span / length))
        labels[rows] = number + np.clip((times[rows] - first) / span * count, 0, count - 1).astype(np.intp)
        number += count
    return np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
