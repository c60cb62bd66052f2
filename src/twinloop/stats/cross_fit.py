"""Scores of single rows by a discriminator that never saw their episode, and which columns they are made of.

The discriminator is the one of `stats.classifier`: a ridge discriminant of columns and their squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.seeds import generator
from twinloop.stats.classifier_fit import Features, learner
from twinloop.stats.two_sample import Array, TwoSample, two_samples
from twinloop.stats.two_sample_labels import observed_labels

_WIDE = 256  # columns up to which squares are added, as in `stats.classifier`


@dataclass(frozen=True, kw_only=True)
class CrossFit:
    """Held-out scores, positive where a row looks simulated, in standard deviations of held-out real rows.

    ``real`` ``(n,)`` and ``sim`` ``(m,)`` are about the mean of the real rows; ``real_parts`` ``(n, d)`` and
    ``sim_parts`` ``(m, d)`` sum to them by column.
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
    folds: int = 5,
    seed: int = 0,
) -> CrossFit:
    """Score rows ``(n, d)`` and ``(m, d)`` of two samples, whole episodes held out.

    Args:
        real: ``(n, d)``.
        sim: ``(m, d)``.
        real_clusters: number of each real row's episode.
        sim_clusters: of each simulated row's.
        folds: parts into which episodes are split, fewer where there are few episodes.
        seed: of the folds.

    Raises:
        InputError: rows that cannot be compared, or fewer than two episodes a side.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters)
    count = max(2, min(folds, samples.nreal // 2, samples.nsim // 2))
    rng = generator(seed, "stats/cross-fit/folds")
    fold = np.concatenate([rng.permutation(samples.nreal) % count, rng.permutation(samples.nsim) % count])
    expand = Features.of(samples.rows, quadratic=samples.rows.shape[1] <= _WIDE)
    features = expand(samples.rows)
    parts = np.empty_like(features)
    for number in range(count):
        rows = fold[samples.episode] == number
        parts[rows] = _held_out(features, samples, fold != number, rows)
    ordered = np.empty((len(parts), samples.rows.shape[1]))
    ordered[samples.order] = expand.by_column(parts)
    n = samples.real_rows
    return CrossFit(
        real=ordered[:n].sum(axis=1), sim=ordered[n:].sum(axis=1), real_parts=ordered[:n], sim_parts=ordered[n:]
    )


def _held_out(features: Array, samples: TwoSample, used: NDArray[np.bool_], rows: NDArray[np.bool_]) -> Array:
    """Parts of the scores of ``rows`` by the fit to the episodes ``used``."""
    known = learner(features, samples, used)
    real, sim = observed_labels(samples)
    coefficients = -known.directions(real, sim)[0][:, 0]
    learned = np.flatnonzero(used[: samples.nreal])
    centre = known.means[learned].mean(axis=0)
    part = (features[rows] - centre) * coefficients
    mine = samples.episode[rows] < samples.nreal
    spread = float(part[mine].sum(axis=1).std())
    return part / (spread if spread > 0 else 1.0)
