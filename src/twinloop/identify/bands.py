"""Clips against what a distribution of parameters and residual noise predicts of them: errors, bands, scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution, ResidualNoise
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.core.seeds import generator, uniforms
from twinloop.identify.config import FitConfig
from twinloop.identify.noise import drawn_noise
from twinloop.randomize.distributions import MultivariateNormal
from twinloop.randomize.draws import JointDraw
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.twin import Twin

Array = NDArray[np.float64]

_DRAWS = 32
_NOISES = 8  # of the noise, for every draw of the parameters
_STREAM = "identify/conformal"


@dataclass(frozen=True, kw_only=True)
class Clips:
    """Episodes against their prediction: ``error`` and ``sd`` ``(nwindow, nframe, nchannel)``, scores per episode.

    ``drawn`` ``(ndraw, nepisode)`` are the scores of draws from the prediction itself.
    """

    error: Array
    sd: Array
    clusters: NDArray[np.intp]
    numbers: tuple[int, ...]
    scores: Array
    drawn: Array
    share: Array

    def within(self, level: float) -> float:
        """q: what whole draws stay within at ``level``, in σ."""
        return float(np.quantile(self.drawn, level))


class Prediction:
    """Bands of clips, from one set of draws."""

    def __init__(
        self,
        backend: Backend,
        distribution: ParamDistribution,
        noise: ResidualNoise,
        point: Mapping[str, float],
        config: FitConfig,
        seed: int,
    ) -> None:
        self._backend, self._noise, self._point, self._config = backend, noise, point, config
        self._distribution, self._seed = distribution, seed
        self._known = np.flatnonzero(distribution.determined)
        if not len(self._known):
            raise InputError("The fit determined no parameter, so there are no ranges to calibrate. See its report.")

    def clips(self, twin: Twin, episodes: Sequence[Episode]) -> Clips:
        """Replays of episodes at the estimate and at draws."""
        logs = prepare_replay(twin, episodes, self._config.replay)
        centre = replay(self._backend, logs, logs.twin.table(1, self._point))[0]
        drawn = replay(self._backend, logs, logs.twin.table(_DRAWS, {**self._point, **self._draws(logs.twin)}))
        moved = np.where(np.isfinite(drawn), drawn - centre, np.nan)
        lost = np.isnan(moved).all(axis=0)
        spread = np.nanmean(np.where(lost, 0.0, moved) ** 2, axis=0)
        sd = np.sqrt(spread + self._noise.sd**2)
        present = ~np.isnan(logs.measured)
        error = np.where(present, np.where(np.isfinite(centre), centre, np.inf) - logs.measured, np.nan)
        tail = np.where(present, 1.0, np.nan)
        scores = [
            by_episode(np.abs(deviation + noise) / sd * tail, logs.clusters)
            for deviation in moved
            for noise in self._noises(logs, _NOISES)
        ]
        return Clips(
            error=error,
            sd=sd,
            clusters=logs.clusters,
            numbers=tuple(dict.fromkeys(sorted(logs.numbers))),
            scores=by_episode(np.abs(error) / sd, logs.clusters),
            drawn=np.array(scores),
            share=np.nanmean(np.where(present, spread / sd**2, np.nan), axis=(0, 1)),
        )

    def _draws(self, twin: Twin) -> dict[str, Array]:
        """As generated worlds draw them: from the determined part, again where a value leaves its bounds."""
        found, known = self._distribution, self._known
        joint = JointDraw(
            names=tuple(found.names[i] for i in known),
            distribution=MultivariateNormal(
                mean=tuple(found.mean[known].tolist()),
                covariance=tuple(map(tuple, found.covariance[np.ix_(known, known)].tolist())),
            ),
            transforms=tuple(found.transforms[i] for i in known),
        )
        return joint.values(
            twin,
            _DRAWS,
            lambda trial, rows: uniforms(self._seed, _STREAM, rows, size=len(known), attempt=0, step=trial),
        )

    def _noises(self, logs: ReplayLogs, count: int) -> list[Array]:
        """Noise of every channel, the same for a number of the list whatever the draw."""
        rng = generator(self._seed, f"{_STREAM}/noise")
        return [drawn_noise(self._noise, rng, logs.measured.shape) for _ in range(count)]


def by_episode(size: Array, clusters: NDArray[np.intp]) -> Array:
    """The largest of every episode, over its windows, frames and channels; NaN is what was not measured."""
    largest = np.full(int(clusters.max()) + 1, -np.inf)
    np.maximum.at(largest, clusters, np.nanmax(size, axis=(1, 2)))
    return largest
