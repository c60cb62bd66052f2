"""Test whether a small classifier separates held-out real rows from simulated rows, and compute the AUC of scores.

The test is that of Lopez-Paz & Oquab, "Revisiting classifier two-sample tests", ICLR 2017, with whole episodes held out
and labels of episodes permuted. The classifier is Fisher's discriminant with a ridge (Friedman, "Regularized
discriminant analysis", J. Am. Stat. Assoc. 84, 1989). Its coefficients are a linear function of the labels, so that one
matrix product computes the fits for thousands of permutations of labels. A logistic regression finds nearly the same
direction but would need a fit each time. With the square of each column as a further feature the classifier detects
differences in spread as well as in mean.

Every fold has the same ratio of real to simulated episodes, and labels are only permuted within folds. The p-value is
therefore exact, and the area under the ROC curve (AUC) is not biased by the composition of the folds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.bootstrap import stretched_percentile
from twinloop.stats.discriminant import (
    WIDE,
    Discriminant,
    DiscriminantFeatures,
    DiscriminantStatistics,
    compute_discriminant_statistics,
)
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.two_sample import (
    Array,
    TwoSampleRows,
    column_names,
    min_p_value,
    observed_labels,
    relabel_episodes,
    resample_episodes,
    two_samples,
)

_RANKED = 4_000_000  # largest number of scores that are ranked at once, to limit memory
_LEAST_FOLDS = 2


@dataclass(frozen=True, kw_only=True)
class ClassifierTest:
    """Result of a classifier test of a real and a simulated sample.

    Attributes:
        columns: Names of d columns.
        auc: Area under the ROC curve: the chance that a real row scores higher than a simulated row of the same fold. ½
            means that held-out rows cannot be separated, 1 that they are separated completely. The interval is
            bootstrapped over episodes.
        accuracy: Share of correctly classified held-out rows, averaged over both samples.
        p_value: P-value of the hypothesis that the samples do not differ; NaN without a test.
        contributions: Contribution of each column to the mean held-out score of real minus that of simulated episodes,
            in standard deviations of the scores, shape ``(d,)``. Large contributions show which columns differ.
        scores: Held-out score of each given row, real rows first; positive means classified as real. If there are more
            than about 1000 episodes, they are combined into bundles of equal size (`TwoSampleRows.bundle_episodes`);
            rows of the few remaining episodes have NaN.
        classifier: Classifier fitted to all rows, to score new rows.
        folds: Number of folds.
        nreal: Number of real episodes.
        nsim: Number of simulated episodes.
    """

    columns: tuple[str, ...]
    auc: Interval
    accuracy: Interval
    p_value: float
    contributions: Interval
    scores: Array
    classifier: Discriminant
    folds: int
    nreal: int
    nsim: int

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that can be written as JSON, excluding scores and classifier."""
        return {
            "columns": list(self.columns),
            "auc": self.auc.to_json(),
            "accuracy": self.accuracy.to_json(),
            "p_value": self.p_value,
            "contributions": self.contributions.to_json(),
            "folds": self.folds,
            "episodes": {"real": self.nreal, "sim": self.nsim},
        }


