"""Detect novelty: episodes with rows far from all reference rows, and outliers among values of one kind.

A row is the feature vector of a clip, and a cluster is an episode. The novelty score of a cluster is the mean over its
rows of the logarithm of a distance. This distance is either that to the k-th nearest reference row (Loftsgaarden &
Quesenberry, "A nonparametric estimate of a multivariate density function", Ann. Math. Stat. 36, 1965), or the
Mahalanobis distance with a shrunk covariance, which corresponds to a normal density.

A reference cluster must not be scored by a fit that includes it. The references are split into folds of whole clusters,
and each fold is scored by the fit to the other folds. A new cluster is compared with a reference cluster by the fit
without the fold of that reference. The p-value of the new cluster is the share of references that are at least as
novel: a cross-conformal p-value (Vovk, "Cross-conformal predictors", Ann. Math. Artif. Intell. 74, 2015). If alarms are
raised for p-values up to α, the false-alarm rate is at most 2 α for any data (Barber, Candès, Ramdas & Tibshirani,
"Predictive inference with the jackknife+", Ann. Stat. 49, 2021, theorem 4), and near α if the fits are similar.

For single values, a fence is a limit beyond which a value is an outlier. It is at the median plus or minus a multiple
of the distance to the quartile on the same side, so that values in the long tail of a skewed distribution are not
outliers (Kimber, "Exploratory data analysis for possibly censored data from skewed distributions", J. R. Stat. Soc. C
39, 1990). It is valid if up to a quarter of the values on one side are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator

Array = NDArray[np.float64]
Kind = Literal["neighbours", "density"]

MIN_CLUSTERS = 10  # with fewer, no p-value is below 0.09
_BLOCK = 64_000_000  # bytes of distances that are held at once
_KEPT = 0.95  # share of the variance in the axes for neighbours (our choice; usual for a scree plot)
_MOST_AXES = 32
_FOLDS = 5
_NEIGHBOUR = 5  # number of the nearest neighbour whose distance is the score


@dataclass(frozen=True, kw_only=True)
class WhitenedReference:
    """Reference rows in whitened coordinates: standardized columns, projected on principal axes of unit variance.

    Attributes:
        mean: Mean of each of the d columns, shape ``(d,)``.
        sd: Standard deviation of each column, shape ``(d,)``.
        whiten: Map from standardized columns to the first k principal axes with unit variance, shape ``(d, k)``.
        inverse: Inverse of the shrunk covariance of the standardized columns, shape ``(d, d)``.
        rows: Reference rows in whitened coordinates, shape ``(n, k)``.
        clusters: Episode number of each reference row, shape ``(n,)``.
    """

    mean: Array
    sd: Array
    whiten: Array
    inverse: Array
    rows: NDArray[np.float32]
    clusters: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Array, clusters: NDArray[np.int64]) -> WhitenedReference:
        """Fit mean, standard deviation and covariance to reference rows.

        A constant column gets a small standard deviation instead of zero.

        Args:
            rows: Reference rows, shape ``(n, d)``.
            clusters: Episode number of each row, shape ``(n,)``.
        """
        mean, sd = rows.mean(axis=0), rows.std(axis=0)
        sd = np.where(sd <= 1e-9 * (1e-12 + np.abs(rows).max(axis=0)), np.maximum(np.abs(mean), 1.0) * 1e-3, sd)
        scaled = _compress_outliers((rows - mean) / sd)
        covariance = shrunk_covariance(scaled)
        values, vectors = np.linalg.eigh(covariance)
        order = np.argsort(values)[::-1]
        values, vectors = values[order], vectors[:, order]
        kept = min(int(np.searchsorted(np.cumsum(values) / values.sum(), _KEPT)) + 1, _MOST_AXES)
        whiten = vectors[:, :kept] / np.sqrt(values[:kept])
        inverse = (vectors / values) @ vectors.T
        return cls(
            mean=mean,
            sd=sd,
            whiten=whiten,
            inverse=inverse,
            rows=(scaled @ whiten).astype(np.float32),
            clusters=np.asarray(clusters, dtype=np.int64),
        )

    def scale_rows(self, rows: Array) -> Array:
        """Return rows ``(m, d)`` in standard deviations of the references; a logarithm compresses values beyond ±10."""
        return _compress_outliers((rows - self.mean) / self.sd)

    def score(self, rows: Array, kind: Kind) -> Array:
        """Return the novelty score of each row of new clusters: the logarithm of its distance from the references.

        Args:
            rows: Rows of clusters that are not among the references, shape ``(m, d)``.
            kind: ``neighbours`` for the distance to the fifth nearest neighbour, ``density`` for the Mahalanobis
                distance.

        Returns:
            Shape ``(m,)``.
        """
        scaled = self.scale_rows(rows)
        if kind == "density":
            return 0.5 * np.log(np.maximum(np.einsum("nd,de,ne->n", scaled, self.inverse, scaled), 1e-12))
        return np.log(np.maximum(self.find_neighbours(rows, _NEIGHBOUR)[0][:, -1], 1e-6))

    def find_neighbours(self, rows: Array, count: int) -> tuple[Array, NDArray[np.intp]]:
        """Find the ``count`` nearest reference rows of each row ``(m, d)``.

        Returns:
            Distances in ascending order, and indices of the reference rows, shape ``(m, count)`` each.
        """
        given = (self.scale_rows(rows) @ self.whiten).astype(np.float32)
        count = min(count, len(self.rows))
        squares = np.einsum("nd,nd->n", self.rows, self.rows)
        distance, place = np.empty((len(given), count)), np.empty((len(given), count), dtype=np.intp)
        height = max(1, _BLOCK // (4 * len(self.rows)))
        for begin in range(0, len(given), height):
            block = given[begin : begin + height]
            squared = np.einsum("nd,nd->n", block, block)[:, None] + squares - 2.0 * (block @ self.rows.T)
            near = np.argpartition(squared, count - 1, axis=1)[:, :count]
            nearest = np.take_along_axis(squared, near, axis=1)
            order = np.argsort(nearest, axis=1)
            place[begin : begin + height] = np.take_along_axis(near, order, axis=1)
            nearest = np.take_along_axis(nearest, order, axis=1)
            distance[begin : begin + height] = np.sqrt(np.maximum(nearest, 0.0))
        return distance, place


@dataclass(frozen=True, kw_only=True)
class NoveltyScores:
    """Novelty of new clusters (episodes) relative to reference clusters.

    Attributes:
        names: Episode numbers of the new clusters, shape ``(c,)``.
        scores: Novelty score of each new cluster by the fit to all references, shape ``(c,)``; larger is more novel.
        p_values: P-value of the hypothesis that a cluster is like the references, shape ``(c,)``.
        row_scores: Novelty score of each new row, shape ``(m,)``.
        reference: Held-out scores of the reference clusters, shape ``(r,)``.
        space: Whitening and nearest-neighbour or normal model that was fitted to all references.
    """

    names: NDArray[np.int64]
    scores: Array
    p_values: Array
    row_scores: Array
    reference: Array
    space: WhitenedReference


def score_novelty(
    reference: ArrayLike,
    rows: ArrayLike,
    *,
    reference_clusters: ArrayLike,
    clusters: ArrayLike,
    kind: Kind = "neighbours",
    seed: int = 0,
) -> NoveltyScores:
    """Return the novelty of every cluster (episode) of new rows relative to reference rows.

    Args:
        reference: Rows of known good episodes, shape ``(n, d)``.
        rows: Rows to score, shape ``(m, d)``; they must not be among the references.
        reference_clusters: Episode number of each reference row, shape ``(n,)``.
        clusters: Episode number of each row to score, shape ``(m,)``.
        kind: ``neighbours`` for the distance to the fifth nearest neighbour, ``density`` for the Mahalanobis distance.
        seed: Seed of the split of the references into five folds.

    Raises:
        InputError: If shapes do not match, a value is not finite, or there are fewer than ten reference clusters.
    """
    known, label = _check_rows(reference, reference_clusters, "Reference")
    given, name = _check_rows(rows, clusters, "New")
    names, place = np.unique(label, return_inverse=True)
    if len(names) < MIN_CLUSTERS:
        raise InputError(f"{len(names)} reference episodes are too few; give at least {MIN_CLUSTERS}.")
    fold = generator(seed, "stats/novelty/folds").permutation(len(names)) % _FOLDS
    new, of = np.unique(name, return_inverse=True)
    held_out, larger = np.empty(len(names)), np.zeros(len(new))
    for number in range(_FOLDS):
        out = fold[place] == number
        space = WhitenedReference.of(known[~out], label[~out])
        mine = _cluster_means(space.score(known[out], kind), place[out], len(names))[fold == number]
        theirs = _cluster_means(space.score(given, kind), of, len(new))
        held_out[fold == number] = mine
        larger += np.sum(mine[None, :] >= theirs[:, None], axis=1)
    space = WhitenedReference.of(known, label)
    row_scores = space.score(given, kind)
    return NoveltyScores(
        names=new,
        scores=_cluster_means(row_scores, of, len(new)),
        p_values=(1.0 + larger) / (len(names) + 1.0),
        row_scores=row_scores,
        reference=held_out,
        space=space,
    )


def shrunk_covariance(rows: ArrayLike) -> Array:
    """Return the Ledoit-Wolf covariance of rows ``(n, d)``, the sample covariance shrunk towards a scaled identity.

    The shrinkage minimizes the expected squared error ("A well-conditioned estimator for large-dimensional covariance
    matrices", J. Multivar. Anal. 88, 2004, section 3.2).
    """
    x = np.asarray(rows, dtype=np.float64)
    x = x - x.mean(axis=0)
    n, d = x.shape
    sample = x.T @ x / n
    level = float(np.trace(sample)) / d
    spread = float(np.sum(sample**2)) / d - level**2
    squares = np.einsum("nd,nd->n", x, x)
    error = (float(np.sum(squares**2)) / n - float(np.sum(sample**2))) / (n * d)
    share = 1.0 if spread <= 0 else min(error / spread, 1.0)
    return (1.0 - share) * sample + share * level * np.eye(d)


def _compress_outliers(values: Array) -> Array:
    """Return standardized values with a logarithmic scale beyond ten, so that one column cannot dominate a distance."""
    size = np.abs(values)
    return np.where(size > 10.0, np.sign(values) * 10.0 * (1.0 + np.log(np.maximum(size, 10.0) / 10.0)), values)


def _cluster_means(values: Array, label: NDArray[np.intp], count: int) -> Array:
    totals = np.bincount(label, weights=values, minlength=count)
    return totals / np.maximum(np.bincount(label, minlength=count), 1)


def _check_rows(rows: ArrayLike, clusters: ArrayLike, what: str) -> tuple[Array, NDArray[np.int64]]:
    values, label = np.asarray(rows, dtype=np.float64), np.asarray(clusters, dtype=np.int64)
    if values.ndim != 2 or not len(values) or label.shape != (len(values),) or not np.isfinite(values).all():
        raise InputError(
            f"{what} rows must be a finite table (n, d) with one episode number per row; "
            f"the shapes are {values.shape} and {label.shape}."
        )
    return values, label


# 2.2 interquartile ranges beyond the quartile: of samples of up to 300 normal values, one in twenty has a value outside
# (Hoaglin & Iglewicz, "Fine-tuning some resistant rules for outlier labeling", J. Am. Stat. Assoc. 82, 1987). From the
# median that is 1 + 2 · 2.2 half ranges: 3.6 standard deviations of a normal distribution.
_REACH = 1.0 + 2.0 * 2.2
# Fewer values are too few for quartiles: at ten, each quarter has two.
MIN_VALUES = 10


@dataclass(frozen=True, kw_only=True)
class ValueFence:
    """Usual range of values of one kind; values below ``low`` or above ``high`` are outliers.

    Attributes:
        median: Median of the values.
        low: Lower limit.
        high: Upper limit.
        count: Number of values that are not NaN.
    """

    median: float
    low: float
    high: float
    count: int

    def double_limits(self) -> tuple[float, float]:
        """Return limits at twice the distance from the median, beyond which a value is an extreme outlier."""
        return 2 * self.low - self.median, 2 * self.high - self.median


def fence(values: ArrayLike, *, least: float = 0.0, stretch: float = 1.0) -> ValueFence:
    """Return the limits beyond which a value is an outlier (a fence), from median and quartiles; NaN is ignored.

    The limits are median ± 5.4 · ``stretch`` · (distance from the median to the quartile on the same side).

    Args:
        values: Values of one kind, in any unit, shape ``(n,)``.
        least: Smallest distance of the limits from the median, in the unit of the values; smaller differences do not
            matter.
        stretch: Factor on the distance of the limits from the median; larger if many metrics of one object are checked,
            to avoid false alarms.

    Raises:
        InputError: If fewer than ten values are known.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if len(known) < MIN_VALUES:
        raise InputError(f"{len(known)} values are too few for quartiles; a fence needs {MIN_VALUES}.")
    low, median, high = np.quantile(known, (0.25, 0.5, 0.75))
    reach = stretch * _REACH
    return ValueFence(
        median=float(median),
        low=float(median - max(reach * (median - low), least)),
        high=float(median + max(reach * (high - median), least)),
        count=len(known),
    )
