"""Test whether a small classifier separates held-out real rows from simulated ones; and the AUC of given scores.

Lopez-Paz & Oquab, "Revisiting classifier two-sample tests", ICLR 2017, with whole episodes held out and labels of
episodes permuted. The classifier is Fisher's discriminant with a ridge (Friedman, "Regularized discriminant analysis",
J. Am. Stat. Assoc. 84, 1989). Given the rows it is linear in the labels, so the fits for thousands of relabelled
episodes are one matrix product. A logistic regression finds nearly the same direction but would need a fit each time.
With the square of each column as a further feature it detects differences in spread as well as in mean.

Folds contain real and simulated episodes in equal parts, and labels are exchanged within folds. The test is then exact,
and the area under the curve is not biased by the composition of the folds.
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
from twinloop.stats.discriminant import WIDE, Discriminant, DiscriminantFeatures, DiscriminantLearner, fit_learner
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.two_sample import (
    Array,
    TwoSampleRows,
    column_names,
    least_p_value,
    observed_labels,
    relabel_episodes,
    resample_episodes,
    two_samples,
)

_RANKED = 4_000_000  # scores ranked at once
_LEAST_FOLDS = 2


@dataclass(frozen=True, kw_only=True)
class ClassifierTest:
    """Result of a classifier test: AUC ½ means no separation of held-out rows, 1 complete separation.

    ``auc`` is the chance that a real row scores higher than a simulated one of the same fold. ``accuracy`` is the mean
    over both sides of the share of correctly classified rows. Intervals are bootstrapped over episodes. ``p_value`` is
    for the hypothesis of no difference (NaN without relabellings).

    ``contributions`` ``(d,)`` show which columns differ: they sum to the distance between both sides' mean held-out
    scores, in standard deviations of these. ``scores`` are the held-out scores of the given rows, real ones first;
    positive means classified as real (NaN for the few whose episode fills no bundle, see
    `TwoSampleRows.bundle_episodes`). ``classifier`` is fitted to all rows, to score others.
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
        """Return a JSON-compatible dictionary without the scores."""
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
    """Test whether rows ``(n, d)`` and ``(m, d)`` can be separated, with whole episodes held out.

    Args:
        real: real rows ``(n, d)``.
        sim: simulated rows ``(m, d)``.
        real_clusters: episode number of each real row.
        sim_clusters: episode number of each simulated row.
        columns: names of the columns; by default numbers.
        paired: equal episode numbers denote the same trial, see `two_samples`.
        quadratic: add each column's square; by default for up to 256 columns.
        folds: number of folds of episodes, fewer if there are few episodes.
        level: confidence level of the intervals; the test is at 1 − ``level``.
        draws: number of relabellings of episodes; 0 for no test.
        resamples: number of bootstrap resamples.
        seed: seed of folds, relabellings and resamples.

    Raises:
        InputError: the rows cannot be compared, the names do not match, or there are too few episodes for the test.
    """
    check_level(level)
    given = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    names = column_names(columns, given.rows.shape[1])
    samples = given.bundle_episodes(seed=seed)
    fold = _assign_folds(samples, folds, level if draws else None, seed)
    expand = DiscriminantFeatures.of(samples.rows, quadratic=len(names) <= WIDE if quadratic is None else quadratic)
    features = expand(samples.rows)
    learners = [fit_learner(features, samples, fold != number) for number in range(fold.max() + 1)]
    scores, parts = _score_held_out(features, samples, fold, learners)
    judge = _EpisodeClassifier(features=features, samples=samples, fold=fold, learners=tuple(learners))
    auc, p_value = judge.auc(*observed_labels(samples))[0], float("nan")
    if draws:
        labels = relabel_episodes(samples, draws, groups=fold, seed=seed)
        p_value = float(
            labels.p_value(auc, judge.auc(labels.real.astype(np.float64), (~labels.real).astype(np.float64)))
        )
    boot = resample_episodes(samples, resamples, seed=seed)
    original = np.full(len(given.rows), np.nan)
    original[samples.order] = scores
    return ClassifierTest(
        columns=names,
        auc=_auc(samples, auc, judge.auc(*boot), level),
        accuracy=_accuracy(samples, scores, boot, level),
        p_value=p_value,
        contributions=_contributions(samples, expand.sum_by_column(parts), boot, level),
        scores=original,
        classifier=_fit_all_rows(features, samples, expand),
        folds=len(learners),
        nreal=given.nreal,
        nsim=given.nsim,
    )