def classifier_test(
    real: ArrayLike,
    sim: ArrayLike,
    *,
    real_clusters: ArrayLike,
    sim_clusters: ArrayLike,
    columns: Sequence[str] | None = None,
    paired: bool = False,
    quadratic: bool | None = None,
    folds: int = 5,
    level: float = 0.95,
    draws: int = 999,
    resamples: int = 1000,
    seed: int = 0,
) -> ClassifierTest:
    """Test whether a classifier separates real from simulated rows, with whole episodes held out.

    Args:
        real: Real rows (feature vectors), shape ``(n, d)``.
        sim: Simulated rows, shape ``(m, d)``.
        real_clusters: Episode number of each real row, shape ``(n,)``.
        sim_clusters: Episode number of each simulated row, shape ``(m,)``.
        columns: Names of the columns; by default numbers.
        paired: Whether equal episode numbers denote the same trial, see `two_samples`.
        quadratic: Whether to add each column's square as a feature; by default for up to 256 columns.
        folds: Number of folds of episodes; fewer if there are few episodes.
        level: Confidence level of the intervals. The permutation test must be able to reach a p-value of 1 − ``level``.
        draws: Number of relabellings of episodes for the permutation test; 0 for no test.
        resamples: Number of bootstrap resamples.
        seed: Seed of folds, relabellings and resamples.

    Raises:
        InputError: If the rows cannot be compared, the names do not match, or there are too few episodes for the test.
    """
    check_level(level)
    given = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    names = column_names(columns, given.rows.shape[1])
    samples = given.bundle_episodes(seed=seed)
    fold = _assign_folds(samples, folds, level if draws else None, seed)
    expand = DiscriminantFeatures.of(samples.rows, quadratic=len(names) <= WIDE if quadratic is None else quadratic)
    features = expand(samples.rows)
    fold_statistics = [
        compute_discriminant_statistics(features, samples, fold != number) for number in range(fold.max() + 1)
    ]
    scores, parts = _score_held_out(features, samples, fold, fold_statistics)
    evaluator = _EpisodeClassifier(
        features=features, samples=samples, fold=fold, fold_statistics=tuple(fold_statistics)
    )
    auc, p_value = evaluator.auc(*observed_labels(samples))[0], float("nan")
    if draws:
        labels = relabel_episodes(samples, draws, groups=fold, seed=seed)
        p_value = float(
            labels.p_value(auc, evaluator.auc(labels.real.astype(np.float64), (~labels.real).astype(np.float64)))
        )
    boot = resample_episodes(samples, resamples, seed=seed)
    original = np.full(len(given.rows), np.nan)
    original[samples.order] = scores
    return ClassifierTest(
        columns=names,
        auc=_auc(samples, auc, evaluator.auc(*boot), level),
        accuracy=_accuracy(samples, scores, boot, level),
        p_value=p_value,
        contributions=_contributions(samples, expand.sum_by_column(parts), boot, level),
        scores=original,
        classifier=_fit_all_rows(features, samples, expand),
        folds=len(fold_statistics),
        nreal=given.nreal,
        nsim=given.nsim,
    )


