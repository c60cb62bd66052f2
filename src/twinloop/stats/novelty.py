"""Detect novelty: clusters of rows far from all reference rows, and outliers among values of one kind.

Rows are clips, clusters are episodes. A cluster's score is the mean over its rows of the logarithm of a distance. The
distance is that to the k-th nearest reference row (Loftsgaarden & Quesenberry, "A nonparametric estimate of a
multivariate density function", Ann. Math. Stat. 36, 1965), or Mahalanobis' with a shrunk covariance, which corresponds
to a normal density.

References must not be scored by a fit to themselves. They are split into folds of whole clusters; each fold is scored
by the fit to the others. A new cluster is compared with a reference by the fit without that reference. The p-value is
the share of references with at least the same score: cross-conformal (Vovk, "Cross-conformal predictors", Ann. Math.
Artif. Intell. 74, 2015). Its false-alarm rate is at most twice the stated level for any data (Barber, Candès, Ramdas &
Tibshirani, "Predictive inference with the jackknife+", Ann. Stat. 49, 2021, theorem 4), and near the level if the fits
are similar.

A fence is a limit at the median plus or minus a multiple of the distance to the quartile on that side, so that a skewed
distribution is not cut on its long side (Kimber, "Exploratory data analysis for possibly censored data from skewed
distributions", J. R. Stat. Soc. C 39, 1990). Up to a quarter of the values may be wrong on one side.
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

LEAST_CLUSTERS = 10  # with fewer, no p-value is below 0.09
_BLOCK = 64_000_000  # bytes of distances at once
_KEPT = 0.95  # share of the variance in the axes for neighbours (our choice; usual for a scree plot)
_MOST_AXES = 32
_FOLDS = 5
_NEIGHBOUR = 5  # the distance is that to this neighbour


@dataclass(frozen=True, kw_only=True)
class WhitenedReference:
    """Reference rows in whitened axes: columns standardized and clipped, covariance shrunk, principal axes.

    ``mean`` and ``sd`` ``(d,)`` standardize the columns. ``whiten`` ``(d, k)`` maps to the first axes with unit
    variance. ``inverse`` ``(d, d)`` is the inverse of the shrunk covariance. ``rows`` are ``(n, k)``, ``clusters``
    ``(n,)``.
    """

    mean: Array
    sd: Array
    whiten: Array
    inverse: Array
    rows: NDArray[np.float32]
    clusters: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Array, clusters: NDArray[np.int64]) -> WhitenedReference:
        """Fit to reference rows ``(n, d)``; a constant column gets a small standard deviation instead of zero."""
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
        """Return rows ``(m, d)`` in standard deviations of the references, clipped."""
        return _compress_outliers((rows - self.mean) / self.sd)

    def score(self, rows: Array, kind: Kind) -> Array:
        """Return novelty scores ``(m,)`` of rows ``(m, d)`` of other clusters: logarithms of distances."""
        scaled = self.scale_rows(rows)
        if kind == "density":
            return 0.5 * np.log(np.maximum(np.einsum("nd,de,ne->n", scaled, self.inverse, scaled), 1e-12))
        return np.log(np.maximum(self.find_neighbours(rows, _NEIGHBOUR)[0][:, -1], 1e-6))

    def find_neighbours(self, rows: Array, count: int) -> tuple[Array, NDArray[np.intp]]:
        """Return distances to the nearest reference rows, ascending, and their indices: both ``(m, count)``."""
        given = (self.scale_rows(rows) @ self.whiten).astype(np.float32)
        count = min(count, len(self.rows))
        squares = np.einsum("nd,nd->n", self.rows, self.rows)
        distance, place = np.empty((len(given), count)), np.empty((len(given), count), dtype=np.intp)
        height = max(1, _BLOCK // (4 * len(self.rows)))
        for begin in range(0, len(given), height):
            block = given[begin : begin + height]
            apart = np.einsum("nd,nd->n", block, block)[:, None] + squares - 2.0 * (block @ self.rows.T)
            near = np.argpartition(apart, count - 1, axis=1)[:, :count]
            found = np.take_along_axis(apart, near, axis=1)
            order = np.argsort(found, axis=1)
            place[begin : begin + height] = np.take_along_axis(near, order, axis=1)
            found = np.take_along_axis(found, order, axis=1)
            distance[begin : begin + height] = np.sqrt(np.maximum(found, 0.0))
        return distance, place


@dataclass(frozen=True, kw_only=True)
class NoveltyScores:
    """Novelty of clusters.

    ``names`` ``(c,)`` are the new clusters, with ``scores`` ``(c,)`` by the fit to all references and ``p_values``
    ``(c,)``. ``row_scores`` ``(m,)`` are those of the new rows. ``reference`` ``(r,)`` are the held-out scores of the
    reference clusters. ``space`` is the fit to all references.
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
    """Return the novelty of every cluster of rows ``(m, d)`` relative to reference rows ``(n, d)``.

    Args:
        reference: rows of known good episodes.
        rows: rows to score; must not be among the references.
        reference_clusters: episode of each reference row ``(n,)``.
        clusters: episode of each row ``(m,)``.
        kind: distance to the fifth neighbour, or density.
        seed: seed of the five folds of the references.

    Raises:
        InputError: shapes that do not match, a value that is not finite, or fewer than `LEAST_CLUSTERS` references.
    """
    known, label = _check_rows(reference, reference_clusters, "Reference")
    given, name = _check_rows(rows, clusters, "Judged")
    names, place = np.unique(label, return_inverse=True)
    if len(names) < LEAST_CLUSTERS:
        raise InputError(f"{len(names)} reference episodes are too few; give at least {LEAST_CLUSTERS}.")
    fold = generator(seed, "stats/novelty/folds").permutation(len(names)) % _FOLDS
    new, of = np.unique(name, return_inverse=True)
    held_out, beaten = np.empty(len(names)), np.zeros(len(new))
    for number in range(_FOLDS):
        out = fold[place] == number
        space = WhitenedReference.of(known[~out], label[~out])
        mine = _cluster_means(space.score(known[out], kind), place[out], len(names))[fold == number]
        theirs = _cluster_means(space.score(given, kind), of, len(new))
        held_out[fold == number] = mine
        beaten += np.sum(mine[None, :] >= theirs[:, None], axis=1)
    space = WhitenedReference.of(known, label)
    row_scores = space.score(given, kind)
    return NoveltyScores(
        names=new,
        scores=_cluster_means(row_scores, of, len(new)),
        p_values=(1.0 + beaten) / (len(names) + 1.0),
        row_scores=row_scores,
        reference=held_out,
        space=space,
    )