def _assign_folds(samples: TwoSampleRows, most: int, level: float | None, seed: int) -> NDArray[np.intp]:
    """Return the fold of each episode ``(C,)``; the number of folds is limited by the episodes and by the test."""
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
    """Return the smallest possible p-value with labels exchanged within ``count`` folds."""
    if samples.paired:
        return least_p_value(samples.nreal, samples.nsim, paired=True)
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
    features: Array, samples: TwoSampleRows, fold: NDArray[np.intp], learners: Sequence[DiscriminantLearner]
) -> tuple[Array, Array]:
    """Return each row's score by the fit without its fold ``(n,)``, and each episode's mean parts ``(C, f)``."""
    real, sim = observed_labels(samples)
    scores, parts = np.empty(len(features)), np.empty((samples.nepisode, features.shape[1]))
    means = np.add.reduceat(features, samples.starts, axis=0) / samples.sizes[:, None]
    for number, known in enumerate(learners):
        coefficients, midpoint = known.directions(real, sim)
        rows = fold[samples.episode] == number
        part = features[rows] @ coefficients[:, 0] - midpoint[0]
        spread = _within_sd(part, samples.episode[rows] < samples.nreal)
        scores[rows] = part / spread
        parts[fold == number] = means[fold == number] * coefficients[:, 0] / spread
    return scores, parts


def _within_sd(scores: Array, real: NDArray[np.bool_]) -> float:
    """Return the standard deviation of scores within both sides; 1 if they do not vary."""
    spread = float(np.sqrt((scores[real].var() + scores[~real].var()) / 2))
    return spread if spread > 0 else 1.0


@dataclass(frozen=True, kw_only=True)
class _EpisodeClassifier:
    """Computes held-out AUC values for any weights of episodes, with all fits and rankings at once."""

    features: Array
    samples: TwoSampleRows
    fold: NDArray[np.intp]
    learners: tuple[DiscriminantLearner, ...]

    def auc(self, real: Array, sim: Array) -> Array:
        """Return the mean AUC over folds ``(k,)`` for weights of episodes ``(k, C)`` as real and as simulated.

        Training and evaluation use the same weights. A fold in which one side has no weight does not count.
        """
        total, folds = np.zeros(len(real)), np.zeros(len(real))
        for number, known in enumerate(self.learners):
            rows = self.fold[self.samples.episode] == number
            held, label = self.features[rows], self.samples.episode[rows]
            step = max(1, _RANKED // len(held))
            for begin in range(0, len(real), step):
                part = slice(begin, begin + step)
                scores = held @ known.directions(real[part], sim[part])[0]
                area = weighted_auc(scores, real[part][:, label].T, sim[part][:, label].T)
                counts = ~np.isnan(area)
                total[part] += np.where(counts, area, 0.0)
                folds[part] += counts
        return np.divide(total, folds, out=np.full(len(total), np.nan), where=folds > 0)


def weighted_auc(scores: Array, real: Array, sim: Array) -> Array:
    """Return the area under the curve ``(k,)`` of each column of scores ``(n, k)`` for row weights ``(n, k)``.

    Ties count half. NaN if one side has no weight, or a score is NaN.
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


def _auc(samples: TwoSampleRows, found: float, drawn: Array, level: float) -> Interval:
    """Return a bootstrap interval with a new fit per resample, minus its bias (a resample has fewer episodes)."""
    known = drawn[~np.isnan(drawn)]
    return _interval(samples, found, known - (known.mean() - found), level, (0.0, 1.0), "with a fit per resample")


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
    found: ArrayLike,
    drawn: Array,
    level: float,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    how: str = "of held-out scores, given the fits",
) -> Interval:
    fewer = min(samples.nreal, samples.nsim)
    low, high = np.clip(stretched_percentile(drawn, fewer, fewer - 1, level=level), *bounds)
    return Interval.of(
        found,
        np.minimum(low, found),
        np.maximum(high, found),
        level=level,
        method=f"percentile bootstrap over episodes {how}",
    )


def _fit_all_rows(features: Array, samples: TwoSampleRows, expand: DiscriminantFeatures) -> Discriminant:
    known = fit_learner(features, samples, np.ones(samples.nepisode, dtype=bool))
    coefficients, midpoint = known.directions(*observed_labels(samples))
    return Discriminant(features=expand, coefficients=coefficients[:, 0], midpoint=float(midpoint[0]))


def auc_interval(
    scores: ArrayLike, outcome: ArrayLike, *, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> Interval:
    """Return the chance that a row with the outcome scores higher than one without it, ties half.

    Rows are resampled within both outcomes, so every resample has both. The scores must be held-out: their model must
    not have been trained on the rows. The interval does not include the variation from other training data.

    Args:
        scores: ``(n,)``, one row per episode.
        outcome: ``(n,)``, true or false.
        level: confidence level of the interval.
        draws: number of resamples.
        seed: seed of the resamples.

    Raises:
        InputError: one outcome is missing.
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
    found = weighted_auc(columns, weights * yes[:, None], weights * ~yes[:, None])
    tail = (1 - level) / 2
    low, high = np.quantile(found[1:], (tail, 1 - tail))
    return Interval.of(
        found[0],
        np.minimum(low, found[0]),
        np.maximum(high, found[0]),
        level=level,
        method="percentile bootstrap over episodes within outcomes, given held-out scores",
    )