def _assign_folds(samples: TwoSampleRows, most: int, level: float | None, seed: int) -> NDArray[np.intp]:
    """Return the fold of each episode, shape ``(nepisode,)``.

    Args:
        samples: Rows of both samples.
        most: Largest number of folds; fewer are used if there are few episodes, or if so many folds allow too few
            permutations for a significant p-value.
        level: Confidence level of the test; None if there is no test.
        seed: Seed of the folds.

    Raises:
        InputError: If ``most`` is below two, or there are too few episodes for the test.
    """
    fewer = min(samples.nreal, samples.nsim)
    if most < _LEAST_FOLDS:
        raise InputError(f"{most} fold leaves no training data. Use at least {_LEAST_FOLDS}.")
    for count in range(max(_LEAST_FOLDS, min(most, fewer // 2)), _LEAST_FOLDS - 1, -1):
        if level is None or _smallest_p_value(samples, count) <= (1 - level) * (1 + 1e-9):
            return _draw_folds(samples, count, seed)
    raise InputError(_describe_too_few(samples, 1 - (level or 0.0)))


def _draw_folds(samples: TwoSampleRows, count: int, seed: int) -> NDArray[np.intp]:
    rng = generator(seed, "stats/classifier/folds")
    real = rng.permutation(samples.nreal) % count
    return np.concatenate([real, real if samples.paired else rng.permutation(samples.nsim) % count])


def _smallest_p_value(samples: TwoSampleRows, count: int) -> float:
    """Return the smallest p-value that the permutation test can reach.

    The labels real and simulated are exchanged between episodes of the same cross-validation fold. In paired samples
    they are exchanged within pairs instead, for any number of folds.

    Args:
    samples: Rows grouped by episode.
    count: Number of folds.
    """
    if samples.paired:
        return min_p_value(samples.nreal, samples.nsim, paired=True)
    sides = [np.bincount(np.arange(n) % count, minlength=count) for n in (samples.nreal, samples.nsim)]
    ways = math.prod(math.comb(int(a + b), int(a)) for a, b in zip(*sides, strict=True))
    return (2 if samples.nreal == samples.nsim else 1) / ways


def _describe_too_few(samples: TwoSampleRows, alpha: float) -> str:
    n, m = samples.nreal, samples.nsim
    if samples.paired:
        needed = next(k for k in range(_LEAST_FOLDS, 60) if 2.0 ** (1 - k) <= alpha)
        have, want = f"{n} pairs of episodes are", f"{needed} pairs"
    else:
        half = [(k + 1) // 2 for k in range(120)], [k // 2 for k in range(120)]
        ways = (2 / (math.comb(2 * a, a) * math.comb(2 * b, b)) for a, b in zip(*half, strict=True))
        needed = next(k for k, p in enumerate(ways) if k >= 2 * _LEAST_FOLDS and p <= alpha)
        have, want = f"{n} real and {m} simulated episodes are", f"{needed} of each"
    return (
        f"{have} too few for a classifier test at {alpha:.3g}, which trains on some episodes and is evaluated "
        f"on others: it needs {want}. Without a test (0 draws) the accuracy is still computed."
    )


def _score_held_out(
    features: Array, samples: TwoSampleRows, fold: NDArray[np.intp], fold_statistics: Sequence[DiscriminantStatistics]
) -> tuple[Array, Array]:
    """Return the score of each row by the fit to the other folds, and the contributions of the features to the scores.

    Args:
        features: Features of all rows, shape ``(n, nfeature)``.
        samples: Rows of both samples.
        fold: Fold of each episode, shape ``(nepisode,)``.
        fold_statistics: Statistics of the training episodes of each fold.

    Returns:
        Scores, shape ``(n,)``, and mean contribution of each feature in each episode, shape ``(nepisode, nfeature)``.
    """
    real, sim = observed_labels(samples)
    scores, parts = np.empty(len(features)), np.empty((samples.nepisode, features.shape[1]))
    means = np.add.reduceat(features, samples.starts, axis=0) / samples.sizes[:, None]
    for number, statistics in enumerate(fold_statistics):
        coefficients, midpoint = statistics.directions(real, sim)
        rows = fold[samples.episode] == number
        part = features[rows] @ coefficients[:, 0] - midpoint[0]
        spread = _within_sd(part, samples.episode[rows] < samples.nreal)
        scores[rows] = part / spread
        parts[fold == number] = means[fold == number] * coefficients[:, 0] / spread
    return scores, parts


def _within_sd(scores: Array, real: NDArray[np.bool_]) -> float:
    """Return the pooled standard deviation of scores within the real and the simulated rows; 1 if they do not vary."""
    spread = float(np.sqrt((scores[real].var() + scores[~real].var()) / 2))
    return spread if spread > 0 else 1.0


@dataclass(frozen=True, kw_only=True)
class _EpisodeClassifier:
    """Classifier that is fitted and evaluated again for relabelled or resampled episodes.

    Attributes:
        features: Features of all rows, shape ``(n, nfeature)``.
        samples: Rows of both samples.
        fold: Fold of each episode, shape ``(nepisode,)``.
        fold_statistics: Statistics of the training episodes of each fold.
    """

    features: Array
    samples: TwoSampleRows
    fold: NDArray[np.intp]
    fold_statistics: tuple[DiscriminantStatistics, ...]

    def auc(self, real: Array, sim: Array) -> Array:
        """Return the mean AUC over folds for k weightings of the episodes, shape ``(k,)``.

        The weights describe which episodes count as real or simulated, and how often: 0 or 1 for a relabelling, numbers
        of draws for a bootstrap resample. Training and evaluation use the same weights. A fold in which one side has no
        weight does not count.

        Args:
            real: Weight of each episode in the real sample, shape ``(k, nepisode)``.
            sim: Weight of each episode in the simulated sample, same shape.
        """
        total, folds = np.zeros(len(real)), np.zeros(len(real))
        for number, statistics in enumerate(self.fold_statistics):
            rows = self.fold[self.samples.episode] == number
            held, label = self.features[rows], self.samples.episode[rows]
            step = max(1, _RANKED // len(held))
            for begin in range(0, len(real), step):
                part = slice(begin, begin + step)
                scores = held @ statistics.directions(real[part], sim[part])[0]
                area = weighted_auc(scores, real[part][:, label].T, sim[part][:, label].T)
                counts = ~np.isnan(area)
                total[part] += np.where(counts, area, 0.0)
                folds[part] += counts
        return np.divide(total, folds, out=np.full(len(total), np.nan), where=folds > 0)


def weighted_auc(scores: Array, real: Array, sim: Array) -> Array:
    """Return the area under the ROC curve (AUC) of each of k columns of weighted scores, shape ``(k,)``.

    Ties count half. It is NaN if one side has no weight, or a score is NaN.

    Args:
        scores: Scores, shape ``(n, k)``.
        real: Weight of each row in the real sample, same shape.
        sim: Weight of each row in the simulated sample, same shape.
    """
    order = np.argsort(scores, axis=0, kind="stable")
    ranked, left, right = (np.take_along_axis(table, order, axis=0) for table in (scores, real, sim))
    upto = np.cumsum(right, axis=0)
    rises = np.diff(ranked, axis=0) > 0
    first = np.concatenate([np.ones((1, scores.shape[1]), dtype=bool), rises])
    last = np.concatenate([rises, np.ones((1, scores.shape[1]), dtype=bool)])
    below = np.maximum.accumulate(np.where(first, upto - right, 0.0), axis=0)
    through = np.minimum.accumulate(np.where(last, upto, np.inf)[::-1], axis=0)[::-1]
    pairs = left.sum(axis=0) * right.sum(axis=0)
    wins = 0.5 * np.sum(left * (below + through), axis=0)
    return np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=(pairs > 0) & ~np.isnan(scores).any(axis=0))


def _auc(samples: TwoSampleRows, estimate: float, drawn: Array, level: float) -> Interval:
    """Return the bootstrap interval of the AUC from the AUCs of resamples, each with its own fit.

    Resamples have fewer different episodes, so their AUCs are biased. The bias (their mean minus the estimate) is
    subtracted.

    Args:
        samples: Rows of both samples.
        estimate: AUC of the original samples.
        drawn: AUC of each resample.
        level: Confidence level.
    """
    finite = drawn[~np.isnan(drawn)]
    return _interval(
        samples, estimate, finite - (finite.mean() - estimate), level, (0.0, 1.0), "with a fit per resample"
    )


def _accuracy(samples: TwoSampleRows, scores: Array, boot: tuple[Array, Array], level: float) -> Interval:
    right = (scores > 0) == (samples.episode < samples.nreal)
    share = np.add.reduceat(right.astype(np.float64), samples.starts) / samples.sizes
    observed, drawn = (
        0.5 * (left @ share / left.sum(axis=1) + other @ share / other.sum(axis=1))
        for left, other in (observed_labels(samples), boot)
    )
    return _interval(samples, observed[0], drawn, level, (0.0, 1.0))


def _contributions(samples: TwoSampleRows, parts: Array, boot: tuple[Array, Array], level: float) -> Interval:
    observed, drawn = (
        left @ parts / left.sum(axis=1, keepdims=True) - other @ parts / other.sum(axis=1, keepdims=True)
        for left, other in (observed_labels(samples), boot)
    )
    return _interval(samples, observed[0], drawn, level)


def _interval(
    samples: TwoSampleRows,
    estimate: ArrayLike,
    drawn: Array,
    level: float,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    how: str = "of held-out scores, given the fits",
) -> Interval:
    fewer = min(samples.nreal, samples.nsim)
    low, high = np.clip(stretched_percentile(drawn, fewer, fewer - 1, level=level), *bounds)
    return Interval.of(
        estimate,
        np.minimum(low, estimate),
        np.maximum(high, estimate),
        level=level,
        method=f"percentile bootstrap over episodes {how}",
    )


def _fit_all_rows(features: Array, samples: TwoSampleRows, expand: DiscriminantFeatures) -> Discriminant:
    statistics = compute_discriminant_statistics(features, samples, np.ones(samples.nepisode, dtype=bool))
    coefficients, midpoint = statistics.directions(*observed_labels(samples))
    return Discriminant(features=expand, coefficients=coefficients[:, 0], midpoint=float(midpoint[0]))


def auc_interval(
    scores: ArrayLike, outcome: ArrayLike, *, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> Interval:
    """Return the area under the ROC curve (AUC) of given scores, with a bootstrap interval.

    The AUC is the chance that a row with the outcome has a higher score than a row without the outcome; ties count
    half. The scores must be held-out: their model must not have been trained on these rows. Rows are resampled within
    both outcomes, so every resample has both. The interval does not include the variation that other training data
    would cause.

    Args:
        scores: Score of each row, one row per episode, shape ``(n,)``.
        outcome: True or false for each row, shape ``(n,)``.
        level: Confidence level of the interval.
        draws: Number of resamples.
        seed: Seed of the resamples.

    Raises:
        InputError: If all outcomes are equal.
    """
    check_level(level)
    values, yes = np.asarray(scores, dtype=np.float64), np.asarray(outcome, dtype=bool)
    sides = np.flatnonzero(yes), np.flatnonzero(~yes)
    if not len(sides[0]) or not len(sides[1]):
        raise InputError("All outcomes are equal, so they cannot be ranked. Give some of both.")
    rng = generator(seed, "stats/auc")
    weights = np.zeros((len(values), draws + 1))
    weights[:, 0] = 1.0
    for side in sides:
        drawn = side[rng.integers(0, len(side), (len(side), draws))]
        np.add.at(weights, (drawn, np.arange(1, draws + 1)), 1.0)
    columns = np.broadcast_to(values[:, None], weights.shape)
    areas = weighted_auc(columns, weights * yes[:, None], weights * ~yes[:, None])
    tail = (1 - level) / 2
    low, high = np.quantile(areas[1:], (tail, 1 - tail))
    return Interval.of(
        areas[0],
        np.minimum(low, areas[0]),
        np.maximum(high, areas[0]),
        level=level,
        method="percentile bootstrap over episodes within outcomes, given held-out scores",
    )