def shrunk_covariance(rows: ArrayLike) -> Array:
    """Return the Ledoit-Wolf covariance of rows ``(n, d)``: the sample's, shrunk towards a multiple of the identity.

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
    """Return values with a logarithmic scale beyond ten standard deviations, so that one column cannot dominate."""
    size = np.abs(values)
    return np.where(size > 10.0, np.sign(values) * 10.0 * (1.0 + np.log(np.maximum(size, 10.0) / 10.0)), values)


def _cluster_means(values: Array, label: NDArray[np.intp], count: int) -> Array:
    totals = np.bincount(label, weights=values, minlength=count)
    return totals / np.maximum(np.bincount(label, minlength=count), 1)


def _check_rows(rows: ArrayLike, clusters: ArrayLike, what: str) -> tuple[Array, NDArray[np.int64]]:
    values, label = np.asarray(rows, dtype=np.float64), np.asarray(clusters, dtype=np.int64)
    if values.ndim != 2 or not len(values) or label.shape != (len(values),) or not np.isfinite(values).all():
        raise InputError(
            f"{what} rows are a finite table (n, d) with an episode each; given {values.shape} and {label.shape}."
        )
    return values, label


# 2.2 interquartile ranges beyond the quartile: of samples of up to 300 normal values, one in twenty has a value outside
# (Hoaglin & Iglewicz, "Fine-tuning some resistant rules for outlier labeling", J. Am. Stat. Assoc. 82, 1987). From the
# median that is 1 + 2 · 2.2 half ranges: 3.6 standard deviations of a normal distribution.
_REACH = 1.0 + 2.0 * 2.2
# Fewer values are too few for quartiles: at ten, each quarter has two.
LEAST_VALUES = 10


@dataclass(frozen=True, kw_only=True)
class ValueFence:
    """Usual range of values of one kind: ``median``, and the limits ``low`` and ``high`` beyond which are outliers."""

    median: float
    low: float
    high: float
    count: int

    def double_limits(self) -> tuple[float, float]:
        """Return both limits at twice their distance from the median."""
        return 2 * self.low - self.median, 2 * self.high - self.median


def fence(values: ArrayLike, *, least: float = 0.0, stretch: float = 1.0) -> ValueFence:
    """Return the fence of values ``(n,)``; NaN is ignored.

    Args:
        values: values of one kind.
        least: minimum distance of the limits from the median; smaller differences do not matter.
        stretch: factor on the distance of the limits, for example if many metrics of one object are checked.

    Raises:
        InputError: fewer than `LEAST_VALUES` known values.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if len(known) < LEAST_VALUES:
        raise InputError(f"{len(known)} values are too few for quartiles; a fence needs {LEAST_VALUES}.")
    low, median, high = np.quantile(known, (0.25, 0.5, 0.75))
    reach = stretch * _REACH
    return ValueFence(
        median=float(median),
        low=float(median - max(reach * (median - low), least)),
        high=float(median + max(reach * (high - median), least)),
        count=len(known),
    )
