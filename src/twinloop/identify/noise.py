"""What a fit leaves over, split into what repeats with the motion and what does not.

A residual that motion predicts in clips that the prediction has not seen is no noise: it is physics that the twin
lacks. Prediction is ridge regression on the commands, on the measured motion (positions, speeds, their signs and
squares) and on both as low-passes remember them, cross-validated over episodes. It finds a lower bound: what these
features do not say is counted as noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from twinloop.core.distribution import ResidualNoise
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import ridge_predictions

Array = NDArray[np.float64]

_FOLDS = 5
_LEAST_EPISODES = 4
_MEMORY = (0.1, 0.4)  # s: time constants of the low-passes; servos' lags and the swings of what they carry
_LEAST_SHARE = 0.01


def residual_noise(logs: ReplayLogs, residual: Array) -> ResidualNoise:
    """Standard deviation and autocorrelation of the noise in residuals ``(nwindow, nframe, nchannel)`` of a fit.

    ``structured`` is NaN with fewer than four episodes: what repeats cannot be told then, and all is called noise.
    """
    finite = np.where(np.isfinite(residual), residual, np.nan)
    left, share = _without_structure(logs, finite)
    floor = 1e-9 + 1e-6 * np.nanmax(np.abs(logs.measured), axis=(0, 1), initial=0.0)
    power = np.nanmean(left**2, axis=(0, 1))
    products = np.nanmean(left[:, 1:] * left[:, :-1], axis=(0, 1))
    return ResidualNoise(
        channels=tuple(channel.name for channel in logs.channels),
        units=tuple(channel.unit for channel in logs.channels),
        sd=np.maximum(np.sqrt(power), floor),
        rho=np.clip(np.divide(products, power, out=np.zeros_like(power), where=power > 0), -0.999, 0.9999),
        structured=share,
        hz=logs.twin.control_hz,
    )


def drawn_noise(noise: ResidualNoise, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Stationary AR(1) noise ``(nwindow, nframe, nchannel)``."""
    white = rng.normal(size=shape)
    for channel, rho in enumerate(noise.rho):
        start = white[:, :1, channel] * rho
        gain = math.sqrt(1.0 - rho**2)
        white[:, 1:, channel] = lfilter([gain], [1.0, -rho], white[:, 1:, channel], axis=1, zi=start)[0]
    return white * noise.sd


def _without_structure(logs: ReplayLogs, residual: Array) -> tuple[Array, Array]:
    """The residuals less what motion predicts out of sample, and the part of their power that it predicts."""
    episodes = logs.clusters
    count = int(episodes.max()) + 1
    if count < _LEAST_EPISODES:
        return residual, np.full(residual.shape[-1], np.nan)
    features = _features(logs)
    fold = episodes % min(_FOLDS, count)
    left, share = residual.copy(), np.zeros(residual.shape[-1])
    for channel in range(residual.shape[-1]):
        predicted = ridge_predictions(features, residual[..., channel], fold)
        rest = residual[..., channel] - predicted
        power = np.nansum(residual[..., channel] ** 2)
        part = 1.0 - np.nansum(rest**2) / power if power > 0 else 0.0
        if part > _LEAST_SHARE:
            left[..., channel], share[channel] = rest, part
    return left, share


def _features(logs: ReplayLogs) -> Array:
    """Commands, motion and what low-passes remember of them, of unit spread, with a constant last: ``(…, k)``."""
    present = np.isnan(logs.measured)
    measured = np.where(present, 0.0, logs.measured)
    speed = np.where(present, 0.0, np.gradient(measured, axis=1))
    typical = np.sqrt(np.mean(speed**2, axis=(0, 1))) + 1e-12
    signals = [logs.commands, measured, speed, np.tanh(4.0 * speed / typical), speed * np.abs(speed)]
    now = np.concatenate(signals, axis=-1)
    now = now - now[:, :1]  # from rest: what was before a window is not known
    poles = [float(np.exp(-1.0 / (seconds * logs.twin.control_hz))) for seconds in _MEMORY]
    remembered = [np.asarray(lfilter([1.0 - pole], [1.0, -pole], now, axis=1)) for pole in poles]
    every = np.concatenate([now, *remembered], axis=-1)
    spread = np.sqrt(np.mean(every**2, axis=(0, 1)))
    every = every[..., spread > 0] / spread[spread > 0]
    return np.concatenate([every, np.ones((*every.shape[:-1], 1))], axis=-1)
