"""Fit a ridge discriminant that separates two samples, and score rows by fits without their episode.

It is the classifier of `stats.classifier`: a ridge discriminant of columns and their squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from twinloop.core.records import freeze_array
from twinloop.core.seeds import generator
from twinloop.stats.two_sample import Array, TwoSampleRows, observed_labels, two_samples

# Values are clipped at this many standard deviations: one outlier must not determine a direction.
_CLIP = 5.0
# The ridge leaves a third of the training episodes as degrees of freedom; this rule does not depend on labels.
_FREEDOM = 1 / 3
_ROUND_OFF = 1e-9  # in standard deviations, the unit of the features


@dataclass(frozen=True, kw_only=True)
class DiscriminantFeatures:
    """Columns standardized and clipped, and with ``quadratic`` also their squares.

    ``mean`` and ``sd`` ``(d,)`` are of both samples together, so they are independent of the labels. A constant column
    gives 0.
    """

    mean: Array
    sd: Array
    quadratic: bool

    @classmethod
    def of(cls, rows: Array, *, quadratic: bool) -> DiscriminantFeatures:
        """Estimate mean and standard deviation from the rows of both samples."""
        sd = rows.std(axis=0)
        constant = sd <= 1e-12 * (1e-300 + np.abs(rows).max(axis=0))
        return cls(mean=rows.mean(axis=0), sd=np.where(constant, np.inf, sd), quadratic=quadratic)

    def __call__(self, rows: ArrayLike) -> Array:
        """Return features ``(…, d)`` or ``(…, 2 d)`` of rows ``(…, d)``."""
        scaled = np.clip((np.asarray(rows, dtype=np.float64) - self.mean) / self.sd, -_CLIP, _CLIP)
        if not self.quadratic:
            return scaled
        return np.concatenate([scaled, (scaled**2 - 1) / np.sqrt(2)], axis=-1)  # variance 1 of a normal column

    def sum_by_column(self, values: Array) -> Array:
        """Sum values of features that come from the same column: ``(…, d)``."""
        return values[..., : len(self.mean)] + values[..., len(self.mean) :] if self.quadratic else values


@dataclass(frozen=True, kw_only=True)
class Discriminant:
    """Linear classifier of rows: its score is positive for rows that it classifies as real.

    ``coefficients`` has one value per feature; a score is features · coefficients − ``midpoint``.
    """

    features: DiscriminantFeatures
    coefficients: Array
    midpoint: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", freeze_array(self.coefficients))

    def score(self, rows: ArrayLike) -> Array:
        """Return scores ``(…,)`` of rows ``(…, d)``: positive if classified as real."""
        return self.features(rows) @ self.coefficients - self.midpoint


@dataclass(frozen=True, kw_only=True)
class DiscriminantLearner:
    """Statistics of the features of some episodes that do not depend on the labels real and simulated.

    ``means`` ``(C, f)`` are the mean features of each episode (zero for held-out ones). ``used`` ``(C,)`` marks the
    episodes. ``inverse`` ``(f, f)`` is the inverse of the covariance with ridge.
    """

    means: Array
    used: NDArray[np.bool_]
    inverse: Array

    def directions(self, real: Array, sim: Array) -> tuple[Array, Array]:
        """Return coefficients ``(f, k)`` and midpoints ``(k,)`` for weights ``(k, C)`` of real and simulated episodes.

        NaN if one side has no weight.
        """
        mean_real, mean_sim = self._mean(real * self.used), self._mean(sim * self.used)
        apart = mean_real - mean_sim
        apart[np.abs(apart) <= _ROUND_OFF] = 0.0  # equal sides must not differ by the order of summation
        coefficients = self.inverse @ apart.T
        return coefficients, 0.5 * np.einsum("kf,fk->k", mean_real + mean_sim, coefficients)

    def _mean(self, weights: Array) -> Array:
        total = weights.sum(axis=1, keepdims=True)
        sums = weights @ self.means
        return np.divide(sums, total, out=np.full(sums.shape, np.nan), where=total > 0)


def fit_learner(features: Array, samples: TwoSampleRows, used: NDArray[np.bool_]) -> DiscriminantLearner:
    """Compute the statistics from features ``(n, f)`` of the episodes ``used`` ``(C,)``, with equal weights."""
    rows = used[samples.episode]
    weight = rows / samples.sizes[samples.episode] / used.sum()
    centred = (features - weight @ features)[rows]
    covariance = (centred * weight[rows, None]).T @ centred
    values, vectors = eigh(covariance)
    ridge = _choose_ridge(np.maximum(values, 0.0), _FREEDOM * int(used.sum()))
    means = np.add.reduceat(features, samples.starts, axis=0) / samples.sizes[:, None]
    return DiscriminantLearner(means=means * used[:, None], used=used, inverse=(vectors / (values + ridge)) @ vectors.T)


def _choose_ridge(values: Array, freedom: float) -> float:
    """Return λ with Σ v / (v + λ) equal to the degrees of freedom; at least 10⁻³ of the mean of v."""
    least = 1e-3 * max(float(values.mean()), 1e-12)

    def excess(exponent: float) -> float:
        return float(np.sum(values / (values + np.exp(exponent)))) - freedom

    low, high = np.log(least), np.log(least) + 40.0
    if excess(low) <= 0 or excess(high) >= 0:
        return float(least if excess(low) <= 0 else np.exp(high))
    return float(np.exp(np.asarray(scipy.optimize.brentq(excess, low, high))))


WIDE = 256  # columns up to which squares are added
_FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class CrossFittedScores:
    """Held-out scores, positive if classified as simulated, in standard deviations of held-out real rows.

    ``real`` ``(n,)`` and ``sim`` ``(m,)`` are relative to the mean of the real rows. ``real_parts`` ``(n, d)`` and
    ``sim_parts`` ``(m, d)`` are their parts by column.
    """

    real: Array
    sim: Array
    real_parts: Array
    sim_parts: Array


def cross_fit(
    real: ArrayLike,
    sim: ArrayLike,
    *,
    real_clusters: ArrayLike,
    sim_clusters: ArrayLike,
) -> CrossFittedScores:
    """Score rows ``(n, d)`` and ``(m, d)`` of two samples, with whole episodes held out in at most five folds.

    Args:
        real: real rows ``(n, d)``.
        sim: simulated rows ``(m, d)``.
        real_clusters: episode number of each real row.
        sim_clusters: episode number of each simulated row.

    Raises:
        InputError: the rows cannot be compared, or a side has fewer than two episodes.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters)
    count = max(2, min(_FOLDS, samples.nreal // 2, samples.nsim // 2))
    rng = generator(0, "stats/cross-fit/folds")
    fold = np.concatenate([rng.permutation(samples.nreal) % count, rng.permutation(samples.nsim) % count])
    expand = DiscriminantFeatures.of(samples.rows, quadratic=samples.rows.shape[1] <= WIDE)
    features = expand(samples.rows)
    parts = np.empty_like(features)
    for number in range(count):
        rows = fold[samples.episode] == number
        parts[rows] = _score_held_out(features, samples, fold != number, rows)
    ordered = np.empty((len(parts), samples.rows.shape[1]))
    ordered[samples.order] = expand.sum_by_column(parts)
    n = samples.real_rows
    return CrossFittedScores(
        real=ordered[:n].sum(axis=1), sim=ordered[n:].sum(axis=1), real_parts=ordered[:n], sim_parts=ordered[n:]
    )


def _score_held_out(features: Array, samples: TwoSampleRows, used: NDArray[np.bool_], rows: NDArray[np.bool_]) -> Array:
    """Return the parts by feature of the scores of ``rows``, by the fit to the episodes ``used``."""
    known = fit_learner(features, samples, used)
    real, sim = observed_labels(samples)
    coefficients = -known.directions(real, sim)[0][:, 0]
    learned = np.flatnonzero(used[: samples.nreal])
    centre = known.means[learned].mean(axis=0)
    part = (features[rows] - centre) * coefficients
    mine = samples.episode[rows] < samples.nreal
    spread = float(part[mine].sum(axis=1).std())
    return part / (spread if spread > 0 else 1.0)
