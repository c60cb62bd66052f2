"""Mean scores of policies and how sure their trials make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from twinloop.core.errors import InputError
from twinloop.core.records import frozen
from twinloop.stats.interval import Interval, check_level

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Means of scores in [0, 1] of P policies, and the number of successes-or-failures that would be as sure.

    ``mean`` ``(..., P)``. ``trials`` ``(..., P)`` is the number of trials where a score is 0 or 1; scores that vary
    less between trials than that count as more: m (1 − m) over the variance of the mean. NaN where it is unknown.

    Raises:
        InputError: a mean outside [0, 1], or no trials.
    """

    mean: Array
    trials: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", frozen(self.mean))
        object.__setattr__(self, "trials", frozen(np.broadcast_to(np.asarray(self.trials, float), self.mean.shape)))
        if not ((self.mean >= 0) & (self.mean <= 1)).all():
            wrong = self.mean[~((self.mean >= 0) & (self.mean <= 1))]
            raise InputError(f"A mean score of {wrong[0]:g} lies outside 0 to 1. Divide scores by what a full one is.")
        if (self.trials <= 0).any():
            raise InputError("A mean score of no trials is none. Leave that policy out, or say how many trials it had.")

    @classmethod
    def of_trials(cls, samples: Sequence[ArrayLike]) -> Scores:
        """From the scores of each policy's trials ``(n_i,)``.

        Where scores are not all 0 or 1 their variance is estimated, with one success-or-failure added so that a few
        equal scores do not claim to be exact.
        """
        rows = [np.asarray(sample, dtype=np.float64) for sample in samples]
        return cls(mean=frozen([row.mean() for row in rows]), trials=frozen([_worth(row) for row in rows]))

    @classmethod
    def of_table(cls, mean: ArrayLike, trials: ArrayLike, deviation: ArrayLike | None = None) -> Scores:
        """From a published table: means, numbers of trials, and the standard deviation between trials if it is given.

        Without one, trials are taken as successes or failures, which vary most of all scores with that mean.
        """
        means = np.asarray(mean, dtype=np.float64)
        counts = np.broadcast_to(np.asarray(trials, dtype=np.float64), means.shape)
        if deviation is None:
            return cls(mean=means, trials=counts)
        pooled = _pooled(means, counts, counts * np.asarray(deviation, dtype=np.float64) ** 2)
        return cls(mean=means, trials=np.where(np.isnan(pooled), counts, pooled))

    @classmethod
    def averaged(cls, parts: Sequence[Scores]) -> Scores:
        """Scores averaged over tasks, every task with the same weight."""
        mean = np.mean([part.mean for part in parts], axis=0)
        variance = np.sum([part.variance for part in parts], axis=0) / len(parts) ** 2
        smooth = np.clip(mean, 1e-3, 1 - 1e-3)  # a mean at the end of the scale still has trials
        known = np.all([~np.isnan(part.trials) for part in parts], axis=0)
        worth = np.divide(smooth * (1 - smooth), variance, out=np.full(mean.shape, np.nan), where=known)
        return cls(mean=mean, trials=worth)

    def chosen(self, rows: Sequence[int]) -> Scores:
        """The scores of some policies, in that order."""
        return Scores(mean=self.mean[..., rows], trials=self.trials[..., rows])

    @property
    def known(self) -> bool:
        """Whether all numbers of trials are known."""
        return not np.isnan(self.trials).any()

    @property
    def variance(self) -> Array:
        """Variance of each mean from its trials ``(..., P)``, 0 where their number is unknown.

        p (1 − p) / n with p = (n m + ½) / (n + 1), Jeffreys' estimate, so that 10 of 10 is not taken for certain.
        """
        n = np.where(np.isnan(self.trials), 1.0, self.trials)
        p = (n * self.mean + 0.5) / (n + 1)
        return np.where(np.isnan(self.trials), 0.0, p * (1 - p) / n)

    def resampled(self, rng: np.random.Generator, draws: int) -> Array:
        """Means of trials drawn again from a binomial distribution, ``(draws, ..., P)``; unchanged where unknown."""
        n = np.maximum(np.rint(np.where(np.isnan(self.trials), 1.0, self.trials)), 1.0)
        again = rng.binomial(n.astype(np.int64), self.mean, size=(draws, *self.mean.shape)) / n
        return np.where(np.isnan(self.trials), self.mean, again)


@dataclass(frozen=True, kw_only=True)
class PolicyScores:
    """Real and simulated scores of the same ``policies`` in one ``task`` ("" where it has no name)."""

    policies: tuple[str, ...]
    real: Scores
    sim: Scores
    task: str = ""


def score_intervals(scores: Scores, *, level: float = 0.95) -> Interval:
    """Wilson's score interval of each mean, with its trials as counted in `Scores`; no ends where they are unknown."""
    check_level(level)
    z, n, m = float(ndtri((1 + level) / 2)), scores.trials, scores.mean
    centre, room = (m + z**2 / (2 * n)) / (1 + z**2 / n), 1 + z**2 / n
    half = z / room * np.sqrt(m * (1 - m) / n + z**2 / (4 * n**2))
    return Interval(
        estimate=m,
        low=np.maximum(centre - half, 0.0),
        high=np.minimum(centre + half, 1.0),
        level=level,
        method="Wilson score, of as many trials as the scores are worth",
    )


def _worth(row: Array) -> float:
    n = float(len(row))
    if ((row == 0) | (row == 1)).all():
        return n
    mean = row.mean()
    return float(_pooled(np.asarray(mean), np.asarray(n), np.sum((row - mean) ** 2)))


def _pooled(mean: Array, n: Array, squares: ArrayLike) -> Array:
    """Trials that would be as sure, from a sum of squares to which one success-or-failure is added."""
    most = np.clip(mean * (1 - mean), 1e-6, None)
    return np.maximum(n * most * n / (np.asarray(squares) + most), n)
