"""Estimate the residual noise of a fit, and predict episodes with bands for the uncertainty of parameters and noise.

The structured part of a residual is the part that the motion predicts in unseen episodes. It is not noise but physics
that the twin lacks. The prediction is a ridge regression, cross-validated over episodes. Its features are the commands,
the measured motion (positions, speeds, their signs and squares), and low-pass filtered copies of both. The estimate of
the structured part is a lower bound, because a pattern that these features do not predict counts as noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from twinloop.core.distribution import ParamDistribution, ResidualNoise
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.core.seeds import generator, uniforms
from twinloop.identify.config import FitConfig
from twinloop.randomize.distributions import MultivariateNormal
from twinloop.randomize.draws import JointDraw
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.stats import ridge_predictions
from twinloop.twin import Twin

Array = NDArray[np.float64]

_FOLDS = 5
_LEAST_EPISODES = 4
_MEMORY = (0.1, 0.4)  # s: time constants of the low-pass filters: servo lag, and oscillation of the load
_LEAST_SHARE = 0.01


def residual_noise(logs: ReplayLogs, residual: Array) -> ResidualNoise:
    """Estimate the noise in a fit's residuals: standard deviation and lag-1 autocorrelation of each channel.

    The field ``structured`` of the result is the share of the residual power that the motion predicts, by a ridge
    regression that is cross-validated over episodes. With fewer than four episodes this share cannot be estimated: it
    is then NaN, and the whole residual counts as noise.

    Args:
        logs: The replayed windows.
        residual: Replayed minus measured readings, ``(nwindow, nframe, nchannel)``; NaN marks missing measurements.
    """
    finite = np.where(np.isfinite(residual), residual, np.nan)
    left, share = _remove_predictable_part(logs, finite)
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


def draw_noise(noise: ResidualNoise, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw stationary first-order autoregressive noise, in the channels' units.

    Args:
        noise: Standard deviation and lag-1 autocorrelation of each channel.
        rng: Random generator.
        shape: ``(nwindow, nframe, nchannel)``.
    """
    white = rng.normal(size=shape)
    for channel, rho in enumerate(noise.rho):
        start = white[:, :1, channel] * rho
        gain = math.sqrt(1.0 - rho**2)
        white[:, 1:, channel] = lfilter([gain], [1.0, -rho], white[:, 1:, channel], axis=1, zi=start)[0]
    return white * noise.sd


def _remove_predictable_part(logs: ReplayLogs, residual: Array) -> tuple[Array, Array]:
    """Remove the part of the residuals that a regression on the motion predicts.

    The residuals of an episode are predicted by a ridge regression that was fitted to other episodes.

    Args:
        logs: The replayed windows.
        residual: Replayed minus measured readings, ``(nwindow, nframe, nchannel)``; NaN marks missing measurements.

    Returns:
        The remaining residuals, in the same shape, and the predicted share of each channel's sum of squared residuals,
        ``(nchannel,)``. A share of at most 1 % is not removed and is returned as 0. With fewer than four episodes,
        nothing is removed and the shares are NaN.
    """
    episodes = logs.episode_index
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
    """Return the regression features, shape ``(nwindow, nframe, nfeature)``.

    They are commands, measured motion, low-pass filtered copies of both, and a constant. All features except the
    constant have unit root mean square.
    """
    missing = np.isnan(logs.measured)
    measured = np.where(missing, 0.0, logs.measured)
    speed = np.where(missing, 0.0, np.gradient(measured, axis=1))
    typical = np.sqrt(np.mean(speed**2, axis=(0, 1))) + 1e-12
    signals = [logs.commands, measured, speed, np.tanh(4.0 * speed / typical), speed * np.abs(speed)]
    now = np.concatenate(signals, axis=-1)
    now = now - now[:, :1]  # filters start from rest: the time before a window is unknown
    poles = [float(np.exp(-1.0 / (seconds * logs.twin.control_hz))) for seconds in _MEMORY]
    filtered = [np.asarray(lfilter([1.0 - pole], [1.0, -pole], now, axis=1)) for pole in poles]
    every = np.concatenate([now, *filtered], axis=-1)
    spread = np.sqrt(np.mean(every**2, axis=(0, 1)))
    every = every[..., spread > 0] / spread[spread > 0]
    return np.concatenate([every, np.ones((*every.shape[:-1], 1))], axis=-1)


_DRAWS = 32
_NOISES = 8  # noise draws per parameter draw
_STREAM = "identify/conformal"


