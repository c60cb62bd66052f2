"""Whether a row lies where rows of successes lie: neighbours, density, random networks.

Which of them sees most is measured by `python -m benchmarks monitor`; see docs/monitoring.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.seeds import generator
from twinloop.release.monitor.judging import Arrays
from twinloop.stats.novelty import Space

Array = NDArray[np.float64]
Kind = Literal["neighbours", "density", "random_network"]
_MOST_ROWS = 3000  # kept of the references: 200 distances to each take a millisecond
_NEIGHBOUR = 5  # the one whose distance counts, as in `stats.novelty`
_TARGETS, _FEATURES, _RIDGE = 32, 256, 1e-3  # of the random network; our choice


@dataclass(frozen=True, kw_only=True)
class Outlying(Arrays):
    """How far from rows of successes: logarithms of distances to neighbours, or of Mahalanobis' distance.

    The arrays are those of `stats.novelty.Space`; ``dense`` is 1 for Mahalanobis' distance.
    """

    kind: ClassVar[str] = "outlying"
    mean: Array
    sd: Array
    whiten: Array
    inverse: Array
    rows: NDArray[Any]
    dense: NDArray[Any]

    @classmethod
    def fit(cls, rows: Array, *, dense: bool) -> Outlying:
        """To rows ``(n, d)``."""
        space = Space.of(rows, np.zeros(len(rows), dtype=np.int64))
        kept = space.rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(int)]
        whole = {name: getattr(space, name) for name in ("mean", "sd", "whiten", "inverse")}
        return cls(rows=kept[:1] if dense else kept, dense=np.array(float(dense)), **whole)

    def scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:  # noqa: ARG002  # see `Judge`
        """See `Judge`."""
        space = Space(
            mean=self.mean,
            sd=self.sd,
            whiten=self.whiten,
            inverse=self.inverse,
            rows=self.rows.astype(np.float32),
            clusters=np.zeros(len(self.rows), dtype=np.int64),
        )
        flat = rows.reshape(-1, rows.shape[-1])
        known = np.isfinite(flat).all(axis=1)
        out = np.full(len(flat), np.nan)
        if known.any():
            out[known] = space.score(flat[known], "density" if self.dense else "neighbours", _NEIGHBOUR)
        return {"": out.reshape(rows.shape[:-1])}


@dataclass(frozen=True, kw_only=True)
class RandomNetwork(Arrays):
    """How badly a regression that was fitted on successes foretells what a fixed random network makes of a row.

    Random network distillation (Burda, Edwards, Storkey & Klimov, "Exploration by random network distillation", ICLR
    2019) with a ridge regression on random features in the place of a trained network, so that a fit has one answer.
    """

    kind: ClassVar[str] = "random_network"
    mean: Array
    sd: Array
    target: Array
    hidden: Array
    bias: Array
    weights: Array

    @classmethod
    def fit(cls, rows: Array, *, seed: int = 0) -> RandomNetwork:
        """To rows ``(n, d)``."""
        random, d = generator(seed, "monitor/random_network"), rows.shape[1]
        mean, sd = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9)
        made = cls(
            mean=mean,
            sd=sd,
            target=random.normal(size=(d, _TARGETS)) * 2.0 / np.sqrt(d),
            hidden=random.normal(size=(d, _FEATURES)) / np.sqrt(d),
            bias=random.uniform(0.0, 2.0 * np.pi, _FEATURES),
            weights=np.zeros((_FEATURES, _TARGETS)),
        )
        given = made._scaled(rows)
        known, wanted = made._features(given), np.tanh(given @ made.target)
        penalty = _RIDGE * len(rows) * np.eye(_FEATURES)
        weights = np.linalg.solve(known.T @ known + penalty, known.T @ wanted)
        return cls(**{**made.to_arrays(), "weights": weights})

    def scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:  # noqa: ARG002  # see `Judge`
        """See `Judge`: the logarithm of the mean squared error."""
        given = self._scaled(rows)
        error = self._features(given) @ self.weights - np.tanh(given @ self.target)
        return {"": np.log(np.mean(error**2, axis=-1) + 1e-12)}

    def _scaled(self, rows: Array) -> Array:
        return np.clip((rows - self.mean) / self.sd, -10.0, 10.0)

    def _features(self, given: Array) -> Array:
        return np.cos(given @ self.hidden + self.bias)


def fit_outlying(rows: Array, kind: Kind) -> Outlying | RandomNetwork:
    """A judge of a kind, fitted to rows ``(n, d)``."""
    return RandomNetwork.fit(rows) if kind == "random_network" else Outlying.fit(rows, dense=kind == "density")
