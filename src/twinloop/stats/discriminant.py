"""Fit a regularized linear discriminant of two samples, and score rows by fits without the row's own episode.

It is the classifier of `stats.classifier`, on columns and optionally their squares.
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
    """Map from rows to the features of the classifier: standardized columns, optionally also their squares.

    Standardized values are clipped to ±5. Mean and standard deviation are those of both samples together, so that they
    do not depend on the labels.

    Attributes:
        mean: Mean of each of d columns, shape ``(d,)``.
        sd: Standard deviation of each column, shape ``(d,)``; infinite for a constant column, whose feature is then 0.
        quadratic: Whether the square of each column is a feature too.
    """

    mean: Array
    sd: Array
    quadratic: bool

    @classmethod
    def of(cls, rows: Array, *, quadratic: bool) -> DiscriminantFeatures:
        """Create the map from rows to features, with the mean and the standard deviation of each column of ``rows``.

        Args:
            rows: Rows of both samples, shape ``(n, d)``.
            quadratic: Whether the squares of the standardized columns are added as features.
        """
        sd = rows.std(axis=0)
        constant = sd <= 1e-12 * (1e-300 + np.abs(rows).max(axis=0))
        return cls(mean=rows.mean(axis=0), sd=np.where(constant, np.inf, sd), quadratic=quadratic)

    def __call__(self, rows: ArrayLike) -> Array:
        """Return the features of rows ``(…, d)``, shape ``(…, d)``, or ``(…, 2 d)`` with squares."""
        scaled = np.clip((np.asarray(rows, dtype=np.float64) - self.mean) / self.sd, -_CLIP, _CLIP)
        if not self.quadratic:
            return scaled
        return np.concatenate([scaled, (scaled**2 - 1) / np.sqrt(2)], axis=-1)  # variance 1 of a normal column

    def sum_by_column(self, values: Array) -> Array:
        """Return, for each of the d columns of the data, the sum of the values of its features.

        A column has one feature, or two if ``quadratic`` is true (the standardized column and its square).

        Args:
        values: One number per feature, shape ``(…, nfeature)``.

        Returns:
        Shape ``(…, d)``.
        """
        return values[..., : len(self.mean)] + values[..., len(self.mean) :] if self.quadratic else values


@dataclass(frozen=True, kw_only=True)
class Discriminant:
    """Linear classifier of rows as real or simulated; a positive score means real.

    Attributes:
        features: Map from rows to features.
        coefficients: Coefficient of each feature, shape ``(nfeature,)``.
        midpoint: Constant that is subtracted: the score is features · coefficients − midpoint.
    """

    features: DiscriminantFeatures
    coefficients: Array
    midpoint: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", freeze_array(self.coefficients))

    def score(self, rows: ArrayLike) -> Array:
        """Return the score of each row ``(…, d)``, shape ``(…,)``; positive means classified as real."""
        return self.features(rows) @ self.coefficients - self.midpoint


@dataclass(frozen=True, kw_only=True)
class DiscriminantStatistics:
    """Statistics of training episodes that do not depend on the labels real and simulated.

    Discriminants for many assignments of labels are fitted fast from them.

    Attributes:
        means: Mean features of each of C episodes, zero for held-out episodes, shape ``(C, nfeature)``.
        used: Whether each episode is used for training, shape ``(C,)``.
        inverse: Inverse of the regularized covariance of the features, shape ``(nfeature, nfeature)``.
    """

    means: Array
    used: NDArray[np.bool_]
    inverse: Array

    def directions(self, real: Array, sim: Array) -> tuple[Array, Array]:
        """Return the coefficients and thresholds of k linear discriminants, one for each assignment of labels.

        Args:
            real: Weight of each of C episodes in the real sample, shape ``(k, C)``: 0 or 1 for a labelling, or the
                number of draws in a resample.
            sim: Weight of each episode in the simulated sample, shape ``(k, C)``.

        Returns:
            Coefficients ``(nfeature, k)`` and thresholds ``(k,)``; NaN if one side has no weight. The threshold is the
            score of the midpoint between the means of both classes.
        """
        mean_real, mean_sim = self._mean(real * self.used), self._mean(sim * self.used)
        difference = mean_real - mean_sim
        difference[np.abs(difference) <= _ROUND_OFF] = 0.0  # equal sides must not differ by the order of summation
        coefficients = self.inverse @ difference.T
        return coefficients, 0.5 * np.einsum("kf,fk->k", mean_real + mean_sim, coefficients)

    def _mean(self, weights: Array) -> Array:
        total = weights.sum(axis=1, keepdims=True)
        sums = weights @ self.means
        return np.divide(sums, total, out=np.full(sums.shape, np.nan), where=total > 0)


def compute_discriminant_statistics(
    features: Array, samples: TwoSampleRows, used: NDArray[np.bool_]
) -> DiscriminantStatistics:
    """Compute the episode means and the inverse covariance of the features, with equal weight per training episode.

    They do not depend on the labels real and simulated, so that many relabellings can use the same result.

    Args:
        features: Features of all rows, shape ``(n, nfeature)``.
        samples: The rows grouped by episode.
        used: Whether each episode is used for training, shape ``(nepisode,)``.
    """
    rows = used[samples.episode]
    weight = rows / samples.sizes[samples.episode] / used.sum()
    centred = (features - weight @ features)[rows]
    covariance = (centred * weight[rows, None]).T @ centred
    values, vectors = eigh(covariance)
    ridge = _choose_ridge(np.maximum(values, 0.0), _FREEDOM * int(used.sum()))
    means = np.add.reduceat(features, samples.starts, axis=0) / samples.sizes[:, None]
    return DiscriminantStatistics(
        means=means * used[:, None], used=used, inverse=(vectors / (values + ridge)) @ vectors.T
    )


def _choose_ridge(values: Array, freedom: float) -> float:
    """Return the ridge λ at which the fit has the given effective degrees of freedom Σ v / (v + λ).

    Args:
        values: Eigenvalues v of the covariance.
        freedom: Required degrees of freedom.

    Returns:
        λ, at least 10⁻³ times the mean of the eigenvalues.
    """
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
    """Scores of rows by discriminants that were fitted without the row's episode; larger means more like simulation.

    The sign is opposite to that of `Discriminant.score`, because the scores measure the distance from the real data.
    The unit is the standard deviation of held-out real rows, and 0 is the mean of the real training episodes.

    Attributes:
        real: Scores of real rows, shape ``(n,)``.
        sim: Scores of simulated rows, shape ``(m,)``.
        real_parts: Contribution of each of d columns to the scores of real rows, shape ``(n, d)``.
        sim_parts: Contribution of each column to the scores of simulated rows, shape ``(m, d)``.
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
    """Score the rows of two samples by a discriminant, with whole episodes held out in at most five folds.

    Args:
        real: Real rows, shape ``(n, d)``.
        sim: Simulated rows, shape ``(m, d)``.
        real_clusters: Episode number of each real row, shape ``(n,)``.
        sim_clusters: Episode number of each simulated row, shape ``(m,)``.

    Raises:
        InputError: If the rows cannot be compared, or a side has fewer than two episodes.
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
    """Return the contribution of each feature to the scores of held-out rows, shape ``(nrow, nfeature)``.

    Args:
        features: Features of all rows, shape ``(n, nfeature)``.
        samples: The rows grouped by episode.
        used: Whether each episode is used for training, that is, belongs to another fold, shape ``(nepisode,)``.
        rows: Whether each row is held out and scored, shape ``(n,)``.
    """
    statistics = compute_discriminant_statistics(features, samples, used)
    real, sim = observed_labels(samples)
    coefficients = -statistics.directions(real, sim)[0][:, 0]
    learned = np.flatnonzero(used[: samples.nreal])
    centre = statistics.means[learned].mean(axis=0)
    part = (features[rows] - centre) * coefficients
    mine = samples.episode[rows] < samples.nreal
    spread = float(part[mine].sum(axis=1).std())
    return part / (spread if spread > 0 else 1.0)