@dataclass(frozen=True, kw_only=True)
class PredictedClips:
    """Prediction errors of episodes (called clips here), and their scores: the largest |error| / sd of an episode.

    Attributes:
        error: Predicted minus measured readings, ``(nwindow, nframe, nchannel)``; NaN marks missing measurements.
        sd: Standard deviation of the prediction, same shape.
        clusters: Index of each window's episode from 0, ``(nwindow,)``.
        numbers: Episode numbers, ``(nepisode,)``.
        scores: Score of each episode, ``(nepisode,)``.
        drawn: Scores of episodes that are simulated from the prediction, ``(ndraw, nepisode)``.
        share: Part of the predicted variance that comes from the parameters, ``(nchannel,)``.
    """

    error: Array
    sd: Array
    clusters: NDArray[np.intp]
    numbers: tuple[int, ...]
    scores: Array
    drawn: Array
    share: Array

    def score_quantile(self, level: float) -> float:
        """Return the quantile of the scores (largest |error| / sd of an episode) of the simulated episodes.

        Args:
            level: Fraction of the simulated episodes whose score is at most the quantile.
        """
        return float(np.quantile(self.drawn, level))


@dataclass(frozen=True)
class BandPrediction:
    """Predictor of episodes with uncertainty bands, from one set of parameter draws.

    Attributes:
        backend: The backend that simulates the replays.
        distribution: The identified distribution.
        noise: The residual noise of the fit.
        point: The estimate: parameter values by name, SI.
        config: Configuration of the fit.

    Raises:
        InputError: If the fit determined no parameter.
    """

    backend: Backend
    distribution: ParamDistribution
    noise: ResidualNoise
    point: Mapping[str, float]
    config: FitConfig

    def __post_init__(self) -> None:
        if not any(self.distribution.determined):
            raise InputError("The fit determined no parameter, so there are no ranges to calibrate. See its report.")

    def clips(self, twin: Twin, episodes: Sequence[Episode]) -> PredictedClips:
        """Predict episodes by replays at the estimate and at drawn parameters, and compare them with the measurements.

        Returns:
            Prediction errors, and scores: the largest |error| / sd of each episode, measured and simulated.
        """
        logs = prepare_replay(twin, episodes, self.config.replay)
        centre = replay(self.backend, logs, logs.twin.table(1, self.point))[0]
        drawn = replay(self.backend, logs, logs.twin.table(_DRAWS, {**self.point, **self._draw_parameters(logs.twin)}))
        moved = np.where(np.isfinite(drawn), drawn - centre, np.nan)
        lost = np.isnan(moved).all(axis=0)
        spread = np.nanmean(np.where(lost, 0.0, moved) ** 2, axis=0)
        sd = np.sqrt(spread + self.noise.sd**2)
        present = ~np.isnan(logs.measured)
        error = np.where(present, np.where(np.isfinite(centre), centre, np.inf) - logs.measured, np.nan)
        tail = np.where(present, 1.0, np.nan)
        scores = [
            max_by_episode(np.abs(deviation + noise) / sd * tail, logs.episode_index)
            for deviation in moved
            for noise in self._draw_noise_arrays(logs, _NOISES)
        ]
        return PredictedClips(
            error=error,
            sd=sd,
            clusters=logs.episode_index,
            numbers=tuple(dict.fromkeys(sorted(logs.episode_numbers))),
            scores=max_by_episode(np.abs(error) / sd, logs.episode_index),
            drawn=np.array(scores),
            share=np.nanmean(np.where(present, spread / sd**2, np.nan), axis=(0, 1)),
        )

    def _draw_parameters(self, twin: Twin) -> dict[str, Array]:
        """Draw the parameters that the data determine, and return values in SI units by name.

        A draw is repeated until all values are within the physical bounds.
        """
        distribution, determined = self.distribution, np.flatnonzero(self.distribution.determined)
        joint = JointDraw(
            names=tuple(distribution.names[i] for i in determined),
            distribution=MultivariateNormal(
                mean=tuple(distribution.mean[determined].tolist()),
                covariance=tuple(map(tuple, distribution.covariance[np.ix_(determined, determined)].tolist())),
            ),
            transforms=tuple(distribution.transforms[i] for i in determined),
        )
        return joint.values(
            twin,
            _DRAWS,
            lambda trial, rows: uniforms(0, _STREAM, rows, size=len(determined), attempt=0, step=trial),
        )

    def _draw_noise_arrays(self, logs: ReplayLogs, count: int) -> list[Array]:
        """Draw ``count`` noise arrays of the shape of the readings; every parameter draw gets the same arrays."""
        rng = generator(0, f"{_STREAM}/noise")
        return [draw_noise(self.noise, rng, logs.measured.shape) for _ in range(count)]


def max_by_episode(size: Array, clusters: NDArray[np.intp]) -> Array:
    """Return the maximum of each episode over its windows, frames and channels, shape ``(nepisode,)``.

    Args:
        size: Values ``(nwindow, nframe, nchannel)``; NaN marks missing measurements.
        clusters: Index of each window's episode from 0, ``(nwindow,)``.
    """
    largest = np.full(int(clusters.max()) + 1, -np.inf)
    np.maximum.at(largest, clusters, np.nanmax(size, axis=(1, 2)))
    return largest
